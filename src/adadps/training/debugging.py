"""What a run in debugging shows of its private batches; it is then not private."""

from __future__ import annotations

import torch
from torch import Tensor

DEBUG_MARK = "debug: training loss, norms and batch sizes of private data were recorded"


class BatchFacts:
    """Un-noised facts that one step shows of itself; a run that records them is not private."""

    def __init__(self) -> None:
        self._seen: dict[str, Tensor] = {}

    def watch(self, name: str, value: Tensor) -> None:
        """Record what a stage shows; the chunks of a batch come one after the other."""
        seen = self._seen
        seen[name] = torch.cat([seen[name], value]) if name in seen else value

    def of_norms(self, clip_norm: float | None) -> dict[str, float]:
        """Return the share of examples that were clipped, and the largest norm.

        Without a clip norm every gradient is normalised, and there is no such share. One that
        moves is stated.
        """
        norms, moved = self._seen.get("norms"), self._seen.get("clip_norm")
        found = {} if moved is None else {"clip_norm": float(moved[-1])}
        clip_norm = found.get("clip_norm", clip_norm)
        if norms is None or not len(norms):  # an empty batch
            return found
        if clip_norm is not None:
            found["clipped_fraction"] = float((norms > clip_norm).double().mean())
        return {**found, "largest_norm": float(norms.max())}
