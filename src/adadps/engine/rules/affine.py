"""What stages have done to a gradient so far: g ↦ D ∘ g + M, for each parameter.

D is kept as a product of factors that broadcast: a vector by feature and a vector by output stay
two vectors, so that an engine can see that D has rank one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from adadps.tensors.outer_sum import dense
from adadps.tensors.params import Params, Sum
from adadps.tensors.row_sparse import times_


@dataclass(frozen=True)
class LeafMap:
    """The map of one parameter: g ↦ (product of ``factors``) ∘ g + ``offset``."""

    factors: tuple[Tensor, ...] = ()
    offset: Tensor | None = None

    def scaled(self, diagonal: Tensor) -> LeafMap:
        """First this map, then multiplication by ``diagonal``."""
        offset = None if self.offset is None else self.offset * diagonal
        for place, factor in enumerate(self.factors):
            if factor.shape == diagonal.shape:
                merged = factor.double() * diagonal
                factors = (*self.factors[:place], merged, *self.factors[place + 1 :])
                return LeafMap(factors, offset)
        return LeafMap((*self.factors, diagonal), offset)

    def shifted(self, beta: float, mean: Tensor) -> LeafMap:
        """First this map, then g ↦ β g + (1 - β) ``mean``."""
        share = torch.full([1] * mean.ndim, beta, dtype=torch.float64, device=mean.device)
        mixed = self.scaled(share)
        offset = (1 - beta) * mean.double()
        return replace(mixed, offset=offset if mixed.offset is None else mixed.offset + offset)

    def product(self, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """D in float64, in a shape that broadcasts against ``shape``."""
        total = torch.ones([1] * len(shape), dtype=torch.float64, device=device)
        for factor in self.factors:
            total = total * factor
        return total

    def apply_to_sum(self, total: Sum, count: float) -> Sum:
        """D ∘ total + count · M, in place; the kind of ``total`` stays unless there is an M."""
        for factor in self.factors:
            if isinstance(total, Tensor):
                times_(total, factor)
            else:
                total = total.times_(factor)
        return total if self.offset is None else dense(total).add_(self.offset, alpha=count)


@dataclass(frozen=True)
class Affine:
    """One `LeafMap` a parameter; a missing one changes nothing."""

    maps: dict[str, LeafMap] = field(default_factory=dict)

    def of(self, name: str) -> LeafMap:
        """The map of one parameter."""
        return self.maps.get(name, LeafMap())

    def scale(self, diagonal: Params) -> Affine:
        """First this map, then multiplication by ``diagonal``."""
        changed = {name: self.of(name).scaled(value) for name, value in diagonal.items()}
        return Affine(self.maps | changed)

    def shift(self, beta: float, mean: Params) -> Affine:
        """First this map, then g ↦ β g + (1 - β) ``mean``."""
        changed = {name: self.of(name).shifted(beta, value) for name, value in mean.items()}
        return Affine(self.maps | changed)
