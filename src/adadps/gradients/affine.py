"""What stages have done to a gradient so far: g ↦ D ∘ g + M, for each parameter.

D is kept as a product of factors that broadcast: a vector by feature and a vector by output stay
two vectors, so that an engine can see that D has rank one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from adadps.row_sparse import RowSparse, times_
from adadps.types import Params


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

    def apply_to_sum(self, total: Tensor | RowSparse, count: float) -> Tensor | RowSparse:
        """D ∘ total + count · M, in place; a row-sparse total stays so unless there is an M."""
        if isinstance(total, RowSparse):
            for factor in self.factors:
                total = total.times_(factor)
            if self.offset is None:
                return total
            total = total.to_dense()
        else:
            for factor in self.factors:
                times_(total, factor)
        return total if self.offset is None else total.add_(self.offset, alpha=count)


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
