"""Per-unit gradients of a whole model, held parameter by parameter.

Stages transform a gradient by g ↦ D ∘ g + M, for each parameter. D is a product of factors that
broadcast: a vector by feature and a vector by output stay two vectors, so that an engine can see
that D has rank one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import torch
from torch import Tensor
from torch.nn import functional

from adadps.engine.waist import Units
from adadps.tensors.squares import CANCELLED, DOUBLE, sums_of_squares, weighted_rows
from adadps.tensors.sums import (
    OuterSum,
    Params,
    RowSparse,
    SinglePrecision,
    Sum,
    Sums,
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


class OneProduct:
    """Marks gradients that are one outer product per example: rounding in their sum has a bound.

    In a sum over positions, terms that are much larger than the gradient can cancel.
    """

    is_wide: bool
    """Is the parameter in float32, and so large that its sums take time?"""


@dataclass(frozen=True)
class LayeredGradients:
    """A `PerExampleGradients` per parameter, and the maps that stages have applied to them.

    The last ``padding`` units are synthetic: they are absent, and no result contains them. With
    ``single``, wide layers are summed in float32, and norms are raised by what that costs; ``rows``
    is the size of the whole batch, of which this may be a piece.
    """

    leaves: Mapping[str, PerExampleGradients]
    present: Tensor
    units: Units | None = None
    affine: Affine = field(default_factory=Affine)
    padding: int = 0
    single: SinglePrecision | None = None
    rows: int = 0

    def scale(self, diagonal: Params) -> LayeredGradients:
        """D ∘ g."""
        return replace(self, affine=self.affine.scale(diagonal))

    def shift(self, beta: float, mean: Params) -> LayeredGradients:
        """β g + (1 - β) M."""
        return replace(self, affine=self.affine.shift(beta, mean))

    def in_single(self, single: SinglePrecision, rows: int) -> LayeredGradients:
        """Return the same, with sums of wide layers in float32; the whole batch has ``rows``."""
        return replace(self, single=single, rows=rows)

    def parts(self) -> Iterator[LayeredGradients]:
        """Yield the batch itself."""
        yield self

    def norms(self) -> Tensor:
        """‖D ∘ g_i + M‖ over all parameters, in float64."""
        real = slice(0, len(self.present) - self.padding)
        if self.units is not None:
            return self._norms_of_groups(self.units)[real]
        squares = torch.zeros_like(self.present, dtype=torch.float64)
        for name, leaf in self.leaves.items():
            squares += leaf.squares(self.affine.of(name))
        return torch.where(self.present, squares, 0).clamp_min(0).sqrt()[real] * (1 + self.charge)

    def weighted_sum(self, weights: Tensor) -> Sums:
        """Σ_i w_i (D ∘ g_i + M)."""
        every = functional.pad(weights.double(), (0, self.padding))
        masked = torch.where(self.present, every, 0)
        of_row = masked
        if self.units is not None:
            of_row = masked[self.units.labels] * self.units.row_weights()
        count = float(masked.sum())
        return {
            name: self.affine.of(name).apply_to_sum(self._summed(name, of_row), count)
            for name in self.leaves
        }

    @property
    def charge(self) -> float:
        """The share of every norm that is added for the rounding of sums in float32.

        It depends on public quantities alone: the sizes of layers and the expected batch size.
        """
        if self.single is None or not any(self._in_single(name) for name in self.leaves):
            return 0.0
        return self.single.charge

    def _in_single(self, name: str) -> bool:
        """Is this parameter summed in float32, as far as public quantities tell?

        A shift M and the members of a unit can cancel: there the terms of a sum have no bound.
        """
        leaf = self.leaves[name]
        if self.single is None or self.units is not None or not isinstance(leaf, OneProduct):
            return False
        return leaf.is_wide and self.affine.of(name).offset is None

    def _summed(self, name: str, weights: Tensor) -> Sum:
        total = self.leaves[name].weighted(weights)
        if isinstance(total, OuterSum) and self.single is not None and self._in_single(name):
            total.terms_in_single = self.single.terms_for(self.rows, weights.device)
        return total

    def _norms_of_groups(self, units: Units) -> Tensor:
        """Build the gradient of one group at a time and measure it."""
        norms = torch.zeros_like(self.present, dtype=torch.float64)
        of_row = units.row_weights()
        for unit in torch.nonzero(self.present).flatten().tolist():
            rows = torch.nonzero(units.labels == unit).squeeze(1)
            members = {name: leaf.take(rows) for name, leaf in self.leaves.items()}
            weights = of_row[rows]
            squares = [self._square(name, leaf.weighted(weights)) for name, leaf in members.items()]
            norms[unit] = torch.stack(squares).sum().sqrt()
            norms[unit] += CANCELLED * (weights * self._sizes(members, len(rows))).sum()
        return norms

    def _sizes(self, members: Mapping[str, PerExampleGradients], count: int) -> Tensor:
        """The norms of the members of a group, which can cancel in their sum."""
        squares = torch.zeros(count, dtype=torch.float64, device=self.present.device)
        for name, leaf in members.items():
            squares += leaf.squares(replace(self.affine.of(name), offset=None))
        return squares.sqrt()

    def _square(self, name: str, total: Sum) -> Tensor:
        mapped = self.affine.of(name).apply_to_sum(total, 1.0)
        values = mapped.values if isinstance(mapped, RowSparse) else dense(mapped)
        return values.square().sum()


def layered(
    leaves: Mapping[str, PerExampleGradients], finite: Tensor, units: Units | None, synthetic: int
) -> LayeredGradients:
    """Return gradients of rows of which the last ``synthetic`` are padding, and absent."""
    if units is not None:
        padded = units.followed_by(synthetic)
        present = padded.present(finite)
        present[units.count :] = False
        return LayeredGradients(leaves, present, padded, padding=padded.count - units.count)
    real = torch.arange(len(finite), device=finite.device) < len(finite) - synthetic
    return LayeredGradients(leaves, finite & real, padding=synthetic)


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
