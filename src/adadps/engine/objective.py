"""What training differentiates: one model, one loss, one way to read the features.

A logical batch is differentiated in physical pieces (`adadps.engine.chunked`), each padded with
synthetic rows, so that neither an empty batch nor a small one takes a path of its own. Models are
tried on such rows before training, too. Only the form of the data enters them: types, the shape of
one row, the width of sparse rows, and the sizes of the model's tables of words.

Every pass of a run is *isolated*, on private rows and on others, so that a model behaves the same
on all of them: it leaves no state behind, draws from secret generators, and its errors are not
quoted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from adadps.data.examples import Examples, take
from adadps.data.fields import Features, Fields, Ranges, joined, of_examples, one_input, replaced
from adadps.data.secret_draws import Bytes, secret_generators
from adadps.data.sparse_rows import SparseRows
from adadps.engine.choice import ROWS, reads_in_sequence
from adadps.engine.chunked import ChunkedGradients, pieces_of
from adadps.engine.general import GeneralEngine
from adadps.engine.ghost import GhostEngine
from adadps.engine.losses import Loss, cross_entropy, treats_examples_alone
from adadps.engine.noise.randomness import Randomness
from adadps.engine.passes.model_state import SameState, described, evaluating
from adadps.engine.rules.sequence import LayerSequence
from adadps.engine.waist import Engine, GradientBatch, Units
from adadps.errors import ModelError
from adadps.tensors.sums import Params, SinglePrecision

Result = TypeVar("Result")


@dataclass(frozen=True)
class Objective:
    """A model and a loss behind an engine, with optional public feature weights in front.

    ``synthetic`` rows pad every batch; every pass runs in ``isolation``. ``feature_weights`` s turn
    every row x into s ∘ x / ‖s ∘ x‖, one row at a time. ``ranges`` are those of integers that the
    model can read; only rows that are read when they are drawn are compared with them.
    """

    model: nn.Module
    engine: Engine
    synthetic: Examples
    isolation: Isolation
    feature_weights: Tensor | None = None
    ranges: Ranges | None = None
    multiple: int = ROWS
    """Batches are padded to a multiple of this (`adadps.engine.passes.row_multiple`)."""

    def drawing_from(self, randomness: Randomness, *, quotes_errors: bool = False) -> Objective:
        """Return the same with a run's own secret source for draws inside the model."""
        isolation = self.isolation.drawing_from(randomness.bytes, quotes_errors=quotes_errors)
        return replace(self, isolation=isolation)

    def reparametrised(self, feature_weights: Tensor) -> Objective:
        """Return the same objective on re-weighted, re-normalised features."""
        held = self.feature_weights
        return replace(
            self, feature_weights=feature_weights if held is None else held * feature_weights
        )

    def params(self) -> Params:
        """Return the trainable parameters, which share memory with the model."""
        return {
            name: parameter.detach()
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        }

    def per_unit(
        self,
        params: Params,
        batch: Examples,
        units: Units | None,
        chunk: int | None = None,
        single: SinglePrecision | None = None,
    ) -> GradientBatch:
        """Return per-unit gradients, in pieces of about ``chunk`` examples with whole units.

        Without ``chunk`` the engine decides how many it can hold, so that memory stays constant.
        Each piece is padded with synthetic rows: the result for a row does not depend on how many
        others were drawn, and an empty batch is padding alone. ``single`` says how wide layers may
        be summed in float32.
        """
        chunk = chunk or self.engine.most_at_once(params)
        multiple = self.multiple if chunk >= ROWS else chunk
        chunk -= chunk % multiple

        def differentiate(rows: Tensor | None, part: Units | None) -> GradientBatch:
            piece = self._prepared(batch if rows is None else batch.take(rows))
            count = max(padding_for(len(piece), multiple), min(ROWS, chunk) - len(piece))
            padded = _followed_by(piece, self.synthetic, count)
            found = self.isolation.on_private_rows(
                partial(self.engine.per_unit, params, padded, part, count)
            )
            return found if single is None else found.in_single(single, len(batch))

        if len(batch) <= chunk:
            return differentiate(None, units)
        pieces = pieces_of(batch.targets, units, chunk)
        return ChunkedGradients(tuple(partial(differentiate, rows, part) for rows, part in pieces))

    def of_no_rows(self) -> GradientBatch:
        """Return the gradients of an empty batch: only padding, of the form of the private data."""
        return self.per_unit(self.params(), self.synthetic.take(torch.arange(0)), None)

    def of_public_rows(self, params: Params, batch: Examples) -> GradientBatch:
        """Return the gradient of each public example, in pieces; nothing hides their number."""

        def differentiate(rows: Tensor) -> GradientBatch:
            with self.isolation():
                return self.engine.per_unit(params, self._prepared(batch.take(rows)), None)

        rows = torch.arange(len(batch), device=batch.targets.device)
        pieces = torch.split(rows, self.engine.most_at_once(params))
        return ChunkedGradients(tuple(partial(differentiate, piece) for piece in pieces))

    def encoded(self, batch: Examples) -> Examples:
        """Return the batch with features in the form that the engine reads.

        A synthetic row runs in place of one that could not be read, or that the model cannot read.
        It weighs nothing, and no error tells that it was there.
        """
        if batch.absent is not None:
            batch = self._readable(batch, batch.absent)
        return _with_features(batch, self.engine.encoded(batch.features))

    def _readable(self, batch: Examples, absent: Tensor) -> Examples:
        if self.ranges is not None:
            absent = absent | ~self.ranges.hold(batch.features, batch.targets)
        stand_in = self.synthetic.take(torch.arange(1)).to(absent.device)
        features = replaced(batch.features, absent, stand_in.features)
        targets = replaced(batch.targets, absent, stand_in.targets)
        assert isinstance(targets, Tensor)
        return Examples(features, targets, absent=absent)

    def reads(self, features: Features) -> dict[str, Tensor]:
        """Return the rows of each table that these features make the model read."""
        return self.engine.reads(features)

    def tables(self) -> list[str]:
        """Return the names of the parameters of which a batch reads only some rows."""
        return list(self.reads(self.synthetic.features))

    def tables_by_feature(self) -> list[nn.Parameter]:
        """Return the weights of linear layers that sparse rows read one feature at a time."""
        if not isinstance(self.synthetic.features, SparseRows):
            return []
        found = (self.model.get_parameter(name) for name in self.tables())
        layers = {id(m.weight) for m in self.model.modules() if isinstance(m, nn.Linear)}
        return [parameter for parameter in found if id(parameter) in layers]

    def mean_gradient(self, params: Params, batch: Examples) -> Params:
        """Return the ordinary mean gradient, for public data."""
        with self.isolation():
            return self.engine.mean_gradient(params, self._prepared(batch))

    def outputs(self, params: Params, features: Features, chunk: int = 4096) -> Any:
        """Return outputs in evaluation mode, computed in pieces of ``chunk`` rows."""
        device = next(iter(params.values())).device
        rows = torch.split(torch.arange(len(features)), chunk)
        with evaluating(self.model), self.isolation():
            found = (
                self.engine.outputs(params, self.prepare(take(features, part).to(device)))
                for part in rows
            )
            kept = [
                of_examples(outputs, len(part)) for outputs, part in zip(found, rows, strict=True)
            ]
        return joined(kept)

    def prepare(self, features: Features) -> Features:
        """Apply the feature weights, if there are any."""
        if self.feature_weights is None:
            return features
        return reweighed(self.engine.encoded(features), self.feature_weights)

    def _prepared(self, batch: Examples) -> Examples:
        return _with_features(batch, self.prepare(batch.features))


def _with_features(batch: Examples, features: Features) -> Examples:
    return Examples(features, batch.targets, absent=batch.absent)


def predict(model: nn.Module, features: Features, feature_weights: Tensor | None) -> Any:
    """Return the outputs of a trained model, through the feature weights of its training."""
    kind = GhostEngine if reads_in_sequence(model, features) else GeneralEngine
    engine = kind(model, cross_entropy)  # the loss is not used for outputs
    params = {name: parameter.detach() for name, parameter in model.named_parameters()}
    no_rows = Examples(take(features, torch.arange(0)), torch.zeros(0))
    isolation = Isolation(model, cross_entropy, os.urandom)
    return Objective(model, engine, no_rows, isolation, feature_weights).outputs(params, features)


def reweighed(features: Features, weights: Tensor) -> Features:
    """s ∘ x / ‖s ∘ x‖ for every row x; rows of zeros stay zero.

    >>> reweighed(torch.tensor([[3.0, 2.0]]), torch.tensor([1.0, 2.0]))
    tensor([[0.6000, 0.8000]])
    """
    features = one_input(features)
    if isinstance(features, SparseRows):
        values = features.values * weights.to(features.values)[features.columns]
        norms = features.row_sums(values.double().square()).sqrt().to(values.dtype)
        return features.with_values(values / norms.clamp_min(1e-30)[features.rows])
    scaled = features * weights.to(features)
    return torch.nn.functional.normalize(scaled, dim=1, eps=1e-30)


# --- synthetic rows and padding ---


def padding_for(rows: int, multiple: int = ROWS) -> int:
    """Return how many synthetic rows follow this many real ones.

    >>> padding_for(0), padding_for(5), padding_for(16), padding_for(17), padding_for(5, 2)
    (16, 11, 0, 15, 1)
    """
    return -rows % multiple if rows else multiple


def _followed_by(batch: Examples, synthetic: Examples, count: int) -> Examples:
    """The batch and ``count`` synthetic rows after it.

    Sparse synthetic rows have no entries, so that they touch no row of a table.
    """
    if count == 0:
        return batch
    device = synthetic.targets.device
    chosen = torch.arange(count, device=device) % len(synthetic)
    targets = torch.cat([batch.targets, synthetic.targets[chosen].to(batch.targets.device)])
    absent = batch.absent
    if absent is not None:
        absent = torch.cat([absent, absent.new_zeros(count)])
    if isinstance(batch.features, SparseRows):
        return Examples(batch.features.followed_by_empty(count), targets, absent=absent)
    more = synthetic.take(chosen).to(batch.targets.device).features
    if isinstance(batch.features, Fields):
        assert isinstance(more, Fields)
        return Examples(batch.features.followed_by(more), targets, absent=absent)
    assert isinstance(more, Tensor)
    return Examples(torch.cat([batch.features, more]), targets, absent=absent)


# --- the form of a model ---

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


class ModelForm:
    """The modules of a model, their modes, hooks and parameters, and which of these are trained.

    A run compares it with what it was at the start before every step. A parameter that was frozen
    would be trained and noised all the same, one that was replaced or converted would stay as it
    is, and hooks that were added were never tried on synthetic rows; none of that would be seen.

    >>> layer = nn.Linear(2, 1)
    >>> form = ModelForm(layer)
    >>> form.require_same()
    >>> _ = layer.bias.requires_grad_(False)
    >>> form.require_same()
    Traceback (most recent call last):
    adadps.errors.ModelError: Expected the model as it was when the run began, found that ...
    """

    def __init__(self, model: nn.Module) -> None:
        self._everywhere = _hooks_of_all_modules()
        self._alive = list(model.parameters())  # so that no other one gets an identity of theirs
        self._memory = [  # and the memory itself, so that no other one gets its address
            (name, parameter, parameter.detach(), memory)
            for name, parameter in model.named_parameters()
            if parameter.requires_grad and (memory := _memory_of(parameter)) is not None
        ]
        self._modules = [(name, module, _form_of(module)) for name, module in model.named_modules()]

    def require_same(self) -> None:
        """Refuse a model that was changed, other than in the values of its weights."""
        change = next(self._changes(), None)
        if change is not None:
            raise ModelError(
                f"Expected the model as it was when the run began, found that {change}. Undo it, "
                "or finish this run and begin another one on the changed model; both can be paid "
                "from one ledger."
            )

    def _changes(self) -> Iterator[str]:
        if _hooks_of_all_modules() != self._everywhere:
            yield "hooks of all modules were added or removed"
        for name, module, form in self._modules:
            now = _form_of(module)
            if now != form:
                yield from (
                    f"{what.format(described(name))}"
                    for what, one, other in zip(_WHAT, now, form, strict=True)
                    if one != other
                )
        for name, parameter, _, memory in self._memory:
            if _memory_of(parameter) not in (None, memory):
                yield f"'{name}' was put into other memory (`.to(...)`, `.half()`, `.data = ...`)"


_WHAT = (
    "{} was put into another mode, training or evaluation",
    "parts of {} were added, removed or replaced",
    "parameters of {} were frozen, unfrozen or replaced",
    *["hooks of {} were added or removed"] * len(_HOOKS),
)


def _form_of(module: nn.Module) -> list[Any]:
    """Its mode, parts, parameters (by identity: no value is read) and hooks."""
    held = vars(module)
    return [
        held["training"],
        [*map(id, held["_modules"].values())],
        [(id(p), p.requires_grad) for p in held["_parameters"].values() if p is not None],
        *[[*(held.get(name) or ())] for name in _HOOKS],
    ]


def _memory_of(parameter: nn.Parameter) -> int | None:
    """The memory of a parameter, or of its shard; None of a kind that may have another one.

    A table whose noise waits is of such a kind: it takes over what is written to it.
    """
    held = getattr(parameter, "_local_tensor", parameter)
    return held.untyped_storage()._cdata if type(held) in (Tensor, nn.Parameter) else None


def _hooks_of_all_modules() -> list[Any]:
    held = vars(torch.nn.modules.module)
    return [[*held[f"_global{name}"]] for name in _HOOKS]


# --- isolation ---

_WITH_DRAWS = (nn.Dropout, nn.AlphaDropout)


class Isolation:
    """Runs one model with one loss; ``secret`` gives the bytes for the draws inside them."""

    def __init__(
        self, model: nn.Module, loss: Loss, secret: Bytes, *, quotes_errors: bool = False
    ) -> None:
        self._model, self._loss, self._secret = model, loss, secret
        self._quotes_errors = quotes_errors
        self._same_state = SameState(model, loss)
        sequence = LayerSequence.of(model)
        # Layers and losses of these kinds draw nothing and hold nothing, and need no guard.
        self.holds_nothing = sequence is not None and treats_examples_alone(loss)
        self.draws_nothing = self.holds_nothing and not any(
            isinstance(layer, _WITH_DRAWS) for layer in model.modules()
        )

    def drawing_from(self, secret: Bytes, *, quotes_errors: bool) -> Isolation:
        """Return the same with another source of draws, and errors in full for debugging."""
        return Isolation(self._model, self._loss, secret, quotes_errors=quotes_errors)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Surround a pass. Buffers and attributes are restored after it, always and silently."""
        same = nullcontext() if self.holds_nothing else self._same_state()
        with self._secret_draws(), same:
            yield

    def on_private_rows(self, differentiate: Callable[[], Result]) -> Result:
        """Run a pass on private rows without quoting its errors: their texts can hold values."""
        if self._quotes_errors:
            with self():
                return differentiate()
        try:
            with self():
                return differentiate()
        except Exception as error:
            kind = type(error).__name__
        raise ModelError(  # outside of the handler, so that the other error does not come along
            "Expected a model and a loss that run on every row as they do on synthetic rows, found "
            f"{kind} in a step. Its text is not shown, because it might reveal values of a private "
            "row. Check that integer features fit the model's tables and labels the number of its "
            "outputs, and try the model on public rows."
        )

    @contextmanager
    def _secret_draws(self) -> Iterator[None]:
        if self.draws_nothing:
            yield
            return
        with secret_generators(self._secret, _device(self._model)):
            yield


def _device(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))
