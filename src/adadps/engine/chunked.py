"""A logical batch in physical pieces: any batch size in the memory of one piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from adadps.engine.waist import GradientBatch, added
from adadps.tensors.params import Params, Sums


@dataclass(frozen=True)
class ChunkedGradients:
    """Pieces that are differentiated when they are needed, and forgotten after.

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

    def norms(self) -> Tensor:
        """Norms of all units, piece after piece."""
        return torch.cat([part.norms() for part in self.parts()])

    def weighted_sum(self, weights: Tensor) -> Sums:
        """Σ_i w_i g_i over all pieces."""
        total: Sums | None = None
        start = 0
        for part in self.parts():
            size = len(part.norms())
            total = added(total, part.weighted_sum(weights[start : start + size]))
            start += size
        return total or {}

    def parts(self) -> Iterator[GradientBatch]:
        """Each piece, differentiated and transformed."""
        for piece in self.pieces:
            batch = piece()
            for transform in self.transforms:
                batch = transform(batch)
            yield batch

    def _then(self, transform: Callable[[GradientBatch], GradientBatch]) -> ChunkedGradients:
        return replace(self, transforms=(*self.transforms, transform))
