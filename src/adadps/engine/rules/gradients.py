"""Per-unit gradients of a whole model, held parameter by parameter.

Stages transform a gradient by g ↦ D ∘ g + M, for each parameter. D is a product of factors that
broadcast: a vector by feature and a vector by output stay two vectors, so that an engine can see
that D has rank one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import torch
from torch import Tensor

from adadps.tensors.squares import CANCELLED, DOUBLE, sums_of_squares, weighted_rows
from adadps.tensors.sums import (
    Params,
    Sum,
    dense,
    times_,
)


@dataclass(frozen=True)
class LeafMap:
    """The map of one parameter: g ↦ (product of ``factors``) ∘ g + ``offset``."""

    factors: tuple[Tensor, ...] = ()
    offset: Tensor | None = None

    def scaled(self, diagonal: Tensor) -> LeafMap:
        """Return this map followed by multiplication by ``diagonal``."""
        offset = None if self.offset is None else self.offset * diagonal
        for place, factor in enumerate(self.factors):
            if factor.shape == diagonal.shape:
                merged = factor.double() * diagonal
                factors = (*self.factors[:place], merged, *self.factors[place + 1 :])
                return LeafMap(factors, offset)
        return LeafMap((*self.factors, diagonal), offset)

    def shifted(self, beta: float, mean: Tensor) -> LeafMap:
        """Return this map followed by g ↦ β g + (1 - β) ``mean``."""
        share = torch.full([1] * mean.ndim, beta, dtype=torch.float64, device=mean.device)
        mixed = self.scaled(share)
        offset = (1 - beta) * mean.double()
        return replace(mixed, offset=offset if mixed.offset is None else mixed.offset + offset)

    def product(self, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Return D in float64, in a shape that broadcasts against ``shape``."""
        total = torch.ones([1] * len(shape), dtype=torch.float64, device=device)
        for factor in self.factors:
            total = total * factor
        return total

    def apply(self, gradients: Tensor) -> Tensor:
        """Return D ∘ g + M for every g along the first axis."""
        for factor in self.factors:
            gradients = gradients * factor
        return gradients if self.offset is None else gradients + self.offset

    def apply_to_sum(self, total: Sum, count: float) -> Sum:
        """D ∘ total + count · M, in place; without an M, ``total`` stays of the same kind."""
        for factor in self.factors:
            if isinstance(total, Tensor):
                times_(total, factor)
            else:
                total = total.times_(factor)
        return total if self.offset is None else dense(total).add_(self.offset, alpha=count)


@dataclass(frozen=True)
class Affine:
    """One `LeafMap` per parameter; a missing one is the identity."""

    maps: dict[str, LeafMap] = field(default_factory=dict)

    def of(self, name: str) -> LeafMap:
        """Return the map of one parameter."""
        return self.maps.get(name, LeafMap())

    def scale(self, diagonal: Params) -> Affine:
        """Return these maps followed by multiplication by ``diagonal``."""
        changed = {name: self.of(name).scaled(value) for name, value in diagonal.items()}
        return Affine(self.maps | changed)

    def shift(self, beta: float, mean: Params) -> Affine:
        """Return these maps followed by g ↦ β g + (1 - β) ``mean``."""
        changed = {name: self.of(name).shifted(beta, value) for name, value in mean.items()}
        return Affine(self.maps | changed)


class PerExampleGradients(Protocol):
    """One parameter's gradients, one per example, in whatever form is cheapest.

    All results are in float64. A computed square may be too large by rounding, never too small.
    """

    def squares(self, leaf_map: LeafMap) -> Tensor:
        """‖D ∘ g_i + M‖² for every example."""

    def weighted(self, weights: Tensor) -> Sum:
        """Σ_i w_i g_i, without D and M, in newly allocated memory."""

    def take(self, rows: Tensor) -> Self:
        """The gradients of some of the examples."""


class OneProduct(ABC):
    """Marks gradients that are one outer product per example: rounding in their sum has a bound.

    In a sum over positions, terms that are much larger than the gradient can cancel.
    """

    @property
    @abstractmethod
    def is_wide(self) -> bool:
        """Is the parameter in float32, and so large that its sums take time?"""


@dataclass(frozen=True)
class MaterialisedGradients:
    """One stored gradient per example: simple, general, and large."""

    gradients: Tensor

    def squares(self, leaf_map: LeafMap) -> Tensor:
        """Measure the gradients themselves."""
        size, shape = len(self.gradients), tuple(self.gradients.shape[1:])
        if leaf_map.offset is None:
            factors = None
            if leaf_map.factors:
                diagonal = leaf_map.product(shape, self.gradients.device)
                factors = diagonal.expand(shape).reshape(1, -1)
            flat = self.gradients.reshape(size, -1)
            return sums_of_squares(flat, factors) * (1 + DOUBLE * (flat.shape[1] + 16))
        scaled = replace(leaf_map, offset=None).apply(self.gradients.double())
        exact = torch.linalg.vector_norm((scaled + leaf_map.offset).reshape(size, -1), dim=1)
        terms = torch.linalg.vector_norm(scaled.reshape(size, -1), dim=1)
        raised: Tensor = exact + 64 * DOUBLE * (terms + torch.linalg.vector_norm(leaf_map.offset))
        return raised.square()

    def weighted(self, weights: Tensor) -> Tensor:
        """Σ_i w_i g_i."""
        return weighted_rows(self.gradients, weights)

    def finite(self) -> Tensor:
        """Mark the examples whose gradient is finite."""
        return finite_rows(self.gradients)

    def where(self, present: Tensor) -> MaterialisedGradients:
        """Return the same gradients, with zeros for examples that are not ``present``."""
        shaped = present.view(-1, *[1] * (self.gradients.ndim - 1))
        return MaterialisedGradients(torch.where(shaped, self.gradients, 0))

    def take(self, rows: Tensor) -> MaterialisedGradients:
        """Return the gradients of some of the examples."""
        return MaterialisedGradients(self.gradients[rows])


@dataclass(frozen=True)
class TiedGradients:
    """A parameter with several uses in the model, e.g. an embedding tied to an output layer.

    Its gradient is the sum over its uses, built for one example at a time.
    """

    uses: tuple[PerExampleGradients, ...]
    size: int

    def squares(self, leaf_map: LeafMap) -> Tensor:
        """Add up the uses of each example, and measure the sum."""
        found = [self._square(example, leaf_map) for example in range(self.size)]
        return torch.stack(found)

    def weighted(self, weights: Tensor) -> Tensor:
        """Σ_i w_i g_i over all uses."""
        first, *others = (dense(use.weighted(weights)) for use in self.uses)
        for other in others:
            first.add_(other)
        return first

    def take(self, rows: Tensor) -> TiedGradients:
        """Return the gradients of some of the examples."""
        return TiedGradients(tuple(use.take(rows) for use in self.uses), len(rows))

    def _square(self, example: int, leaf_map: LeafMap) -> Tensor:
        terms = []
        for use in self.uses:
            alone = use.take(torch.tensor([example]))
            terms.append(dense(alone.weighted(torch.ones(1, dtype=torch.float64))))
        diagonal = leaf_map.product(tuple(terms[0].shape), terms[0].device)
        sizes = [torch.linalg.vector_norm(diagonal * term) for term in terms]
        total = torch.linalg.vector_norm(leaf_map.apply(torch.stack(terms).sum(0)))
        square: Tensor = (total + CANCELLED * torch.stack(sizes).sum()).square()
        return square


def finite_rows(values: Tensor) -> Tensor:
    """Mark the rows that are finite; one fast pass if all are: a finite sum has finite terms."""
    if not values.is_floating_point() or bool(torch.isfinite(values.sum())):
        return torch.ones(len(values), dtype=torch.bool, device=values.device)
    return torch.isfinite(values).flatten(1).all(1) if values.ndim > 1 else torch.isfinite(values)
