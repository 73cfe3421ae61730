"""The waist: all that engines, stages and weights know of one another; clip, noise and weights.

An *engine* gives per-unit gradients as a `GradientBatch`. A *unit* is an example, or several
examples that are clipped as one: a group, or the rows of a user. Stages scale and shift the
gradient of every unit, ask for exact norms, and take weighted sums. Only an engine knows how, or
whether, the gradients themselves are stored. A unit whose gradient is not finite counts as absent:
its norm is 0 and it contributes nothing.

Stages see a *step* (`Step`) and turn the clipped sum into an `Update` of the weights. An update may
leave its noise to be drawn later (`NoisySum`), by the weights that it is added to. Learning rates,
mixing weights and decays may be a `Schedule`: a public function of the number of the step.

`Weights` cannot be read without their noise. A table of words of which each batch reads only some
rows draws its noise late (`adadps.engine.noise.late`); all other parameters are noised at every
step. Reads are: the run's own forward passes (of the rows they need), public gradients,
evaluations, `state_dict`, a copy, a raw ``model.weight``. Each read draws the outstanding noise in
place, so that nothing is drawn twice and nobody sees weights without noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from adadps.data.examples import Examples, PublicExamples
from adadps.data.fields import Features
from adadps.data.provenance import digest_of
from adadps.engine.group import ALONE, Group, refuse_read_alone
from adadps.engine.losses import Loss
from adadps.engine.moments import Moments
from adadps.engine.noise.late import DIGITS, LateRows
from adadps.engine.noise.late_parameter import can_be_late, hidden, make_late, make_plain, published
from adadps.errors import ContractError
from adadps.tensors.sums import (
    OuterSum,
    Params,
    RowSparse,
    SinglePrecision,
    Sum,
    Sums,
    dense,
)


class GradientBatch(Protocol):
    """The gradients of a batch, one per unit, transformed but not necessarily materialised."""

    def scale(self, diagonal: Params) -> Self:
        """D ∘ g for every unit; entries of D broadcast against their parameter."""

    def shift(self, beta: float, mean: Params) -> Self:
        """β g + (1 - β) M for every unit."""

    def whiten(self, inputs: Params, outputs: Params) -> Self:
        """Q g P for every unit: matrices along the inputs and outputs of layers, by weight."""

    def norms(self) -> Tensor:
        """Exact L2 norm of each unit's transformed gradient, in float64."""

    def weighted_sum(self, weights: Tensor) -> Sums:
        """Σ_i weights_i g_i over the units, in float64; a table of words may stay row-sparse."""

    def moments(self) -> Moments:
        """Second moments of what layers read and write, summed over the rows; for public rows."""

    def parts(self) -> Iterator[GradientBatch]:
        """The batch in pieces that fit in memory, each with whole units."""


class Differentiated(GradientBatch, Protocol):
    """The gradients of one physical batch, as an engine gives them."""

    def in_single(self, single: SinglePrecision, rows: int) -> Self:
        """The same, with sums of wide layers in float32; ``rows`` is the whole batch's size."""


@dataclass(frozen=True)
class Units:
    """Which unit each row belongs to.

    Unit u is ``weight`` times the sum of its rows' gradients; without a weight it is their mean.
    """

    labels: Tensor
    count: int
    weight: float | None

    def to(self, device: torch.device) -> Units:
        """Return the same units on another device."""
        return Units(self.labels.to(device), self.count, self.weight)

    def take(self, rows: Tensor) -> Units:
        """Return the units of some of the rows."""
        return Units(self.labels[rows], self.count, self.weight)

    def followed_by(self, rows: int) -> Units:
        """Return the same units, followed by one more unit of ``rows`` rows."""
        if rows == 0:
            return self
        own = self.labels.new_full((rows,), self.count)
        return Units(torch.cat([self.labels, own]), self.count + 1, self.weight)

    def row_weights(self) -> Tensor:
        """Return the weight of each row in its unit, in float64."""
        ones = torch.ones_like(self.labels, dtype=torch.float64)
        return ones / self.sums(ones)[self.labels] if self.weight is None else ones * self.weight

    def sums(self, rows: Tensor) -> Tensor:
        """Add up rows by unit."""
        return rows.new_zeros(self.count, *rows.shape[1:]).index_add_(0, self.labels, rows)

    def present(self, finite: Tensor) -> Tensor:
        """Mark the units that have rows, all of them finite.

        A unit without rows must be absent: if it still contributed a public shift M, the first
        example of an otherwise empty batch would bring the shifts of all groups with it.
        """
        return (self.sums((~finite).long()) == 0) & (self.sums(torch.ones_like(finite).long()) > 0)


class Engine(Protocol):
    """Differentiates one model with one loss."""

    model: nn.Module
    loss: Loss

    @property
    def stored(self) -> frozenset[str]:
        """The names of parameters whose gradients are stored for every example."""

    def per_unit(
        self, params: Params, batch: Examples, units: Units | None, synthetic: int = 0
    ) -> Differentiated:
        """Gradients of the loss at ``params``, one per unit; without ``units``, one per row.

        The last ``synthetic`` rows of the batch are padding (`adadps.engine.objective`):
        they run with the others, belong to no unit, weigh nothing and touch no row of a table.
        """

    def mean_gradient(self, params: Params, batch: Examples) -> Params:
        """Ordinary mean gradient, for public data."""

    def outputs(self, params: Params, features: Features) -> Any:
        """The model's outputs, without gradient."""

    def encoded(self, features: Features) -> Features:
        """The features in the form that this engine reads, so that it is made only once."""

    def most_at_once(self, params: Params) -> int:
        """How many examples can be differentiated at once in a modest amount of memory."""

    def reads(self, features: Features) -> dict[str, Tensor]:
        """The rows of each table that these features make the model read.

        Parameters of which everything is read are left out.
        """


# --- from per-unit gradients to a clipped sum ---


def reduce(batch: GradientBatch, weigh: Callable[[Tensor], Tensor]) -> Sums | None:
    """Return Σ_i weigh(norm_i) g_i, summed piece by piece; None for an empty batch."""
    total: Sums | None = None
    for part in batch.parts():
        total = added(total, part.weighted_sum(weigh(part.norms())))
    return total


def added(total: Sums | None, summed: Sums) -> Sums:
    """Return ``total`` + ``summed``; the tensors of ``total`` may be overwritten."""
    if total is None:
        return summed
    return {name: _plus(value, summed[name]) for name, value in total.items()}


def _plus(total: Sum, other: Sum) -> Sum:
    if isinstance(total, RowSparse) and isinstance(other, RowSparse):
        return total + other
    return dense(total).add_(dense(other))


def zeros_like(params: Params) -> Sums:
    """Return the sum over an empty batch."""
    return {name: torch.zeros_like(value, dtype=torch.float64) for name, value in params.items()}


def clip_weights(norms: Tensor, clip_norm: float) -> Tensor:
    """min(1, C / ‖g_i‖), with weight 1 for a zero gradient and 0 for a norm that is NaN.

    >>> clip_weights(torch.tensor([0.0, 1.0, 4.0]), 2.0)
    tensor([1.0000, 1.0000, 0.5000])
    """
    small = norms <= clip_norm  # false for NaN: what cannot be measured is not added
    return torch.where(small, 1.0, torch.nan_to_num(clip_norm / norms, nan=0.0))


# --- from a clipped sum to an update of the weights ---


class Noise(Protocol):
    """Where a stage gets its privacy noise from."""

    def release(
        self,
        total: Tensor,
        *,
        standard_deviation: float | Tensor,
        grid_width: float | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Return ``total`` plus Gaussian noise, on the public grid."""

    def draw(self, count: int, use: Callable[[int, Any], object]) -> None:
        """Pass ``count`` fresh normals to ``use(start, values)``, piece by piece."""

    def release_into(
        self,
        changes: Sequence[tuple[Tensor, Tensor | OuterSum]],
        *,
        standard_deviation: float,
        factor: float,
    ) -> None:
        """Add ``factor`` times the released total to the weights in place, for all pairs."""


@dataclass(frozen=True)
class NoisySum:
    """``factor`` · (``total`` + N(0, ``deviation``²)) whose noise is not drawn yet.

    It can only be multiplied by a number. The weights that it is added to draw the noise.
    """

    total: Sum
    deviation: float
    factor: float = 1.0

    def __mul__(self, factor: float) -> NoisySum:
        return replace(self, factor=self.factor * factor)

    __rmul__ = __mul__

    def __truediv__(self, divisor: float) -> NoisySum:
        return replace(self, factor=self.factor / divisor)


Leaf = Tensor | RowSparse | NoisySum
"""What one parameter's part of an update can be."""


class Update(dict[str, Leaf]):
    """What is added to each weight, after it was multiplied by ``keep`` (1 minus its decay)."""

    keep: float = 1.0


class ReleasedGradient(dict[str, Leaf]):
    """A sum over the units divided by their expected number, as it comes from its release.

    ``deviation`` is the standard deviation of the noise in each of its entries. What a later stage
    makes of it is a plain dictionary, in which nobody knows the noise any more.
    """

    deviation: float = 0.0


def _no_public_rows(_rows: Examples) -> GradientBatch:
    raise ContractError("Expected a method without public gradients, found one that needs them.")


@dataclass(frozen=True)
class Step:
    """What a stage may know about the step that it takes part in.

    ``mean_gradient`` is the model's ordinary gradient on public examples at the current weights,
    and ``differentiate`` gives the gradient of each of them.
    ``watch`` receives un-noised facts about private data; it does nothing outside of debugging.
    ``late`` allows noise to be drawn later and sums to stay row-sparse. ``answers`` is the number
    of answers from devices outside of this process; None if all gradients are computed in it.
    ``applied`` holds D of the preconditioners before the clip, by the identity of their source.
    ``group`` holds the processes that take the step together.
    """

    index: int
    expected_size: float
    noise: Noise
    mean_gradient: Callable[[PublicExamples], Params]
    watch: Callable[[str, Tensor], None] = lambda _name, _value: None
    late: bool = False
    answers: int | None = None
    differentiate: Callable[[Examples], GradientBatch] = _no_public_rows
    applied: dict[int, Params] = field(default_factory=dict, repr=False)
    group: Group = ALONE
    _public: dict[int, Params] = field(default_factory=dict, repr=False)

    def sum(self, batch: GradientBatch, weigh: Callable[[Tensor], Tensor], params: Params) -> Sums:
        """Return Σ_i weigh(norm_i) g_i over the batches of all processes, which may be empty."""
        if self.group.is_sharded:
            return self.group.sum_of(p.weighted_sum(weigh(p.norms())) for p in batch.parts())
        total = reduce(batch, weigh) or zeros_like(params)
        return total if self.group.is_alone else self.group.sum(total)

    def release(self, total: Sum, deviation: float) -> Leaf:
        """Return ``total`` plus Gaussian noise, drawn now or later."""
        if self.late and deviation > 0:
            return NoisySum(total, deviation)
        if self.late:
            return dense(total) if isinstance(total, OuterSum) else total
        return self.noise.release(dense(total), standard_deviation=deviation)

    def public_gradient(self, public: PublicExamples) -> Params:
        """Return the mean gradient on this step's batch of ``public``, computed once per step."""
        if id(public) not in self._public:
            self._public[id(public)] = self.mean_gradient(public.batch(self.index))
        return self._public[id(public)]


Schedule = float | Callable[[int], float]
"""A constant, or a function of the step t = 1, 2, 3, ..."""


def at(schedule: Schedule, index: int) -> float:
    """Return the value of a schedule at step ``index``.

    >>> at(0.5, 7), at(lambda t: 1 / t, 4)
    (0.5, 0.25)
    """
    return float(schedule(index)) if callable(schedule) else float(schedule)


class Weights:
    """A model's trainable parameters, changed in place."""

    def __init__(
        self, model: nn.Module, params: Params, noise: Noise, group: Group = ALONE
    ) -> None:
        self._model, self._params, self._noise, self._group = model, params, noise, group
        self._late: dict[str, LateRows] = {}
        self._eager: set[str] = set()  # tables that get all their noise at every step

    def read(self, rows: Mapping[str, Tensor] | None = None) -> Params:
        """Return all parameters, noised; of a table in ``rows``, only those rows surely are."""
        wanted = rows or {}
        if wanted and self._late and not self._group.is_alone:
            # All processes settle the same rows: a row that only one of them noised would differ.
            asked = {name: wanted[name] for name in self._late if name in wanted}
            wanted = {**wanted, **self._group.union(asked)}
        for name, table in self._late.items():
            with hidden(self._model.get_parameter(name)):
                table.settle(wanted.get(name))
        return self._params

    def published(self) -> Params:
        """Return all parameters, noised, in memory of the model that no later step changes.

        The tensors that `read` returns move row by row, and which row moves depends on the data.
        """
        late = {name: published(self._model.get_parameter(name)) for name in self._late}
        return {**self._params, **late}

    def apply(self, update: Update, partly_read: Iterable[str]) -> None:
        """Change all weights; tables that are ``partly_read`` may draw their noise later."""
        with ExitStack() as stack:
            for name in self._late:
                stack.enter_context(hidden(self._model.get_parameter(name)))
            self._apply(update, set(partly_read))

    def _apply(self, update: Update, late: set[str]) -> None:
        now: dict[tuple[float, float], list[tuple[Tensor, Tensor | OuterSum]]] = {}
        for name, leaf in update.items():
            if name in late and self._apply_late(name, leaf, update.keep):
                continue
            weights = self._settled(name)
            if update.keep != 1:
                weights.mul_(update.keep)
            if isinstance(leaf, NoisySum):
                total = leaf.total.to_dense() if isinstance(leaf.total, RowSparse) else leaf.total
                now.setdefault((leaf.deviation, leaf.factor), []).append((weights, total))
            elif isinstance(leaf, RowSparse):
                rows_first = weights.movedim(leaf.axis, 0)
                rows_first.index_add_(0, leaf.rows, leaf.values.to(weights.dtype))
            else:
                weights.add_(leaf.to(weights.dtype))
        for (deviation, factor), changes in now.items():
            self._noise.release_into(changes, standard_deviation=deviation, factor=factor)

    def digest(self) -> str:
        """Hash the weights as they are held, without noise that waits for a read."""
        return digest_of(self._params.values())

    def hand_over(self) -> None:
        """Draw all outstanding noise and give the model its plain parameters back."""
        for name in self._late:
            self._params[name] = make_plain(self._model.get_parameter(name))
        self._late.clear()

    def _settled(self, name: str) -> Tensor:
        if name in self._late:
            self._late[name].settle()
        return self._params[name]

    def _apply_late(self, name: str, leaf: Leaf, keep: float) -> bool:
        """Leave the noise of a change for later, if the change and the table allow it."""
        noised = leaf if isinstance(leaf, NoisySum) else None
        change = noised.total if noised else leaf
        if not isinstance(change, RowSparse):
            return False
        factor, deviation = (noised.factor, noised.deviation) if noised else (1.0, 0.0)
        deviation *= abs(factor)
        table = self._late_table(name, change.axis, deviation)
        if table is None:
            return False
        with hidden(self._model.get_parameter(name)):
            table.add(change, factor=factor, deviation=deviation, keep=keep)
        return True

    def _late_table(self, name: str, axis: int, deviation: float) -> LateRows | None:
        """The table, if it may draw noise of this deviation later.

        It may not if its weights are of another class than torch's own, of a type with few bits, or
        so large beside the noise that reading would round them (`LateRows.can_hold`).
        """
        parameter = self._model.get_parameter(name)
        exact = self._params[name].dtype in DIGITS
        if name in self._eager or not (exact and can_be_late(parameter)):
            return None
        if name not in self._late:
            refuse = None if self._group.is_alone else partial(refuse_read_alone, self._group)
            settle = partial(_settle, self._late, name)
            self._params[name] = make_late(parameter, settle, refuse)
            self._late[name] = LateRows(self._params[name], axis, self._noise)
        with hidden(parameter):
            if self._late[name].can_hold(deviation):
                return self._late[name]
        self._params[name] = make_plain(parameter)
        del self._late[name]
        self._eager.add(name)
        return None


def _settle(late: Mapping[str, LateRows], name: str) -> None:
    if name in late:
        late[name].settle()
