"""What a run on a table has on disk: checkpoints and the ledger that pays, then the trained model.

Unless a folder for checkpoints is named, it is created beside the model and removed once the model
is written; the run's own ledger then moves into the model's folder. A folder in which nothing was
paid is removed. Files of others are never removed, and a ledger is never deleted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from adadps.accounting.epsilon import Budget
from adadps.accounting.events import default_delta
from adadps.accounting.ledger import DiskLedger, require_same_budget
from adadps.accounting.ledger.file import discard_unused
from adadps.errors import AdadpsError, ContractError, SettingError
from adadps.estimators.tables.request import TrainingRequest
from adadps.files import move_ledger, new_file, remove_file, remove_if_empty
from adadps.training.checkpoint import LEDGER, Checkpoint, Checkpoints
from adadps.types import Accountant

MEASURED, BEGUN = "measured.json", "begun.txt"
OFTEN, SELDOM, LARGE = 50, 8, 2**22
"""Checkpoints per run: `OFTEN`, or `SELDOM` where there are more than `LARGE` weights."""


@dataclass(frozen=True)
class RunBudget:
    """What the run may spend, and which accountant composes it."""

    budget: Budget
    accountant: Accountant


def budget_of(request: TrainingRequest, examples: int) -> RunBudget:
    """Return the run's own epsilon, with delta and accountant of its ledger if that exists."""
    fitting: tuple[Accountant, ...] = (Accountant.PLD, Accountant.RDP)
    if request.federation is not None:
        fitting = request.federation.accountants
    accountant, delta = fitting[0], default_delta(examples)
    if request.ledger is not None:
        accountant = Accountant.RDP
        if os.path.exists(request.ledger):
            with DiskLedger(request.ledger) as ledger:
                accountant = ledger.choose_accountant(fitting)
                held = ledger.budget
            delta = held.delta if held is not None else delta
            if request.ledger_budget is not None:
                require_same_budget(
                    held,
                    request.ledger_budget,
                    where=f"the ledger {request.ledger}",
                    cure="Leave --ledger-budget out to continue.",
                )
    delta = delta if request.delta is None else request.delta
    return RunBudget(Budget(request.epsilon, delta), accountant)


def shared_ledger(request: TrainingRequest, path: Path, budget: Budget) -> DiskLedger:
    """Open the ledger that was named. Call this once nothing else can be refused."""
    if os.path.exists(path):
        return DiskLedger(path)
    whole = budget.epsilon if request.ledger_budget is None else request.ledger_budget
    if whole < budget.epsilon:
        raise SettingError(
            f"Expected a ledger with room for this run, found --ledger-budget {whole:g} below "
            f"--epsilon {budget.epsilon:g}. Give the ledger more or the run less."
        )
    return DiskLedger(path, budget=Budget(whole, budget.delta))


def paying_ledger(request: TrainingRequest, own: Path, budget: Budget) -> DiskLedger:
    """Open the ledger that was named, or the run's ``own`` one."""
    if request.ledger is None:
        return DiskLedger(own, budget=budget)
    return shared_ledger(request, request.ledger, budget)


@dataclass(frozen=True)
class TableRunFolder:
    """The folder of a run. An unnamed one (``is_ours``) is removed at the end of the run."""

    path: Path
    ledger: Path | None
    is_ours: bool

    @classmethod
    def of(cls, request: TrainingRequest) -> TableRunFolder:
        """Return the folder of a requested run."""
        return cls(request.run_folder, request.ledger, is_ours=request.checkpoint is None)

    @property
    def own_ledger(self) -> Path:
        """Return the ledger that pays for the run, unless another one is named."""
        return self.path / LEDGER

    @property
    def measured(self) -> Path:
        """Return the file of what this run has paid for and measured before its first step."""
        return self.path / MEASURED

    @property
    def begun(self) -> Path:
        """Return the file with the name under which this run pays for what it measures first."""
        return self.path / BEGUN

    def begin_payment(self, run: str) -> None:
        """Note the name of a run before it pays, to find its charges among those of others."""
        self.path.mkdir(parents=True, exist_ok=True)
        with new_file(self.begun, overwrite=True) as draft:
            draft.write_text(run + "\n", encoding="utf-8")

    def checkpoints(self, *, steps: int, weights: int) -> Checkpoints:
        """Return how often the run writes a checkpoint here."""
        return Checkpoints(self.path, max(1, steps // (SELDOM if weights > LARGE else OFTEN)))

    def latest(self) -> Checkpoint | None:
        """Return the checkpoint from which the run would resume."""
        return Checkpoints(self.path).latest()

    @contextmanager
    def cleaned(self) -> Iterator[None]:
        """Remove a folder of ours after an error if nothing was paid in it."""
        existed = self.own_ledger.exists()
        try:
            yield
        except ContractError as error:
            if not self.is_ours or self.latest() is None:
                self._remove_if_unpaid(existed)
                raise
            raise ContractError(
                f"{error} (That folder is {self.path}, of a run that was interrupted. Delete it "
                "to start again: what it has paid is lost.)"
            ) from error
        except BaseException:
            self._remove_if_unpaid(existed)
            raise

    def finish(self, model: Path) -> None:
        """Remove what is ours, and move the run's own ledger into the folder of the model."""
        if self.is_ours:
            if self.ledger is None:
                move_ledger(self.own_ledger, model)
            self._remove_steps()

    def charges(self) -> int:
        """Return how many charges this run has paid so far."""
        held = self.latest()
        if held is None:
            return self._charged_before_steps()
        with DiskLedger(self.ledger or self.own_ledger) as ledger:
            return sum(count for _, count in ledger.charged(held.run))

    def _charged_before_steps(self) -> int:
        """Return how many charges the run has paid while there is no checkpoint."""
        if self.ledger is None:
            own = self.own_ledger
            return _entries(own) if own.exists() else int(self.measured.exists())
        if not self.begun.exists() or not self.ledger.exists():
            return int(self.measured.exists())
        run = self.begun.read_text(encoding="utf-8").strip()
        with DiskLedger(self.ledger) as ledger:
            return sum(count for _, count in ledger.charged(run))

    def _remove_if_unpaid(self, ledger_existed: bool) -> None:
        with suppress(AdadpsError):  # a file that cannot be read may not be ours
            if self.is_ours and self.path.is_dir() and not self.charges():
                if self.ledger is None and not ledger_existed:
                    discard_unused(self.own_ledger)
                self._remove_steps()

    def _remove_steps(self) -> None:
        with suppress(OSError):
            Checkpoints(self.path).remove()
            remove_file(self.measured)
            remove_file(self.begun)
            remove_if_empty(self.path)


def _entries(path: Path) -> int:
    with DiskLedger(path) as ledger:
        return ledger.entries
