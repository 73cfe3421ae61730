"""The budget of a run on a table: from the request, or from the ledger that it shares."""

from __future__ import annotations

import os
from dataclasses import dataclass

from adadps.accounting.delta import default_delta
from adadps.accounting.epsilon import Budget
from adadps.accounting.ledger import DiskLedger, require_same_budget
from adadps.errors import SettingError
from adadps.estimators.tables.request import Request
from adadps.types import Accountant


@dataclass(frozen=True)
class Terms:
    """What the run may spend, and who composes."""

    budget: Budget
    accountant: Accountant


def terms_for(request: Request, examples: int) -> Terms:
    """The run's own epsilon, at the ledger's delta and by its accountant where there is one."""
    fitting: tuple[Accountant, ...] = (Accountant.PLD, Accountant.RDP)
    if request.federation is not None:
        fitting = request.federation.accountants()
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
    return Terms(Budget(request.epsilon, delta), accountant)


def shared_ledger(request: Request, budget: Budget) -> DiskLedger | None:
    """The ledger that was named, if one was. A new one is made only when nothing else can fail."""
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
