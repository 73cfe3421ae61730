"""The ledger that ends with its process."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence

from dp_accounting import DpEvent

from adadps.accounting.epsilon import Budget, Life
from adadps.accounting.ledger.spending import (
    LedgerTerms,
    RunFacts,
    Spending,
    known_payer,
    require_another_run,
    require_same_plan,
)
from adadps.errors import ContractError
from adadps.files import process
from adadps.types import Accountant, Relation


class MemoryLedger:
    """A ledger that lasts as long as the process.

    >>> from dp_accounting import GaussianDpEvent
    >>> ledger = MemoryLedger(Budget(epsilon=1.0, delta=1e-5))
    >>> ledger.open("first", Relation.ADD_OR_REMOVE_ONE, Accountant.RDP)
    >>> ledger.authorise(GaussianDpEvent(10.0))
    >>> ledger.authorise(GaussianDpEvent(1.0))
    Traceback (most recent call last):
    adadps.errors.BudgetError: Expected a step within the budget of epsilon = 1 ...
    """

    def __init__(self, budget: Budget | None = None) -> None:
        self.identity = secrets.token_hex(16)
        self._process = process()
        self._lock = threading.RLock()
        self._spending = Spending(budget)
        self._charged: dict[str, dict[str, tuple[DpEvent, int]]] = {}
        self._plans: dict[str, str] = {}
        # of every life: charges, and how many of them came before its first step
        self._lives: dict[str, list[tuple[int, int]]] = {}
        self._latest: str | None = None

    @property
    def budget(self) -> Budget | None:
        """The budget of all runs together; None if charges are only counted."""
        return self._spending.budget

    @property
    def entries(self) -> int:
        """The number of charges."""
        return self._spending.entries

    def choose_accountant(self, fitting: Sequence[Accountant]) -> Accountant:
        """Return the accountant of this ledger if it has one, else the preferred one."""
        held = self._spending.terms
        return held.accountant if held and held.accountant in fitting else fitting[0]

    def open(
        self,
        run: str,
        relation: Relation,
        accountant: Accountant,
        facts: RunFacts | None = None,
    ) -> None:
        """Begin or continue a run under this ledger's relation, accountant and unit."""
        self._require_own_process()
        facts = facts or RunFacts()
        terms, plan = (
            LedgerTerms(relation, accountant, facts.unit),
            facts.plan_hash(relation, accountant),
        )
        with self._lock:
            (self._spending.terms or terms).require_same(terms)
            if run in self._plans:
                require_same_plan(run, self._plans[run], plan)
            else:
                require_another_run(terms, self._spending.runs)
                self._spending.begin_run(terms)
                self._plans[run], self._lives[run], self._charged[run] = plan, [], {}
            self._lives[run].append((0, facts.paid_first))
            self._latest = run

    def authorise(
        self,
        event: DpEvent,
        *,
        run: str | None = None,
        ahead: int = 1,
        at_once: int = 1,  # noqa: ARG002  (no disk to wait for)
    ) -> None:
        """Charge ``event`` if the budget allows it."""
        self._require_own_process()
        with self._lock:
            payer = known_payer(run, self._latest, self._plans)
            self._spending.require_room(event, ahead)
            if self._spending.is_planned_most(event, ahead):
                self._spending.most_planned = (event, ahead)
            self._spending.charge(event)
            charges, paid_first = self._lives[payer][-1]
            self._lives[payer][-1] = (charges + 1, paid_first)
            key, held = repr(event), self._charged[payer]
            held[key] = (event, held.get(key, (event, 0))[1] + 1)

    def _require_own_process(self) -> None:
        if process() != self._process:
            raise ContractError(
                "Expected a ledger in the process that made it, found a fork of that process: both "
                "would spend the same budget. Share a ledger on disk: `DiskLedger(path)`."
            )

    def charged(self, run: str) -> tuple[tuple[DpEvent, int], ...]:
        """Return all charges of a run."""
        return tuple(self._charged.get(run, {}).values())

    def lives(self, run: str) -> tuple[Life, ...]:
        """Return what each life of a run has been charged for."""
        return tuple(Life.of(*held) for held in self._lives.get(run, ()))

    def room(self, event: DpEvent, wanted: int) -> int:
        """Return how many of ``wanted`` such events fit now."""
        with self._lock:
            return self._spending.room(event, wanted)

    def epsilon(self, delta: float) -> float:
        """Return epsilon of all charges so far; infinite if something was exposed."""
        return self._spending.epsilon(delta)
