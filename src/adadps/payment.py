"""What a run pays: for side information, then for every step, before anything is drawn.

A run that is resumed is a further *life* of the same run. It begins to sample anew, so that its
first step is charged like a first step, and what its earlier lives have reserved stays paid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dp_accounting import ComposedDpEvent, DpEvent, NonPrivateDpEvent, SelfComposedDpEvent

from adadps.accounting import (
    Life,
    default_delta,
    epsilon_of_lives,
    grouping_of,
    largest,
    require_delta,
)
from adadps.ledger import Ledger, RunFacts
from adadps.sampling import Sampler
from adadps.stages.chain import Chain
from adadps.types import Accountant

AT_ONCE = 16
"""So many steps are reserved at once on a disk, and no more than a hundredth of the run."""


class Payment:
    """The account of one run on its ledger."""

    def __init__(
        self,
        ledger: Ledger,
        run: str,
        *,
        method: Chain,
        sampler: Sampler,
        plan: RunFacts,
        accountant: Accountant,
        delta: float | None,
        begins_after: int,
    ) -> None:
        self.ledger, self.run, self.accountant = ledger, run, accountant
        self.delta = _delta(delta, ledger, sampler)
        self._method, self._sampler, self._plan = method, sampler, plan
        groups = method.release.groups
        self.units = groups.units_of(sampler) if groups else sampler
        self._begins_after = begins_after
        self._earlier = ledger.lives(run)

    @property
    def paid(self) -> int:
        """How many charges the run has made in all its lives, one for all side information."""
        return sum(life.steps + life.informed for life in self._lives())

    @property
    def paid_steps(self) -> int:
        """How many steps the run has reserved in all its lives."""
        return sum(life.steps for life in self._lives())

    def open(self) -> None:
        """Open the run on the ledger."""
        relation = self._sampler.relation
        self.ledger.open(self.run, relation, self.accountant, self._plan)

    def pay_for_side_information(self) -> None:
        """Charge what it costs to know it, in a life that has it from no checkpoint."""
        for event in self._side_events():
            self.ledger.authorise(event, run=self.run)

    def pay_for_step(self, index: int, last: int) -> None:
        """Charge step ``index`` of a run that will end with step ``last``."""
        index, steps = index - self._begins_after, last - self._begins_after
        charged = self.units.charged_steps
        every_step_is_charged = charged(steps) == steps
        at_once = min(AT_ONCE, last // 100) if every_step_is_charged else 1
        self.ledger.authorise(
            self._step_event(index),
            run=self.run,
            ahead=charged(steps) - charged(index - 1),
            at_once=max(1, at_once),
        )

    def note_exposure(self) -> None:
        """Charge a step of a run that is not private; a ledger with a budget refuses it."""
        self.ledger.authorise(NonPrivateDpEvent(), run=self.run)

    def fits(self, steps: int) -> bool:
        """Has the ledger room for side information and so many steps, before anything is paid?"""
        charges, first = self.units.charged_steps(steps), self._side_events()
        if not first or not charges:
            return self.ledger.room(self._step_event(1), charges) == charges
        whole = ComposedDpEvent([*first, SelfComposedDpEvent(self._step_event(1), charges)])
        return self.ledger.room(whole, 1) == 1

    def last_step(self, planned: int) -> int:
        """Where a run must end so as to keep its budget.

        One whose earlier lives paid for steps that were lost takes as many fewer as it must.
        """
        left = planned - self._begins_after
        lost = sum(life.steps for life in self._earlier) > self._begins_after
        if not (lost and left) or self.ledger.budget is None:
            return planned
        charges = self.units.charged_steps(left)
        room = self.ledger.room(self._step_event(1), charges)
        if room < charges:
            left = largest(lambda steps: self.units.charged_steps(steps) <= room, limit=left)
        return self._begins_after + left

    def epsilon(self, steps: int | None = None, accountant: Accountant | None = None) -> float:
        """What the mechanism costs by what was paid, or will when ``steps`` steps are taken."""
        return epsilon_of_lives(
            self._method,
            self._sampler,
            self._lives() if steps is None else self._planned_lives(steps),
            delta=self.delta,
            accountant=accountant or self.accountant,
        )

    def _lives(self) -> Sequence[Life]:
        return self.ledger.lives(self.run)

    def _planned_lives(self, steps: int) -> Sequence[Life]:
        life = Life(max(0, steps - self._begins_after), informed=self._plan.paid_first > 0)
        return (*self._earlier, life)

    def _side_events(self) -> tuple[DpEvent, ...]:
        if not self._plan.paid_first:
            return ()
        return self._method.side_events(self._sampler.relation, self.accountant)

    def _step_event(self, index: int) -> DpEvent:
        method = self._method
        return self.units.step_event(
            method.release.noise_multiplier, index, self.accountant, grouping_of(method)
        )


def without_side_information(plan: RunFacts) -> RunFacts:
    """The plan of a life that has its side information from a checkpoint."""
    return replace(plan, paid_first=0)


def _delta(delta: float | None, ledger: Ledger, sampler: Sampler) -> float:
    if delta is None:
        held = ledger.budget
        return held.delta if held is not None else default_delta(sampler.examples)
    require_delta(delta)
    return delta
