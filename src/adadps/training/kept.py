"""Where a run is kept while it lasts: its checkpoints, if it has any, and whether one is due."""

from __future__ import annotations

import secrets
from pathlib import Path

from torch import Tensor, device

from adadps.accounting.ledger import DiskLedger, Ledger
from adadps.errors import DataError
from adadps.training.checkpoint import Checkpoint, Checkpoints, opened


class Kept:
    """The folder of a run and what it held at the start; false if there is none."""

    def __init__(self, checkpoints: Checkpoints | str | Path | None) -> None:
        self.folder = opened(checkpoints)
        self.held = self.folder.latest() if self.folder else None
        self._at = self.held.taken if self.held else 0

    def __bool__(self) -> bool:
        return self.folder is not None

    def name_for(self, ledger: Ledger, plan: str) -> str:
        """The run's name: a new one, or that of the run on its ledger whose checkpoint is gone."""
        if self.held is not None:
            return self.held.run
        known = None
        if self.folder and isinstance(ledger, DiskLedger):
            found = ledger.run_of(plan)
            is_its_own = ledger.path == self.folder.ledger
            if found and (is_its_own or not ledger.charged(found)):
                known = found
        return known or secrets.token_hex(8)

    def is_due(self, taken: int, planned: int) -> bool:
        """Is it time for a checkpoint that is not there yet?"""
        return self.is_behind(taken) and bool(self.folder and self.folder.is_due(taken, planned))

    def is_behind(self, taken: int) -> bool:
        """Were steps taken since the last checkpoint?"""
        return self.folder is not None and taken != self._at

    def write(self, checkpoint: Checkpoint) -> None:
        """Keep it, where there is a folder."""
        if self.folder is not None:
            self.folder.write(checkpoint)
            self._at = checkpoint.taken


def feature_weights_on(held: Checkpoint, place: device) -> Tensor | None:
    """The weights of features that a checkpoint holds, checked."""
    if held.feature_weights is None:
        return None
    weights = held.feature_weights.to(place)
    if weights.ndim != 1 or not weights.is_floating_point():
        raise DataError(
            f"Expected weights of features in one axis, found {tuple(weights.shape)} of "
            f"{weights.dtype}. Restore a copy of the checkpoint."
        )
    return weights
