"""What was spent, how many more events fit the budget, and the ledger that ends with its process.

Composing a few thousand events at every step would cost more than the step itself, so the room is
computed once, as a number of further events of the same kind, and then only counted down.

*One run*, planned beforehand, may be composed by either accountant; RDP is converted at the best
order. *Further runs* are chosen after looking at earlier results, and then the best order must not
be chosen afterwards: the theorem of the Rényi filter is for one order that is fixed in advance
(Feldman and Zrnic 2021). The event that the first run plans most often fixes it
(`RenyiCurve.order_for`).

`MemoryLedger` holds what was spent; `adadps.accounting.ledger.disk` has the ledger on disk, which
outlives its process.
"""

from __future__ import annotations

import math
import secrets
import threading
from collections.abc import Container, Sequence

import numpy as np
from dp_accounting import DpEvent

from adadps.accounting.epsilon import Budget, Life, epsilon_of, largest
from adadps.accounting.events import composed, delta_of, exposes, is_free, without_delta
from adadps.accounting.ledger.terms import (
    LedgerTerms,
    RunFacts,
    require_another_run,
    require_same_plan,
)
from adadps.accounting.renyi import RenyiCurve, renyi_curve
from adadps.errors import BudgetError, ContractError, SettingError
from adadps.files import process
from adadps.types import Accountant, Relation


class Spending:
    """The arithmetic of a ledger, wherever its entries are stored."""

    def __init__(self, budget: Budget | None) -> None:
        self.budget = budget
        self.terms: LedgerTerms | None = None
        self.runs = 0
        self.entries = 0
        self.most_planned: tuple[DpEvent, int] | None = None
        self._charged: dict[str, tuple[DpEvent, int]] = {}  # by text: not all events are hashable
        self._affordable: dict[str, int] = {}  # of one event: any other changes its room
        self._curves: dict[str, RenyiCurve] = {}
        self._orders: dict[str, float] = {}

    def begin_run(self, terms: LedgerTerms) -> None:
        """Count one more run; from the second run on, a filter decides."""
        self.terms = terms
        self.runs += 1
        self._affordable = {}

    def is_planned_most(self, event: DpEvent, ahead: int) -> bool:
        """Return whether ``event`` is planned most often, while there is still only one run."""
        known = self.most_planned
        if known is not None and (self.runs > 1 or ahead <= known[1]):
            return False
        return not is_free(without_delta(event)) and not exposes(event)

    def charge(self, event: DpEvent, count: int = 1) -> None:
        """Count ``event`` as spent."""
        self.entries += count
        key = repr(event)
        if key not in self._charged and is_free(event):
            return
        self._charged[key] = (event, self._count(key) + count)
        if key not in self._affordable:
            self._affordable = {}

    def require_room(self, event: DpEvent, ahead: int) -> None:
        """Refuse ``event`` if it does not fit."""
        if self.terms is None:
            raise ContractError("Expected `open` before anything is charged. Open a run first.")
        if self.budget is None:
            return
        key = repr(event)
        if self._count(key) < self._affordable.get(key, 0) or is_free(event):
            return
        if self.room(event, max(1, ahead)) == 0:
            raise self._refusal(self.budget, event)

    def room(self, event: DpEvent, wanted: int) -> int:
        """Return how many of ``wanted`` such events fit."""
        if self.budget is None or is_free(event):
            return wanted
        key = repr(event)
        charged = self._count(key)
        if self._affordable.get(key, 0) - charged < wanted:
            self._affordable = {key: charged + self._find_room(event, wanted)}
        return min(wanted, self._affordable[key] - charged)

    def epsilon(self, delta: float) -> float:
        """Return epsilon of all charges, as if they had been planned together."""
        return self._cost(delta)

    @property
    def filters(self) -> bool:
        """Whether a Rényi filter of one order decides, because there are several runs."""
        several = self.runs > 1 and self.budget is not None
        return several and self.terms is not None and self.terms.accountant is Accountant.RDP

    def left(self) -> float:
        """Return the epsilon left in the budget; under a filter, at the order of the filter."""
        assert self.budget is not None
        try:
            spent = self._filtered() if self.filters and self._charged else self._cost(None)
        except SettingError:
            return 0.0
        return max(0.0, self.budget.epsilon - spent)

    def _count(self, key: str) -> int:
        return self._charged[key][1] if key in self._charged else 0

    def _find_room(self, event: DpEvent, wanted: int) -> int:
        """Return how many more of ``event`` fit; all wanted ones are tried first."""
        if exposes(event):
            return 0
        if self._fits(event, wanted):
            return wanted
        return largest(lambda count: self._fits(event, count), limit=wanted)

    def _fits(self, event: DpEvent, count: int) -> bool:
        assert self.budget is not None
        try:
            spent = self._filtered(event, count) if self.filters else self._cost(None, event, count)
        except SettingError:  # epsilon is too large to compute
            return False
        return spent <= self.budget.epsilon

    def _cost(self, delta: float | None, event: DpEvent | None = None, count: int = 0) -> float:
        """Return epsilon of all charges and of ``count`` further events."""
        charged = [*self._charged.values(), *([(event, count)] if event else [])]
        if not charged:
            return 0.0
        if delta is None:
            assert self.budget is not None
            delta = self.budget.delta
        assert self.terms is not None
        if any(exposes(one) for one, _ in charged):
            return math.inf
        if self.terms.accountant is Accountant.RDP:
            left = delta - self._delta_spent(event, count)
            return self._sum(event, count).epsilon(left) if left > 0 else math.inf
        return epsilon_of(
            composed(charged),
            delta=delta,
            accountant=self.terms.accountant,
            relation=self.terms.relation,
        )

    def _filtered(self, event: DpEvent | None = None, count: int = 0) -> float:
        """Return epsilon of all charges and further events, at the order of the filter."""
        assert self.budget is not None
        left = self.budget.delta - self._delta_spent(event, count)
        if left <= 0:
            return math.inf
        planned = self.most_planned[0] if self.most_planned else event
        assert planned is not None
        key = repr(planned)
        if key not in self._orders:
            self._orders[key] = self._curve(planned).order_for(self.budget)
        return self._sum(event, count).epsilon(left, self._orders[key])

    def _delta_spent(self, event: DpEvent | None, count: int) -> float:
        """Return the delta used by charges and further events; it is subtracted from the budget."""
        charged = [*self._charged.values(), *([(event, count)] if event else [])]
        return sum(times * delta_of(one) for one, times in charged)

    def _sum(self, event: DpEvent | None, count: int) -> RenyiCurve:
        charged = [*self._charged.values(), *([(event, count)] if event else [])]
        parts = [(self._curve(one), times) for one, times in charged]
        orders = parts[0][0].orders
        total = np.zeros_like(parts[0][0].values)
        for curve, times in parts:
            total += times * curve.values
        return RenyiCurve(orders, total)

    def _curve(self, event: DpEvent) -> RenyiCurve:
        assert self.terms is not None
        key = repr(event)
        if key not in self._curves:
            self._curves[key] = renyi_curve(without_delta(event), self.terms.relation)
        return self._curves[key]

    def _refusal(self, budget: Budget, event: DpEvent) -> BudgetError:
        why = "is not private" if exposes(event) else "does not fit"
        at = " at the filter's order" if self.filters else ""
        return BudgetError(
            f"Expected a step within the budget of epsilon = {budget.epsilon:g} at delta = "
            f"{budget.delta:g}, found epsilon = {self._cost(None):.4g} already spent after "
            f"{self.entries} charges and a next step that {why}. Left: {self.left():.4g}{at}. "
            "Plan fewer steps or more noise, or agree on a larger budget."
        )


def known_payer(run: str | None, latest: str | None, known: Container[str]) -> str:
    """Return the run that pays: the named one, else the one that was opened last."""
    payer = run if run is not None else latest
    if payer is None or payer not in known:
        raise ContractError("Expected `open` before anything is charged. Open a run first.")
    return payer


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
