"""Gradients that are built a few examples at a time, by one layer at a time.

Where an example's gradient is a sum over many positions, Σ_t b_t a_tᵀ, building it costs less than
any closed form. It is built in the precision of the model, measured in float64, and added up in
float64: what is measured is exactly what is added, so that rounding while building cannot make a
clipped gradient longer than C.

Gradients that fit in memory are kept between norms and sums; others are built twice, bit by bit in
the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from adadps.engine.rules.gradients import LeafMap, MaterialisedGradients
from adadps.tensors.squares import largest_of_rows

AT_ONCE = 2**22
"""This many numbers are built at once."""

KEPT = 2**26
"""This many numbers of a batch are kept between norms and sums: a quarter of a gigabyte."""

Build = Callable[..., Tensor]
"""From inputs and output gradients of some examples to their gradients, (examples × shape)."""


@dataclass(frozen=True)
class BuiltGradients:
    """One gradient per example, Σ over ``uses`` of build(inputs, output gradients).

    ``numbers`` is how many numbers it takes to build one; ``kept`` says that they stay in memory.
    ``growth`` bounds what matrices that they are multiplied by add to their largest entry.
    """

    uses: tuple[tuple[Build, Tensor, Tensor], ...]
    numbers: int
    kept: bool = False
    growth: float = 1.0
    _pieces: list[Tensor] = field(default_factory=list, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.uses[0][1])

    def squares(self, leaf_map: LeafMap) -> Tensor:
        """Measure the gradients, piece by piece."""
        return torch.cat([piece.squares(leaf_map) for _, piece in self._built()])

    def weighted(self, weights: Tensor) -> Tensor:
        """Add up the gradients, piece by piece."""
        total: Tensor | None = None
        for rows, piece in self._built():
            part = piece.weighted(weights[rows])
            total = part if total is None else total.add_(part)
        assert total is not None
        return total

    def take(self, rows: Tensor) -> BuiltGradients:
        """Return the gradients of some of the examples."""
        return BuiltGradients(
            tuple((build, a[rows], b[rows]) for build, a, b in self.uses),
            self.numbers,
            growth=self.growth,
        )

    def plus(self, other: BuiltGradients) -> BuiltGradients:
        """Return the gradients of a parameter that is used in both ways."""
        growth = max(self.growth, other.growth)
        return BuiltGradients(self.uses + other.uses, self.numbers + other.numbers, growth=growth)

    def finite(self) -> Tensor:
        """Mark the examples whose gradients cannot overflow while they are built."""
        bound: Tensor | float = 0.0
        for _, a, b in self.uses:
            positions = b[0].numel()
            bound = bound + largest_of_rows(a) * largest_of_rows(b) * positions
        assert isinstance(bound, Tensor)
        return bound * self.growth < torch.finfo(self.uses[0][1].dtype).max / 4

    def _built(self) -> Iterator[tuple[slice, MaterialisedGradients]]:
        step = max(1, AT_ONCE // self.numbers)
        for place, start in enumerate(range(0, len(self), step)):
            rows = slice(start, start + step)
            if place < len(self._pieces):
                piece = self._pieces[place]
            else:
                first, *others = (build(a[rows], b[rows]) for build, a, b in self.uses)
                piece = sum(others, first)
                if self.kept:
                    self._pieces.append(piece)
            yield rows, MaterialisedGradients(piece)
