"""The waist: what everything downstream knows about per-unit gradients.

A *unit* is an example, or a group of examples that is clipped as one. Stages scale and shift the
gradient of every unit, ask for exact norms, and take weighted sums. Nobody but an engine knows how,
or whether, the gradients themselves are held.

A unit whose gradient is not finite counts as absent: its norm is 0 and it contributes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor

from adadps.data.examples import Examples, Features
from adadps.types import Params


class GradientBatch(Protocol):
    """Gradients of a batch, one for each unit, transformed but not necessarily materialised."""

    def scale(self, diagonal: Params) -> Self:
        """D ∘ g for every unit; entries of D broadcast against their parameter."""

    def shift(self, beta: float, mean: Params) -> Self:
        """β g + (1 - β) M for every unit."""

    def norms(self) -> Tensor:
        """Exact L2 norm of each unit's transformed gradient, in float64."""

    def weighted_sum(self, weights: Tensor) -> Params:
        """Σ_i weights_i g_i over the units, in float64."""

    def parts(self) -> Iterator[GradientBatch]:
        """The batch in pieces that fit in memory, each with whole units."""


@dataclass(frozen=True)
class Units:
    """Which unit each row belongs to: unit u is ``weight`` times the sum of its rows' gradients."""

    labels: Tensor
    count: int
    weight: float

    def to(self, device: torch.device) -> Units:
        """The same units on another device."""
        return Units(self.labels.to(device), self.count, self.weight)

    def take(self, rows: Tensor) -> Units:
        """The units of some of the rows."""
        return Units(self.labels[rows], self.count, self.weight)

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

    def per_unit(self, params: Params, batch: Examples, units: Units | None) -> GradientBatch:
        """Gradients of the loss at ``params``, one a unit; without ``units``, one a row."""

    def mean_gradient(self, params: Params, batch: Examples) -> Params:
        """Ordinary mean gradient, for public data."""

    def outputs(self, params: Params, features: Features) -> Tensor:
        """The model's outputs, without gradient."""


def reduce(batch: GradientBatch, weigh: Callable[[Tensor], Tensor]) -> Params | None:
    """Σ_i weigh(norm_i) g_i, piece by piece; None for an empty batch."""
    total: Params | None = None
    for part in batch.parts():
        summed = part.weighted_sum(weigh(part.norms()))
        total = summed if total is None else {name: total[name] + summed[name] for name in total}
    return total


def clip_weights(norms: Tensor, clip_norm: float) -> Tensor:
    """min(1, C / ‖g_i‖), with weight 1 for a zero gradient and 0 for a norm that is no number.

    >>> clip_weights(torch.tensor([0.0, 1.0, 4.0]), 2.0)
    tensor([1.0000, 1.0000, 0.5000])
    """
    small = norms <= clip_norm  # false for NaN: what cannot be measured is not added
    return torch.where(small, 1.0, torch.nan_to_num(clip_norm / norms, nan=0.0))
