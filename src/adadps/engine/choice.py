"""Which engine differentiates a model; chosen on synthetic rows, so that no private row enters.

Sequences of known layers run on whole batches. Other models run example by example, with rules for
all parameters that are used through their layers alone, and stored gradients for the others. Where
that does not give the right gradients, all gradients are stored (`adadps.engine.general`).
"""

from __future__ import annotations

import inspect
import warnings
from contextlib import suppress

import torch
from torch import Tensor, nn

from adadps.data.examples import Examples
from adadps.data.fields import Features, Fields
from adadps.data.sparse_rows import SparseRows
from adadps.engine.by_example import PassByExample, modes_of
from adadps.engine.general import GeneralEngine
from adadps.engine.ghost import GhostEngine
from adadps.engine.losses import Loss
from adadps.engine.passes.model_state import evaluating
from adadps.engine.rules.layers import require_supported
from adadps.engine.rules.sequence import LayerSequence
from adadps.engine.rules.structure import HiddenParameterError, PythonGenerators, used_elsewhere
from adadps.engine.waist import Engine
from adadps.errors import AdadpsError, DataError, ModelError, SpeedWarning
from adadps.tensors.sums import Params, Sums, dense

ROWS = 16
"""The number of synthetic rows, the least number of rows of a batch, and mostly their multiple.

A matrix product with very few rows is computed by another routine than one with many, and some
routines treat the rows beyond a multiple of four differently, too: the last bit of a row would then
tell how many others were drawn. In multiples of 16, rows are bit-equal
(`tests/contract/test_padding.py`).
"""


def engine_for(model: nn.Module, loss: Loss, probe: Examples) -> Engine:
    """Return the engine for ``model``; ``probe`` holds synthetic rows of the kind it will see."""
    for name, module in model.named_modules():
        require_supported(module, name)
    one = probe.take(torch.arange(1))
    if reads_in_sequence(model, probe.features):
        ghost = GhostEngine(model, loss)
        with suppress(RuntimeError):  # data that do not fit the model are refused elsewhere
            ghost.measure(_trainable(model), one.features)
        return ghost
    general = GeneralEngine(model, loss)
    if LayerSequence.of(model) is not None:
        return general
    mixed = ghost_for(model, loss, one)
    if mixed is not None and _agree(mixed, general, probe):
        generators = PythonGenerators()
        if runs(mixed, probe) and not generators.have_drawn():
            mixed.modes = modes_of(model)
            return mixed
    return general


def ghost_for(model: nn.Module, loss: Loss, one: Examples) -> GhostEngine | None:
    """A ghost engine with stored gradients for what no rule covers; None if all would be stored."""
    params, passes = _trainable(model), PassByExample(model, ())
    try:
        row = GhostEngine(model, loss).given(one.features, params)
        stored = used_elsewhere(model, params, row, passes.replacements)
        if stored is None or stored == set(params):
            return None
        ghost = GhostEngine(model, loss, stored)
        ghost.measure(params, one.features)
    except HiddenParameterError:
        raise
    except CANNOT_RUN:
        return None
    return ghost


def runs(ghost: GhostEngine, probe: Examples) -> bool:
    """Does it run in training mode, too? A layer that draws cannot run a second time."""
    try:
        require_gradients(ghost, probe)
    except AdadpsError:
        return False
    return True


def require_gradients(engine: Engine, probe: Examples) -> None:
    """Differentiate one example, so that errors are found before anything is paid."""
    params = _trainable(engine.model)
    batch = probe.take(torch.arange(1)).to(next(iter(params.values())).device)
    engine.per_unit(params, batch, None).norms()


def require_separate_examples(model: nn.Module) -> None:
    """Refuse layers that mix the examples of a batch by their type alone, and compiled ones."""
    for name, module in model.named_modules():
        _require_not_compiled(module)
        if _mixes_examples(module):
            raise ModelError(
                f"Expected layers that treat examples separately, found {type(module).__name__} "
                f"at '{name}', which mixes the examples of a batch. Replace it by GroupNorm or "
                "LayerNorm."
            )


def _require_not_compiled(module: nn.Module) -> None:
    by_dynamo = type(module).__module__.startswith("torch._dynamo")  # importing it takes seconds
    in_place = vars(module).get("_compiled_call_impl") is not None
    if by_dynamo or in_place or isinstance(module, torch.jit.ScriptModule):
        raise ModelError(
            "Expected the model itself, found one that was compiled: a private step reads what "
            "each layer reads and writes, which a compiled graph hides. Give the model that "
            "`torch.compile(model)` was given; the compiled one shares its weights, and can serve "
            "your own evaluations."
        )


def _mixes_examples(module: nn.Module) -> bool:
    keeps_statistics = bool(getattr(module, "track_running_stats", False))
    return isinstance(module, nn.modules.batchnorm._BatchNorm) or keeps_statistics


def _trainable(model: nn.Module) -> Params:
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def reads_in_sequence(model: nn.Module, features: Features) -> bool:
    """Is ``model`` a sequence of supported layers that accepts these features?"""
    sequence = LayerSequence.of(model)
    if sequence is None or isinstance(features, Fields) or not sequence.takes(features):
        return False
    first = sequence.layers[0][1]
    width = features.width if isinstance(features, SparseRows) else features.shape[-1]
    wanted = getattr(first, "in_features", None)
    if isinstance(features, SparseRows) and isinstance(first, nn.EmbeddingBag):
        wanted = first.num_embeddings
        if first.mode != "sum":
            raise ModelError(
                "Expected nn.Linear or nn.EmbeddingBag(mode='sum') for sparse rows, found "
                f"{first}. For a mean, divide the entries of each row by their sum."
            )
    if wanted is not None and width != wanted:
        raise DataError(
            f"Expected rows of {wanted} features for the first layer, found {width}. Build the "
            "layer with the width of the data."
        )
    return True


def _agree(ghost: GhostEngine, general: GeneralEngine, probe: Examples) -> bool:
    """Do both give the same gradients of two synthetic rows, away from the starting point?

    `used_elsewhere` has shown where parameters are used; this finds a layer that does not compute
    what its rule assumes.
    """
    generator = torch.Generator().manual_seed(0)
    params = {
        name: value + 0.1 * torch.randn(value.shape, generator=generator).to(value)
        for name, value in _trainable(ghost.model).items()
    }
    device = next(iter(params.values())).device
    batch = probe.take(torch.tensor([0, len(probe) - 1])).to(device)
    share = 1e-3 if is_exact(ghost) else IN_HALF
    try:
        with evaluating(ghost.model):  # without dropout, whose draws would differ
            found, expected = (engine.per_unit(params, batch, None) for engine in (ghost, general))
        if not torch.equal(found.present, expected.present):
            return False
        return all(
            same_sums(found.weighted_sum(weights), expected.weighted_sum(weights), share)
            for weights in torch.eye(2, dtype=torch.float64, device=device)
        )
    except CANNOT_RUN:
        return False


def same_sums(found: Sums, expected: Sums, share: float, least: float = 0.0) -> bool:
    """Do they differ by a ``share`` of a parameter's largest entry, and a millionth of all?

    ``least`` is the largest entry of other parameters.
    """
    wanted = {name: dense(value) for name, value in expected.items()}
    largest = max(least, *(float(value.abs().max()) for value in wanted.values()))
    return all(
        bool(
            ((dense(found[name]) - value).abs() <= share * value.abs().max() + 1e-6 * largest).all()
        )
        for name, value in wanted.items()
    )


IN_HALF = 0.05
"""Under autocast torch rounds products to 8 bits, and the rules do not."""


def is_exact(engine: Engine) -> bool:
    """Have all layers written in full precision so far?"""
    if not isinstance(engine, GhostEngine) or engine.sequence is not None:
        return True
    return engine.by_example.is_exact


MANY = 2**20
"""From this many stored numbers per example on, it is worth a word."""


def warn_of_stored_gradients(engine: Engine) -> None:
    """Say which parameters have stored gradients, if those are large."""
    params = _trainable(engine.model)
    sizes = {name: params[name].numel() for name in engine.stored if name in params}
    if sum(sizes.values()) < MANY:
        return
    largest = sorted(sizes, key=lambda name: -sizes[name])
    named = ", ".join(f"'{name}'" for name in largest[:3]) + (", ..." if len(sizes) > 3 else "")
    size = sum(sizes[name] * params[name].element_size() for name in sizes)
    warnings.warn(
        f"The gradients of {len(sizes)} of {len(params)} parameters ({named}) are stored for every "
        f"example, {size / 2**20:,.0f} MB each, because no rule covers how the model uses them. A "
        "step takes longer, in smaller physical batches. Use a weight only through its own layer, "
        "and layers that have a rule (see the page on layers).",
        SpeedWarning,
        stacklevel=2,
    )


CANNOT_RUN = (
    AdadpsError,
    RuntimeError,
    TypeError,
    ValueError,
    LookupError,
    AssertionError,
    AttributeError,
)
"""Errors of a model that the ghost engine cannot run."""


# --- synthetic rows: of the form of the data, and without its values ---

_WORDS_PER_ROW = 8


def synthetic_like(data: Examples, model: nn.Module) -> Examples:
    """Return `ROWS` synthetic examples: those given with the data, or made up here."""
    if data.synthetic is not None:
        return data.synthetic.take(torch.arange(ROWS) % len(data.synthetic))
    generator = torch.Generator().manual_seed(0)
    device = data.targets.device
    return Examples(
        _synthetic_features(data.features, model, generator).to(device),
        _targets(data.targets, generator).to(device),
    )


def _synthetic_features(like: Features, model: nn.Module, generator: torch.Generator) -> Features:
    if isinstance(like, SparseRows):
        return _sparse(like.width, like.values.dtype, generator)
    if isinstance(like, Tensor):
        return _rows(like, model, generator)
    names = like.names or parameter_names(model, len(like.tensors))
    made = (
        _mask(name, tensor) if _MASK in name else _rows(tensor, model, generator)
        for name, tensor in zip(names, like.tensors, strict=True)
    )
    shortest = min((t.shape[1] for t in like.tensors if t.ndim > 1), default=1)
    return Fields(
        tuple(
            tensor.clamp(1, shortest) if _LENGTH in name and not tensor.is_floating_point()
            else tensor
            for name, tensor in zip(names, made, strict=True)
        ),
        like.names,
    )  # fmt: skip


_MASK, _LENGTH = "mask", "length"
"""Inputs with these words in their names hold masks, and lengths of sequences."""


def _mask(name: str, like: Tensor) -> Tensor:
    """A mask that hides nothing: ones, but zeros where it marks padding, as in torch's layers.

    Where a mask is added to scores, ones everywhere change no share of attention.
    """
    shown = 0 if "padding" in name else 1
    return torch.full((ROWS, *like.shape[1:]), shown, dtype=like.dtype)


def parameter_names(model: nn.Module, count: int) -> tuple[str, ...]:
    """Return the names of the first parameters of ``forward``; empty ones where it has none."""
    parameters = inspect.signature(model.forward).parameters.values()
    names = [p.name for p in parameters if p.kind is not p.VAR_POSITIONAL]
    return (*names, *[""] * count)[:count]


def _rows(like: Tensor, model: nn.Module, generator: torch.Generator) -> Tensor:
    shape = (ROWS, *like.shape[1:])
    if not like.is_floating_point():
        highest = 2 if like.dtype is torch.bool else _fewest_words(model)
        return torch.randint(highest, shape, generator=generator).to(like.dtype)
    # Half of them positive, for models that take logarithms or roots.
    values = torch.rand(shape, generator=generator)
    values[ROWS // 2 :] = torch.randn((ROWS - ROWS // 2, *shape[1:]), generator=generator)
    return values.to(like.dtype)


def _targets(like: Tensor, generator: torch.Generator) -> Tensor:
    """Values in [0, 1), or alternating 0 and 1, which nearly every loss accepts."""
    shape = (ROWS, *like.shape[1:])
    if like.is_floating_point():
        return torch.rand(shape, generator=generator).to(like.dtype)
    alternating = torch.arange(ROWS) % 2
    return alternating.view(-1, *[1] * (len(shape) - 1)).expand(shape).contiguous().to(like.dtype)


def _sparse(width: int, dtype: torch.dtype, generator: torch.Generator) -> SparseRows:
    """Rows of a few distinct columns with positive values."""
    count = min(_WORDS_PER_ROW, width)
    first = torch.randint(max(1, width), (ROWS, 1), generator=generator)
    columns = ((first + torch.arange(count)) % max(1, width)).sort(1).values
    values = torch.rand(ROWS * count, generator=generator).add_(0.1)
    offsets = torch.arange(ROWS + 1) * count
    return SparseRows(offsets, columns.flatten(), values.to(dtype), width)


def _fewest_words(model: nn.Module) -> int:
    """Integers below this fit every table of words; without a table they are 0 and 1."""
    tables = [m for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    return min((table.num_embeddings for table in tables), default=2)
