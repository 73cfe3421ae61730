"""The ledger: every step asks before anything is drawn.

A ledger has one neighbouring relation and one accountant. PLD composes what was fixed beforehand,
so it serves one run; further runs that are chosen after looking at the first need a Rényi filter,
i.e. a ledger with the RDP accountant.
"""

from __future__ import annotations

from typing import Protocol

from dp_accounting import ComposedDpEvent, DpEvent, SelfComposedDpEvent

from adadps.accounting import Budget, epsilon_of, largest
from adadps.errors import BudgetError, ContractError, SettingError
from adadps.events import exposes, is_free
from adadps.types import Accountant, Relation


class Ledger(Protocol):
    """Where privacy is paid for; ``entries`` counts the charges."""

    entries: int

    def open(self, run: str, relation: Relation, accountant: Accountant) -> None:
        """Begin a run; refuse one whose terms differ from those of the ledger."""

    def authorise(self, event: DpEvent, *, ahead: int = 1) -> None:
        """Charge ``event``, or raise `BudgetError`; called before anything is drawn.

        ``ahead`` is how many such events are planned from here on; it saves computation only.
        """

    def epsilon(self, delta: float) -> float:
        """What all charged events cost together."""


class MemoryLedger:
    """A ledger that lives as long as the process.

    >>> from dp_accounting import GaussianDpEvent
    >>> ledger = MemoryLedger(Budget(epsilon=1.0, delta=1e-5))
    >>> ledger.open("first", Relation.ADD_OR_REMOVE_ONE, Accountant.RDP)
    >>> ledger.authorise(GaussianDpEvent(10.0))
    >>> ledger.authorise(GaussianDpEvent(1.0))
    Traceback (most recent call last):
    adadps.errors.BudgetError: Expected a step within the budget of epsilon = 1 ...
    """

    def __init__(self, budget: Budget | None = None) -> None:
        self.budget = budget
        self.entries = 0
        self._charged: dict[str, tuple[DpEvent, int]] = {}  # events by their text: not all hash
        self._affordable: dict[str, int] = {}
        self._runs: list[str] = []
        self._terms: tuple[Relation, Accountant] | None = None

    def open(self, run: str, relation: Relation, accountant: Accountant) -> None:
        """Begin a run under this ledger's relation and accountant."""
        if self._terms is None:
            self._terms = (relation, accountant)
        if self._terms != (relation, accountant):
            held = f"'{self._terms[0].value}' with {self._terms[1].value}"
            raise ContractError(
                f"Expected a run under {held}, as this ledger has begun, found "
                f"'{relation.value}' with {accountant.value}. Use those terms, or a new ledger "
                "for other data."
            )
        if self._runs and accountant is Accountant.PLD:
            raise ContractError(
                "Expected one run on a PLD ledger, found another one: PLD composes only what was "
                "fixed beforehand. Run with accountant RDP to compose runs chosen one by one."
            )
        self._runs.append(run)

    def authorise(self, event: DpEvent, *, ahead: int = 1) -> None:
        """Charge ``event`` if the budget allows it."""
        if not is_free(event):
            charged = self._count(event)
            self._require_affordable(event, charged, max(1, ahead))
            self._charged[repr(event)] = (event, charged + 1)
        self.entries += 1

    def epsilon(self, delta: float) -> float:
        """Epsilon of everything charged so far; infinite if something was exposed."""
        return self._cost(self._events(), delta)

    def _count(self, event: DpEvent) -> int:
        return self._charged.get(repr(event), (event, 0))[1]

    def _require_affordable(self, event: DpEvent, charged: int, ahead: int) -> None:
        """Know for how many of ``event`` there is room, and refuse the one after the last."""
        if self.budget is None or charged < self._affordable.get(repr(event), 0):
            return
        room = self._afford(event, ahead)
        if room == 0:
            raise self._refusal(self.budget, event)
        self._affordable = {repr(event): charged + room}  # what else was known is out of date now

    def _afford(self, event: DpEvent, ahead: int) -> int:
        """How many more of ``event`` fit; all planned ones are tried first."""
        assert self.budget is not None
        if exposes(event):
            return 0
        if self._fits(event, ahead):
            return ahead
        return largest(lambda count: self._fits(event, count), limit=ahead)

    def _fits(self, event: DpEvent, count: int) -> bool:
        assert self.budget is not None
        events = [*self._events(), SelfComposedDpEvent(event, count)]
        try:
            return self._cost(events, self.budget.delta) <= self.budget.epsilon
        except SettingError:  # epsilon is too large to be computed
            return False

    def _events(self) -> list[DpEvent]:
        return [SelfComposedDpEvent(event, count) for event, count in self._charged.values()]

    def _cost(self, events: list[DpEvent], delta: float) -> float:
        if not events:
            return 0.0
        if self._terms is None:
            raise ContractError("Expected `open` before anything is charged. Open a run first.")
        relation, accountant = self._terms
        return epsilon_of(
            ComposedDpEvent(events), delta=delta, accountant=accountant, relation=relation
        )

    def _refusal(self, budget: Budget, event: DpEvent) -> BudgetError:
        spent = self.epsilon(budget.delta)
        why = "is not private" if exposes(event) else "does not fit"
        return BudgetError(
            f"Expected a step within the budget of epsilon = {budget.epsilon:g} at delta = "
            f"{budget.delta:g}, found epsilon = {spent:.4g} already spent after {self.entries} "
            f"charges and a next step that {why}. Left: {max(0.0, budget.epsilon - spent):.4g}. "
            "Plan fewer steps or more noise, or agree on a larger budget."
        )
