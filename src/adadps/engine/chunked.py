"""A logical batch in physical pieces: any batch size in the memory of one piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise

import torch
from torch import Tensor

from adadps.engine.moments import Moments
from adadps.engine.waist import GradientBatch, Units, added
from adadps.tensors.sums import Params, Sums


@dataclass(frozen=True)
class ChunkedGradients:
    """Pieces that are differentiated when they are needed, and then forgotten.

    `norms` followed by `weighted_sum` differentiates twice; `adadps.engine.waist.reduce` walks
    through `parts` and differentiates once.
    """

    pieces: tuple[Callable[[], GradientBatch], ...]
    transforms: tuple[Callable[[GradientBatch], GradientBatch], ...] = ()

    def scale(self, diagonal: Params) -> ChunkedGradients:
        """D ∘ g."""
        return self._then(lambda batch: batch.scale(diagonal))

    def shift(self, beta: float, mean: Params) -> ChunkedGradients:
        """β g + (1 - β) M."""
        return self._then(lambda batch: batch.shift(beta, mean))

    def whiten(self, inputs: Params, outputs: Params) -> ChunkedGradients:
        """Q g P."""
        return self._then(lambda batch: batch.whiten(inputs, outputs))

    def norms(self) -> Tensor:
        """Return the norms of all units, piece by piece."""
        return torch.cat([part.norms() for part in self.parts()])

    def weighted_sum(self, weights: Tensor) -> Sums:
        """Return Σ_i w_i g_i over all pieces."""
        total: Sums | None = None
        start = 0
        for part in self.parts():
            size = len(part.norms())
            total = added(total, part.weighted_sum(weights[start : start + size]))
            start += size
        return total or {}

    def moments(self) -> Moments:
        """Return second moments of what layers read and write, piece by piece."""
        return reduce(Moments.plus, (part.moments() for part in self.parts()))

    def parts(self) -> Iterator[GradientBatch]:
        """Yield each piece, differentiated and transformed."""
        for piece in self.pieces:
            batch = piece()
            for transform in self.transforms:
                batch = transform(batch)
            yield batch

    def _then(self, transform: Callable[[GradientBatch], GradientBatch]) -> ChunkedGradients:
        return replace(self, transforms=(*self.transforms, transform))


def pieces_of(
    targets: Tensor, units: Units | None, chunk: int
) -> list[tuple[Tensor, Units | None]]:
    """Split a batch into pieces of about ``chunk`` rows, each with whole units."""
    size = len(targets)
    if units is None:
        return [
            (rows, None) for rows in torch.split(torch.arange(size, device=targets.device), chunk)
        ]
    units_per_piece = max(1, round(chunk * units.count / size))
    starts = torch.arange(0, units.count, units_per_piece, device=targets.device)
    # Pieces without rows are joined to the piece before them.
    filled = torch.unique(units.labels // units_per_piece)
    bounds = [0, *(starts[filled[1:]]).tolist(), units.count]
    pieces: list[tuple[Tensor, Units | None]] = []
    for first, end in pairwise(bounds):
        rows = torch.nonzero((units.labels >= first) & (units.labels < end)).squeeze(1)
        pieces.append((rows, Units(units.labels[rows] - first, end - first, units.weight)))
    return pieces
