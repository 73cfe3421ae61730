"""Under which budget an estimator trains: several runs, one ledger.

A single fit is planned beforehand and may be composed by PLD. Runs that come one by one, and runs
on a ledger that others use, are composed by RDP (docs/decisions/ledger.md).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from adadps.accounting.delta import default_delta
from adadps.accounting.epsilon import Budget, require_epsilon
from adadps.accounting.ledger import DiskLedger, Ledger, MemoryLedger, require_same_budget
from adadps.errors import BudgetError, ContractError, SettingError
from adadps.report.result import Result
from adadps.types import Accountant

EITHER = (Accountant.RDP, Accountant.PLD)
WHOLE = (
    "`epsilon` is the whole budget: set it to that of the ledger, and `epsilon_per_run` to what "
    "one run may cost."
)


@dataclass(frozen=True)
class Wish:
    """What the caller has asked for; None is "choose for me"."""

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
class Terms:
    """The whole budget, what the next run may cost of it, and who composes."""

    whole: Budget
    run: Budget
    accountant: Accountant
    path: Path | None


def agree(wish: Wish, *, examples: int, held: MemoryLedger | None, one_by_one: bool) -> Terms:
    """Terms for a run on ``examples`` declared examples; only reads a ledger that is there.

    ``held`` is the ledger of earlier calls, ``one_by_one`` says that further runs may come.
    """
    known, chosen = None, None
    if wish.path is not None and os.path.exists(wish.path):
        with DiskLedger(wish.path) as ledger:
            known, chosen = ledger.budget, ledger.choose_accountant(EITHER)
        require_same_budget(known, wish.epsilon, where=f"the ledger {wish.path}", cure=WHOLE)
    elif held is not None:
        known, chosen = held.budget, held.choose_accountant(EITHER)
        require_same_budget(known, wish.epsilon, where="the calls before this one", cure=WHOLE)
        if chosen is Accountant.PLD:
            raise BudgetError(
                f"Expected something left of epsilon = {wish.epsilon:g}, found that `fit` has "
                "spent all of it. Plan for further calls: set `epsilon_per_run` below epsilon."
            )
    several = one_by_one or wish.path is not None or wish.epsilon_per_run is not None
    usual = Accountant.RDP if several else Accountant.PLD
    accountant = Accountant(wish.accountant) if wish.accountant else chosen or usual
    delta = wish.delta or (known.delta if known else default_delta(examples))
    spend = wish.epsilon if wish.epsilon_per_run is None else wish.epsilon_per_run
    return Terms(Budget(wish.epsilon, delta), Budget(spend, delta), accountant, wish.path)


@contextmanager
def ledger_of(terms: Terms, held: MemoryLedger | None, identity: str | None) -> Iterator[Ledger]:
    """The ledger of the next run: on disk, the one of earlier calls, or a new one in memory.

    ``identity`` is that of the ledger on which the model was trained so far, if it was.
    """
    if terms.path is None:
        kept = MemoryLedger(terms.whole) if identity is None else held
        yield _same_ledger(kept, identity)
        return
    if identity is not None and not os.path.exists(terms.path):
        _same_ledger(None, identity)
    with _on_disk(terms.path, terms.whole) as ledger:
        yield _same_ledger(ledger, identity)


def stated(result: Result, terms: Terms, *, shared: bool, steps_paid: int) -> Result:
    """The result as it may be claimed: on a ledger with earlier runs, epsilon is the budget."""
    if not shared:
        return result
    return result.claiming(terms.whole.epsilon, steps_paid=steps_paid)


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
            "budget twice. Use `ledger=path` to go on later or elsewhere."
        )
    return ledger
