"""The terms of a ledger, what runs tell and ask it, and how many more events fit its budget.

Composing a few thousand events at every step would cost more than the step itself, so the room is
computed once, as a number of further events of the same kind, and then only counted down.

*One run*, planned beforehand, may be composed by either accountant; RDP is converted at the best
order. *Further runs* are chosen after looking at earlier results, and then the best order must not
be chosen afterwards: the theorem of the Rényi filter is for one order that is fixed in advance
(Feldman and Zrnic 2021). The event that the first run plans most often fixes it
(`RenyiCurve.order_for`).

`adadps.accounting.ledger.memory` has the ledger that ends with its process, and
`adadps.accounting.ledger.disk` the one on disk.

What a run tells a ledger (`RunFacts`), what it asks of it (`Ledger`), and the terms that all runs
on it share are here, too. The facts of a run are public. Nothing in them depends on private data:
no drawn batch, no hash of examples, no time of day.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol

import numpy as np
from dp_accounting import DpEvent

from adadps.accounting.epsilon import Budget, Life, epsilon_of, largest
from adadps.accounting.events import composed, delta_of, exposes, is_free, without_delta
from adadps.accounting.renyi import RenyiCurve, renyi_curve
from adadps.errors import BudgetError, ContractError, DataError, SettingError
from adadps.types import Accountant, Relation


@cache
def code_version() -> str:
    """Return the installed version of adadps."""
    try:
        return version("adadps")
    except PackageNotFoundError:
        return "unknown"


def canonical(content: Any) -> str:
    """Encode content as canonical JSON; numpy numbers become plain ones."""
    return json.dumps(content, sort_keys=True, default=_plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else str(value)


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The plan of a run, in public words and numbers.

    ``prices`` are the exact charges of the plan, and the clip norm, as text. ``paid_first`` is the
    number of charges before the first step, for side information: none in a life that continues
    from a checkpoint.
    """

    unit: str = "example"
    sampler: Mapping[str, Any] = field(default_factory=dict)
    chain: str = ""
    side_information: tuple[Mapping[str, str | None], ...] = ()
    planned_steps: int | None = None
    prices: tuple[str, ...] = ()
    paid_first: int = 0
    code_version: str = field(default_factory=code_version)

    def plan_hash(self, relation: Relation, accountant: Accountant) -> str:
        """Return the SHA-256 of the plan, which is the same under every version of the code.

        >>> one, other = RunFacts(planned_steps=10), RunFacts(planned_steps=11)
        >>> terms = Relation.ZERO_OUT, Accountant.RDP
        >>> one.plan_hash(*terms) == other.plan_hash(*terms)
        False
        """
        plan = {
            "relation": relation.value,
            "accountant": accountant.value,
            "unit": self.unit,
            "sampler": dict(self.sampler),
            "chain": self.chain,
            "side_information": [dict(source) for source in self.side_information],
            "planned_steps": self.planned_steps,
            "prices": list(self.prices),
        }
        return hashlib.sha256(canonical(plan).encode()).hexdigest()


@dataclass(frozen=True)
class LedgerTerms:
    """What all runs on one ledger have in common."""

    relation: Relation
    accountant: Accountant
    unit: str

    def __str__(self) -> str:
        return f"'{self.relation.value}' with {self.accountant.value}, per {self.unit}"

    def require_same(self, found: LedgerTerms) -> None:
        """Refuse a run under other terms."""
        if self != found:
            raise ContractError(
                f"Expected a run under {self}, the terms of this ledger, found {found}. "
                "Use those terms, or a new ledger for other data."
            )


def terms_of(relation: str, accountant: str, unit: str) -> LedgerTerms:
    """Decode stored terms."""
    try:
        return LedgerTerms(Relation(relation), Accountant(accountant), unit)
    except ValueError as error:
        raise DataError(
            f"Expected terms that this version knows, found {error}. Use the version of adadps "
            "that wrote the ledger."
        ) from error


def require_same_plan(run: str, held: str, found: str) -> None:
    """Refuse to continue a run under another plan."""
    if held != found:
        raise ContractError(
            f"Expected the plan with which run {run} began (hash {held[:12]}), found another "
            f"({found[:12]}). Continue with the same method, sampler, steps and side information, "
            "or begin a new run."
        )


def require_another_run(terms: LedgerTerms, runs: int) -> None:
    """Refuse a second run under an accountant that can compose only one."""
    if runs and terms.accountant is Accountant.PLD:
        raise ContractError(
            "Expected one run on a PLD ledger, found another one: PLD composes only what was "
            "fixed beforehand. Run with accountant RDP to compose runs chosen one by one."
        )


class Ledger(Protocol):
    """What a run asks of a ledger, which charges it and refuses what exceeds the budget."""

    @property
    def identity(self) -> str:
        """A unique random name; a run can be resumed only on the ledger that it began on."""

    @property
    def budget(self) -> Budget | None:
        """The budget of all runs together; None if charges are only counted."""

    @property
    def entries(self) -> int:
        """The number of charges."""

    def choose_accountant(self, fitting: Sequence[Accountant]) -> Accountant:
        """Return the accountant of a run that names none; the first of ``fitting`` is preferred."""

    def open(
        self,
        run: str,
        relation: Relation,
        accountant: Accountant,
        facts: RunFacts = ...,
    ) -> None:
        """Begin a run, or a further life of one; refuse terms that differ from the ledger's.

        A known name continues that run, under the same plan.
        """

    def authorise(
        self, event: DpEvent, *, run: str | None = None, ahead: int = 1, at_once: int = 1
    ) -> None:
        """Charge ``event``, or raise `BudgetError`; called before anything is drawn.

        ``run`` pays (default: the run that was opened last). ``ahead`` is the number of such events
        that are planned from here on; it saves computation, and the event that the first run plans
        most often sets the order of the Rényi filter. A ledger may charge up to ``at_once`` events
        now, and serve the next calls from these.
        """

    def charged(self, run: str) -> tuple[tuple[DpEvent, int], ...]:
        """Return all charges of a run in all its lives, each with its count."""

    def lives(self, run: str) -> tuple[Life, ...]:
        """Return what each life of a run has been charged for; empty if the run is unknown."""

    def room(self, event: DpEvent, wanted: int) -> int:
        """Return how many of ``wanted`` such events fit now, without charging any."""

    def epsilon(self, delta: float) -> float:
        """Return epsilon of all charged events together."""


def require_same_budget(held: Budget | None, epsilon: float, *, where: str, cure: str) -> None:
    """Refuse an ``epsilon`` that is not the whole budget ``held`` by the ledger.

    >>> require_same_budget(Budget(3.0, 1e-5), 2.0, where="the ledger a", cure="Leave it out.")
    Traceback (most recent call last):
        ...
    adadps.errors.ContractError: Expected epsilon = 2 as the budget of the ledger a, found \
epsilon = 3. Leave it out.
    """
    if held is None or held.epsilon != epsilon:
        found = "no budget at all" if held is None else f"epsilon = {held.epsilon:g}"
        raise ContractError(
            f"Expected epsilon = {epsilon:g} as the budget of {where}, found {found}. {cure}"
        )


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
