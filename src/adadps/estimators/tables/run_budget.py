"""What a run on a table may spend, and the ledger that it shares with other runs."""

from __future__ import annotations

import os
from dataclasses import dataclass

from adadps.accounting.epsilon import Budget
from adadps.accounting.events import default_delta
from adadps.accounting.ledger import DiskLedger, require_same_budget
from adadps.errors import SettingError
from adadps.estimators.tables.request import TrainingRequest
from adadps.types import Accountant


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


def shared_ledger(request: TrainingRequest, budget: Budget) -> DiskLedger | None:
    """Open the ledger that was named, if any. Call this once nothing else can be refused."""
    if request.ledger is None:
        return None
    if os.path.exists(request.ledger):
        return DiskLedger(request.ledger)
    whole = budget.epsilon if request.ledger_budget is None else request.ledger_budget
    if whole < budget.epsilon:
        raise SettingError(
            f"Expected a ledger with room for this run, found --ledger-budget {whole:g} below "
            f"--epsilon {budget.epsilon:g}. Give the ledger more or the run less."
        )
    return DiskLedger(request.ledger, budget=Budget(whole, budget.delta))
