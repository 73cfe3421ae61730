"""Check a model and a loss on synthetic rows, and refuse what cannot be trained privately.

All of this happens before anything is paid, and no private row enters it. Only the form of the
private data is checked: integers that index a table, or are classes, must lie within the table, or
among the outputs (`_with_ranges`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from adadps.data.examples import Examples
from adadps.data.fields import (
    ANY,
    Features,
    Ranges,
    arguments,
    each_tensor,
    integers_of,
    joined,
    of_examples,
    rows_of,
    tensors_of,
)
from adadps.data.provenance import DeclaredRead, declared_read
from adadps.data.secret_draws import secret_generators
from adadps.engine.choice import (
    IN_HALF,
    ROWS,
    engine_for,
    is_exact,
    reads_in_sequence,
    require_gradients,
    require_separate_examples,
    synthetic_like,
    warn_of_stored_gradients,
)
from adadps.engine.losses import IGNORED, Loss
from adadps.engine.noise.randomness import Randomness, secure
from adadps.engine.objective import Isolation, Objective
from adadps.engine.passes.model_state import evaluating
from adadps.engine.passes.row_multiple import multiple_for
from adadps.engine.passes.side_effects import require_no_retained_tensors, require_no_writes
from adadps.engine.waist import Engine, GradientBatch
from adadps.errors import AdadpsError, DataError, ModelError

_REFUSALS = (IndexError, RuntimeError, ValueError)


def objective(
    model: nn.Module,
    loss: Loss,
    data: Examples,
    *,
    randomness: Randomness | None = None,
    choose: Callable[[nn.Module, Loss, Examples], Engine] = engine_for,
) -> Objective:
    """Check ``model`` and ``loss`` on rows of the form of ``data``, and choose an engine."""
    _require_no_autocast()
    _require_not_wrapped(model)
    require_no_checkpointing(model)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ModelError(
            "Expected a model with trainable parameters, found none. Set requires_grad on the "
            "parameters to train."
        )
    require_separate_examples(model)
    synthetic = synthetic_like(data, model).to(next(model.parameters()).device)
    isolation = Isolation(model, loss, (randomness or secure()).bytes)
    in_sequence = reads_in_sequence(model, synthetic.features)
    with isolation():
        output = partial(_some_output, model, synthetic.features)
        if not isolation.holds_nothing:
            require_no_writes(model, loss, synthetic, output)
        if not in_sequence:  # a sequence returns one tensor
            _require_pick(loss, output(), synthetic.targets)
        held = Objective(model, choose(model, loss, synthetic), synthetic, isolation)
        held = _with_accepted_targets(held, loss)
        _require_loss_per_example(held, loss)
        require_gradients(held.engine, held.synthetic)
        if not isolation.holds_nothing:
            again = partial(require_gradients, held.engine, held.synthetic)
            require_no_retained_tensors(model, loss, again)
        _require_independent_rows(held)
        if not in_sequence:
            held = replace(held, multiple=multiple_for(held))
    held = _with_ranges(held, loss, data)
    warn_of_stored_gradients(held.engine)
    return held


def require_no_checkpointing(model: nn.Module) -> None:
    """Refuse layers that run a second time in the backward pass."""
    if any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
        raise ModelError(
            "Expected a model without gradient checkpointing, found it switched on. Call "
            "`model.gradient_checkpointing_disable()`; memory is bounded by the physical batch "
            "size, which `fit` chooses, or `physical_batch_size=`."
        )


def public_gradients(held: Objective, rows: Examples) -> GradientBatch:
    """Differentiate a few public rows, before anything is paid, or say why they do not fit."""
    few = rows.take(torch.arange(min(len(rows), ROWS))).to(held.synthetic.targets.device)
    try:
        found = held.of_public_rows(held.params(), held.encoded(few))
        found.norms()
    except (*_REFUSALS, TypeError) as error:
        if isinstance(error, AdadpsError):
            raise
        raise DataError(
            "Expected public examples that model and loss take as they take private ones, found "
            f"that they stop with: {error}. Give features and targets of the same form and type."
        ) from error
    return found


def _forward(model: nn.Module, features: Features) -> Any:
    """Return whatever the model returns for these rows."""
    given, named = arguments(features, next(model.parameters()).dtype)
    return model(*given, **named)


def _some_output(model: nn.Module, features: Features) -> Any:
    """What the model returns for rows of this shape and type: at least one tensor."""
    try:
        outputs = _forward(model, features)
    except (*_REFUSALS, TypeError) as error:
        if isinstance(error, AdadpsError):
            raise
        raise _unfit(error) from error
    if not tensors_of(outputs):
        raise ModelError(
            "Expected a model whose forward pass returns a tensor, or several in a tuple, a "
            f"mapping or a dataclass, found {type(outputs).__name__} without any. Return what the "
            "loss reads."
        )
    return outputs


def _require_pick(loss: Loss, outputs: Any, targets: Tensor) -> None:
    """Refuse a loss that takes several outputs for one tensor; its other errors come later."""
    if isinstance(outputs, Tensor):
        return
    try:
        loss(outputs, targets)
    except (AttributeError, LookupError, TypeError) as error:
        raise ModelError(
            f"Expected a loss that picks what it reads from the {type(outputs).__name__} that the "
            f"model returns, found that it stops with: {error}. Pick it in the loss, e.g. `lambda "
            "outputs, targets: losses.cross_entropy(outputs.logits, targets)`."
        ) from error
    except (RuntimeError, ValueError):
        return


def _unfit(error: Exception) -> DataError:
    type_alone = "dtype" in str(error) or "scalar type" in str(error)
    cure = (
        "Give numbers that the first layer takes: images as `image.float() / 255`, say"
        if type_alone
        else "Build the model with the width of the data, a row for every word, and the names of "
        "the inputs, if they have names"
    )
    return DataError(
        f"Expected features that fit the model, found that it refuses synthetic rows of the shape "
        f"and type of the data: {error}. {cure}; if it accepts only some values, give made-up rows "
        "that it accepts by `examples(..., synthetic=(features, targets))`."
    )


def _require_not_wrapped(model: nn.Module) -> None:
    for module in model.modules():
        if type(module).__module__.startswith("opacus.grad_sample"):
            raise ModelError(
                f"Expected the model itself, found {type(module).__name__}, in which Opacus has "
                "wrapped it. Give the model before `make_private`, or that of "
                "`to_standard_module()`."
            )


def _require_no_autocast() -> None:
    if any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")):
        raise ModelError(
            "Expected a run outside of `torch.autocast`, found that it is on: norms and sums are "
            "computed in full precision. Use it inside of the model's `forward`."
        )


def _outputs(held: Objective, features: Features) -> Any:
    try:
        return held.outputs(held.params(), features)
    except (IndexError, RuntimeError, TypeError) as error:
        raise _unfit(error) from error


def _require_independent_rows(held: Objective) -> None:
    """Refuse a model whose output for a row depends on its neighbours.

    Gradients would be right, because they are taken one example at a time; but the model that is
    evaluated and used on batches would not be the one that was trained.
    """
    count, features = len(held.synthetic), held.synthetic.features
    close = partial(_close, share=_IN_FULL if is_exact(held.engine) else IN_HALF)
    together = _outputs(held, features)
    mixed = {len(tensor) for tensor in tensors_of(together)} != {count}
    if not mixed:
        others = held.synthetic.take(torch.tensor([0, *[count // 3] * (count - 1)]))
        one, another = (
            _outputs_with_fixed_draws(held, rows) for rows in (features, others.features)
        )
        mixed = not close(rows_of(one, slice(1)), rows_of(another, slice(1)))
    # Several passes: the draws of two may happen to be the same.
    if not mixed and all(close(together, _outputs(held, features)) for _ in range(4)):
        each = (held.synthetic.take(row).features for row in torch.split(torch.arange(count), 1))
        alone = [_outputs(held, row) for row in each]
        lengths = {len(tensor) for row in alone for tensor in tensors_of(row)}
        mixed = lengths != {1} or not close(joined(alone), together)
    if mixed:
        raise ModelError(
            "Expected a model whose output for a row depends on that row alone, found one that "
            "changes with the other rows of the batch (a mean or softmax over the first axis, "
            "say). The model that is evaluated would not be the one that was trained. Compute "
            "statistics within each row, e.g. by LayerNorm, `dim=1` or `dim=-1`."
        )


def _outputs_with_fixed_draws(held: Objective, features: Features) -> Any:
    """Outputs of a pass whose draws are the same in every call."""
    params = held.params()
    device = next(iter(params.values())).device
    none = held.isolation.draws_nothing
    draws = nullcontext() if none else secret_generators(_fixed_bytes, device)
    with evaluating(held.model), draws:
        return of_examples(held.engine.outputs(params, features), len(features))


def _fixed_bytes(count: int) -> bytes:
    return bytes((37 * place + 11) % 256 for place in range(count))


_IN_FULL = 1e-3
"""What outputs of one row may differ by, as a share: kernels for few rows round otherwise."""


def _close(one: Any, other: Any, *, share: float) -> bool:
    found, expected = tensors_of(one), tensors_of(other)
    pairs = zip(found, expected, strict=False)
    return len(found) == len(expected) and all(_close_tensors(*pair, share) for pair in pairs)


def _close_tensors(one: Tensor, other: Tensor, share: float) -> bool:
    if one.shape != other.shape:
        return False
    size = torch.nan_to_num(other, posinf=0, neginf=0).abs().max() if other.numel() else 0.0
    close = torch.isclose(one, other, rtol=share, atol=share / 10 * float(size), equal_nan=True)
    return bool(close.all())


def _with_accepted_targets(held: Objective, loss: Loss) -> Objective:
    """Alternate classes 0 and 1, which nearly every loss accepts; zeros if there is one class."""
    targets = held.synthetic.targets
    if targets.is_floating_point():
        return held
    outputs = _outputs(held, held.synthetic.features)
    if _accepts(loss, outputs, targets) or not _accepts(loss, outputs, torch.zeros_like(targets)):
        return held
    synthetic = Examples(held.synthetic.features, torch.zeros_like(targets))
    return Objective(held.model, held.engine, synthetic, held.isolation)


def _accepts(loss: Loss, outputs: Any, targets: Tensor) -> bool:
    try:
        loss(outputs, targets)
    except (*_REFUSALS, AttributeError, TypeError):
        return False
    return True


def _require_loss_per_example(held: Objective, loss: Loss) -> None:
    batch = held.synthetic.take(torch.tensor([0, 1, len(held.synthetic) - 1]))
    outputs = _outputs(held, batch.features)
    generator = torch.Generator().manual_seed(0)

    def moved(found: Tensor) -> Tensor:  # a fresh model may give all rows the same output
        more = torch.rand(found.shape, generator=generator).to(found)
        return found + more if found.is_floating_point() else found

    outputs = each_tensor(moved, outputs)
    try:
        losses = loss(outputs, batch.targets)
    except (AttributeError, TypeError) as error:
        found = type(outputs).__name__
        raise ModelError(
            f"Expected a loss of outputs and targets, `loss(outputs, targets)`, found that it "
            f"stops with: {error}. The model returns {found}, and that is what the loss gets."
        ) from error
    except _REFUSALS as error:
        raise DataError(
            f"Expected targets that the loss accepts, found that it refuses synthetic ones of "
            f"their shape and type: {error}. Class labels are integers in one axis; other targets "
            "have the shape of the outputs. For a loss that accepts only some values, give made-up "
            "rows by `examples(..., synthetic=(features, targets))`."
        ) from error
    if not isinstance(losses, Tensor):
        raise ModelError(
            f"Expected a loss with one value per example, a tensor, found {type(losses).__name__}"
            ". Compute it from outputs and targets: a loss that the model computes itself "
            "(`outputs.loss`) is a mean over the batch, and needs the targets among its inputs."
        )
    if losses.shape != (len(batch),):
        raise ModelError(
            f"Expected a loss with one value per example, shape ({len(batch)},) for the "
            f"{len(batch)} synthetic rows that it was tried on, found {tuple(losses.shape)}"
            f"{_shape_cure(losses, outputs, batch.targets)}"
        )
    alone = torch.cat(
        [
            loss(rows_of(outputs, slice(i, i + 1)), batch.targets[i : i + 1])
            for i in range(len(batch))
        ]
    )
    if not torch.allclose(losses, alone, rtol=1e-4, atol=1e-5, equal_nan=True):
        raise ModelError(
            "Expected each example's loss to depend on that example alone, found a loss that "
            "changes with its neighbours in the batch. Use a loss without statistics, ranks or "
            "pairs across examples."
        )


def _shape_cure(losses: Tensor, outputs: Any, targets: Tensor) -> str:
    """The end of the error for a loss whose values have this shape."""
    if losses.ndim == 0:
        return ", a mean or sum. Use reduction='none', or a loss of `adadps.losses`."
    each, rest = divmod(len(losses), max(1, len(targets)))
    if losses.ndim == 1 and rest == 0 and each > 1:
        return (
            f", {each} for each example. Average over them: compute the loss per token or pixel, "
            "then `.view(len(targets), -1).mean(1)`; `losses.next_token` does so for texts."
        )
    found = ", ".join(str(tuple(tensor.shape)) for tensor in tensors_of(outputs))
    shapes = f"outputs of shape {found} and targets of shape {tuple(targets.shape)}"
    return (
        f" from {shapes}. Give targets the shape of the outputs, and average over all axes but the "
        "first (`.flatten(1).mean(1)`), or use a loss of `adadps.losses`."
    )


def _with_ranges(held: Objective, loss: Loss, data: Examples) -> Objective:
    """Refuse tokens that no row of a table stands for, and classes without an output.

    Rows that are read when they are drawn are looked at then.
    """
    ranges = Ranges(_table_sizes(held), _number_of_classes(held, loss), IGNORED)
    if data.is_read_when_drawn:
        return replace(held, ranges=ranges)
    with declared_read(DeclaredRead.FORM):
        if not bool(ranges.of_features(data.features).all()):
            most = max(int(sizes[sizes < ANY].max()) for sizes in ranges.sizes if sizes.min() < ANY)
            raise DataError(
                f"Expected features that fit the model, integers from 0 to {most - 1} where they "
                "are words of a table, found others. Build the table with a row for every word, "
                "and give padding its own number (0 with `padding_idx=0`, say) in place of a "
                "negative one."
            )
        if not bool(ranges.of_targets(data.targets).all()):
            last = (ranges.classes or 1) - 1
            raise DataError(
                f"Expected targets that the loss accepts, integers from 0 to {last}, found "
                "others. Number the labels from 0, and give the model an output for each."
            )
    return held


def _table_sizes(held: Objective) -> tuple[Tensor, ...]:
    """For each place in a row of integers, the size of the table that it indexes.

    It is found on a synthetic row, by the memory that the tables are called with.
    """
    first = held.synthetic.take(torch.arange(1)).features
    rows = integers_of(first)
    found = [torch.full(row.shape, ANY) for row in rows]

    def note(table: nn.Module, inputs: tuple[object, ...], named: dict[str, object]) -> None:
        given = next(iter((*inputs, *named.values())), None)
        for row, sizes in zip(rows, found, strict=True):
            if isinstance(given, Tensor) and given.data_ptr() and _shares_memory(given, row):
                offset = given.storage_offset() - row.storage_offset()
                seen = sizes.as_strided(given.shape, given.stride(), offset)
                seen.copy_(seen.clamp_max(int(getattr(table, "num_embeddings", ANY))))

    tables = [m for m in held.model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    handles = [table.register_forward_pre_hook(note, with_kwargs=True) for table in tables]
    try:
        if rows:
            with secret_generators(_fixed_bytes, rows[0].device), torch.no_grad():
                _some_output(held.model, first)
    finally:
        for handle in handles:
            handle.remove()
    return tuple(sizes[0] for sizes in found)


def _shares_memory(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _number_of_classes(held: Objective, loss: Loss) -> int | None:
    """The number of classes, if the loss accepts integers and refuses those out of range."""
    targets = held.synthetic.targets[:1]
    if targets.is_floating_point() or targets.dtype is torch.bool:
        return None
    outputs = _outputs(held, held.synthetic.take(torch.arange(1)).features)
    outputs = each_tensor(Tensor.cpu, outputs)
    sizes = sorted({size for tensor in tensors_of(outputs) for size in tensor.shape[1:]})

    def refuses(label: int) -> bool:
        return not _accepts(loss, outputs, torch.full_like(targets, label, device="cpu"))

    if not sizes or refuses(0) or not refuses(-1):
        return None
    return next((size for size in sizes if refuses(size) and not refuses(size - 1)), None)
