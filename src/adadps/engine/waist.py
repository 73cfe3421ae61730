"""The waist: what everything downstream knows about per-unit gradients.

A *unit* is an example, or several that are clipped as one: a group, or what a user brings. Stages
scale and shift the gradient of every unit, ask for exact norms, and take weighted sums. Nobody but
an engine knows how, or whether, the gradients themselves are held.

A unit whose gradient is not finite counts as absent: its norm is 0 and it contributes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor, nn

from adadps.data.examples import Examples, Features
from adadps.engine.loss import Loss
from adadps.tensors.outer_sum import dense
from adadps.tensors.params import Params, Sum, Sums
from adadps.tensors.row_sparse import RowSparse


class GradientBatch(Protocol):
    """Gradients of a batch, one for each unit, transformed but not necessarily materialised."""

    def scale(self, diagonal: Params) -> Self:
        """D ∘ g for every unit; entries of D broadcast against their parameter."""

    def shift(self, beta: float, mean: Params) -> Self:
        """β g + (1 - β) M for every unit."""

    def norms(self) -> Tensor:
        """Exact L2 norm of each unit's transformed gradient, in float64."""

    def weighted_sum(self, weights: Tensor) -> Sums:
        """Σ_i weights_i g_i over the units, in float64; a table of words may stay row-sparse."""

    def parts(self) -> Iterator[GradientBatch]:
        """The batch in pieces that fit in memory, each with whole units."""


@dataclass(frozen=True)
class Units:
    """Which unit each row belongs to.

    Unit u is ``weight`` times the sum of its rows' gradients; without a weight it is their mean.
    """

    labels: Tensor
    count: int
    weight: float | None

    def to(self, device: torch.device) -> Units:
        """The same units on another device."""
        return Units(self.labels.to(device), self.count, self.weight)

    def take(self, rows: Tensor) -> Units:
        """The units of some of the rows."""
        return Units(self.labels[rows], self.count, self.weight)

    def followed_by(self, rows: int) -> Units:
        """The same, followed by ``rows`` more rows that are a unit of their own."""
        if rows == 0:
            return self
        own = self.labels.new_full((rows,), self.count)
        return Units(torch.cat([self.labels, own]), self.count + 1, self.weight)

    def row_weights(self) -> Tensor:
        """How much each row counts in its unit, in float64."""
        ones = torch.ones_like(self.labels, dtype=torch.float64)
        return ones / self.sums(ones)[self.labels] if self.weight is None else ones * self.weight

    def sums(self, rows: Tensor) -> Tensor:
        """Add up rows by unit."""
        return rows.new_zeros(self.count, *rows.shape[1:]).index_add_(0, self.labels, rows)

    def present(self, finite: Tensor) -> Tensor:
        """The units that have rows, all of them finite.

        A unit without rows must be absent: if it still contributed a public shift M, the first
        example of an otherwise empty batch would bring the shifts of all groups with it.
        """
        return (self.sums((~finite).long()) == 0) & (self.sums(torch.ones_like(finite).long()) > 0)


class Engine(Protocol):
    """Differentiates one model with one loss."""

    model: nn.Module
    loss: Loss

    def per_unit(
        self, params: Params, batch: Examples, units: Units | None, synthetic: int = 0
    ) -> GradientBatch:
        """Gradients of the loss at ``params``, one per unit; without ``units``, one per row.

        The last ``synthetic`` rows of the batch are padding (`adadps.engine.passes.synthetic`):
        they run with the others, belong to no unit, weigh nothing and touch no row of a table.
        """

    def mean_gradient(self, params: Params, batch: Examples) -> Params:
        """Ordinary mean gradient, for public data."""

    def outputs(self, params: Params, features: Features) -> Tensor:
        """The model's outputs, without gradient."""

    def encoded(self, features: Features) -> Features:
        """The features in the form that this engine reads, so that it is made only once."""

    def most_at_once(self, params: Params) -> int:
        """How many examples can be differentiated at once in a modest amount of memory."""

    def reads(self, features: Features) -> dict[str, Tensor]:
        """Rows that these features make the model read, where it is not all of a parameter."""


def reduce(batch: GradientBatch, weigh: Callable[[Tensor], Tensor]) -> Sums | None:
    """Σ_i weigh(norm_i) g_i, piece by piece; None for an empty batch."""
    total: Sums | None = None
    for part in batch.parts():
        total = added(total, part.weighted_sum(weigh(part.norms())))
    return total


def added(total: Sums | None, summed: Sums) -> Sums:
    """``total`` + ``summed``; the tensors of ``total`` may be overwritten."""
    if total is None:
        return summed
    return {name: _plus(value, summed[name]) for name, value in total.items()}


def _plus(total: Sum, other: Sum) -> Sum:
    if isinstance(total, RowSparse) and isinstance(other, RowSparse):
        return total + other
    return dense(total).add_(dense(other))


def zeros_like(params: Params) -> Sums:
    """The sum over an empty batch."""
    return {name: torch.zeros_like(value, dtype=torch.float64) for name, value in params.items()}


def clip_weights(norms: Tensor, clip_norm: float) -> Tensor:
    """min(1, C / ‖g_i‖), with weight 1 for a zero gradient and 0 for a norm that is no number.

    >>> clip_weights(torch.tensor([0.0, 1.0, 4.0]), 2.0)
    tensor([1.0000, 1.0000, 0.5000])
    """
    small = norms <= clip_norm  # false for NaN: what cannot be measured is not added
    return torch.where(small, 1.0, torch.nan_to_num(clip_norm / norms, nan=0.0))
