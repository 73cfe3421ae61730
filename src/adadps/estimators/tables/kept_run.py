"""The folder in which a run is kept while it lasts, so that the same command can go on.

Unless a folder is named, it stands beside the model and goes when the model is there; a ledger of
its own goes into the model's folder. What holds nothing, because nothing was paid yet, is not left
behind. What we did not put there stays, and a ledger is never deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from adadps.accounting.ledger import DiskLedger
from adadps.accounting.ledger.file import discard_unused
from adadps.errors import AdadpsError, ContractError
from adadps.estimators.tables.levels_file import LEVELS
from adadps.files.removing import move_ledger, remove_file, remove_if_empty
from adadps.training.checkpoint import LEDGER, Checkpoint, Checkpoints

OFTEN, SELDOM, LARGE = 50, 8, 2**22
"""So many checkpoints a run has; fewer if there are more weights than that."""


@dataclass(frozen=True)
class KeptRun:
    """A run in its folder. ``is_ours``: it was not named, and goes with the end of the run."""

    folder: Path
    ledger: Path | None
    is_ours: bool

    def checkpoints(self, *, steps: int, weights: int) -> Checkpoints:
        """How often the run is kept."""
        return Checkpoints(self.folder, max(1, steps // (SELDOM if weights > LARGE else OFTEN)))

    @property
    def levels(self) -> Path:
        """Where levels, classes and bounds stand that this run has paid for."""
        return self.folder / LEVELS

    def latest(self) -> Checkpoint | None:
        """Where the run would go on."""
        return Checkpoints(self.folder).latest()

    @contextmanager
    def cleaned(self) -> Iterator[None]:
        """After an error, leave no folder of ours that holds nothing."""
        was_there = self._own_ledger.exists()
        try:
            yield
        except ContractError as error:
            if not self.is_ours or self.latest() is None:
                self._remove_if_unpaid(was_there)
                raise
            raise ContractError(
                f"{error} (That folder is {self.folder}, of a run that was interrupted. Delete it "
                "to begin anew: what it has paid is lost.)"
            ) from error
        except BaseException:
            self._remove_if_unpaid(was_there)
            raise

    def end(self, model: Path) -> None:
        """The model is there: take away what is ours, and put the run's own ledger beside it."""
        if self.is_ours:
            if self.ledger is None:
                move_ledger(self._own_ledger, model)
            self._remove_steps()

    def charges(self) -> int:
        """What this run has paid so far."""
        held = self.latest()
        if held is None:
            own = self._own_ledger
            return _entries(own) if own.exists() else int(self.levels.exists())
        with DiskLedger(self.ledger or self._own_ledger) as ledger:
            return sum(count for _, count in ledger.charged(held.run))

    def in_words(self, command: str) -> str:
        """What is kept after an interruption, and how to go on."""
        try:
            held = self.latest() if self.folder.exists() else None
            paid = self.charges()
        except AdadpsError as error:  # of somebody else who works there, or after damage
            return f"no model was written; {self.folder} cannot be read ({error})"
        if not paid:
            return f"no model was written, and nothing was spent. To begin again:\n{command}"
        if held is None and self.levels.exists():
            return (
                f"no model was written; levels, classes and bounds are paid for and kept in "
                f"{self.levels}, and no step is. To resume:\n{command}"
            )
        if held is None:
            return (
                f"no model was written; no step is kept, and {paid} steps stay paid for in "
                f"{self._own_ledger}. To begin again:\n{command}"
            )
        return (
            f"no model was written; {held.taken} of {held.planned} steps are kept in "
            f"{self.folder}, and {paid} steps stay paid for. To resume:\n{command}"
        )

    @property
    def _own_ledger(self) -> Path:
        """Where the run pays, unless it has a ledger elsewhere."""
        return self.folder / LEDGER

    def _remove_if_unpaid(self, ledger_was_there: bool) -> None:
        with suppress(AdadpsError):  # what cannot be read is not ours to remove
            if self.is_ours and self.folder.is_dir() and not self.charges():
                if self.ledger is None and not ledger_was_there:
                    discard_unused(self._own_ledger)
                self._remove_steps()

    def _remove_steps(self) -> None:
        with suppress(OSError):
            Checkpoints(self.folder).remove()
            remove_file(self.levels)
            remove_if_empty(self.folder)


def _entries(path: Path) -> int:
    with DiskLedger(path) as ledger:
        return ledger.entries
