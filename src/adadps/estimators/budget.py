"""The budget of an estimator: several runs may be paid from one ledger.

A single fit is planned in advance and may be composed by PLD. Calls of `partial_fit`, and runs on a
ledger that others share, are composed by RDP (docs/decisions/ledger.md).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from adadps.accounting.epsilon import Budget, require_epsilon
from adadps.accounting.events import default_delta
from adadps.accounting.ledger import DiskLedger, Ledger, MemoryLedger, require_same_budget
from adadps.errors import BudgetError, ContractError, SettingError
from adadps.types import Accountant

EITHER = (Accountant.RDP, Accountant.PLD)
WHOLE = (
    "`epsilon` is the whole budget: set it to that of the ledger, and `epsilon_per_run` to what "
    "one run may cost."
)


@dataclass(frozen=True)
class BudgetOptions:
    """The caller's options about the budget; those that are None have defaults."""

    epsilon: float
    epsilon_per_run: float | None
    delta: float | None
    accountant: Accountant | str | None
    path: Path | None

    def __post_init__(self) -> None:
        require_epsilon(self.epsilon)
        if self.epsilon_per_run is not None:
            require_epsilon(self.epsilon_per_run)
            if self.epsilon_per_run > self.epsilon:
                raise SettingError(
                    f"Expected epsilon_per_run within epsilon = {self.epsilon:g}, found "
                    f"{self.epsilon_per_run:g}. A run cannot cost more than the whole budget."
                )
        if self.delta is not None:
            Budget(self.epsilon, self.delta)
        known = [name for one in Accountant for name in (one, one.value)]
        if self.accountant is not None and self.accountant not in known:
            raise SettingError(
                f"Expected 'pld' or 'rdp' as accountant, found {self.accountant!r}. Leave it out."
            )


@dataclass(frozen=True)
class EstimatorBudget:
    """The whole budget, what the next run may cost of it, the accountant, and the ledger."""

    whole: Budget
    run: Budget
    accountant: Accountant
    path: Path | None


def terms_for(
    options: BudgetOptions, *, examples: int, earlier: MemoryLedger | None, one_by_one: bool
) -> EstimatorBudget:
    """Return the terms of a run on ``examples`` declared examples; nothing is written.

    ``earlier`` is the ledger of earlier calls, ``one_by_one`` says that further runs may follow.
    """
    known, chosen = None, None
    if options.path is not None and os.path.exists(options.path):
        with DiskLedger(options.path) as ledger:
            known, chosen = ledger.budget, ledger.choose_accountant(EITHER)
        require_same_budget(known, options.epsilon, where=f"the ledger {options.path}", cure=WHOLE)
    elif earlier is not None:
        known, chosen = earlier.budget, earlier.choose_accountant(EITHER)
        require_same_budget(known, options.epsilon, where="the calls before this one", cure=WHOLE)
        if chosen is Accountant.PLD:
            raise BudgetError(
                f"Expected something left of epsilon = {options.epsilon:g}, found that `fit` has "
                "spent all of it. Plan for further calls: set `epsilon_per_run` below epsilon."
            )
    several = one_by_one or options.path is not None or options.epsilon_per_run is not None
    usual = Accountant.RDP if several else Accountant.PLD
    accountant = Accountant(options.accountant) if options.accountant else chosen or usual
    delta = options.delta or (known.delta if known else default_delta(examples))
    spend = options.epsilon if options.epsilon_per_run is None else options.epsilon_per_run
    whole, run = Budget(options.epsilon, delta), Budget(spend, delta)
    return EstimatorBudget(whole, run, accountant, options.path)


@contextmanager
def opened_ledger(
    terms: EstimatorBudget, earlier: MemoryLedger | None, identity: str | None
) -> Iterator[Ledger]:
    """Open the ledger of the next run: on disk, that of earlier calls, or a new one in memory.

    ``identity`` is that of the ledger on which the model was trained so far, None for a new model.
    """
    if terms.path is None:
        in_memory = MemoryLedger(terms.whole) if identity is None else earlier
        yield _same_ledger(in_memory, identity)
        return
    if identity is not None and not os.path.exists(terms.path):
        _same_ledger(None, identity)
    with _on_disk(terms.path, terms.whole) as ledger:
        yield _same_ledger(ledger, identity)


def _on_disk(path: Path, whole: Budget) -> DiskLedger:
    if os.path.exists(path):
        return DiskLedger(path)
    try:
        return DiskLedger(path, budget=whole)
    except ContractError:  # another process was faster, with another delta
        return DiskLedger(path)


def _same_ledger(ledger: Ledger | None, identity: str | None) -> Ledger:
    if ledger is None or (identity is not None and ledger.identity != identity):
        raise BudgetError(
            "Expected the ledger on which this model was trained so far, found none or another: a "
            "ledger in memory does not travel with a copy of the model, which could spend the same "
            "budget twice. Use `ledger=path` to continue later or elsewhere."
        )
    return ledger
