"""Un-noised facts about batches, for debugging only: a run that records them is not private."""

from __future__ import annotations

import torch
from torch import Tensor

DEBUG_MARK = "debug: training loss, norms and batch sizes of private data were recorded"


class BatchFacts:
    """What one step shows of itself while it is taken."""

    def __init__(self) -> None:
        self._seen: dict[str, Tensor] = {}

    def watch(self, name: str, value: Tensor) -> None:
        """Take what a stage shows; chunks of a batch come one after the other."""
        seen = self._seen
        seen[name] = torch.cat([seen[name], value]) if name in seen else value

    def of_norms(self, clip_norm: float) -> dict[str, float]:
        """How many examples were clipped, and the largest norm."""
        if "norms" not in self._seen:
            return {}
        norms = self._seen["norms"]
        return {
            "clipped_fraction": float((norms > clip_norm).double().mean()),
            "largest_norm": float(norms.max()),
        }
