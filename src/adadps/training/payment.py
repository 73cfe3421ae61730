"""What a run pays: for side information, then for every step, before anything is drawn.

A run that is resumed is a further *life* of the same run. It begins to sample anew, so that its
first step is charged like a first step, and what its earlier lives have reserved stays paid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dp_accounting import ComposedDpEvent, DpEvent, NonPrivateDpEvent, SelfComposedDpEvent

from adadps.accounting.calibration import largest
from adadps.accounting.delta import default_delta, require_delta, require_small_delta
from adadps.accounting.epsilon import Life, epsilon_of, epsilon_of_lives, grouping_of, units_of
from adadps.accounting.events import composed, exposes, text_of
from adadps.accounting.ledger import Ledger, RunFacts
from adadps.accounting.samplers import Sampler
from adadps.errors import ContractError
from adadps.methods.stages.chain import Chain
from adadps.types import Accountant, Relation

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
        most_epsilon: float | None = None,
    ) -> None:
        self.ledger, self.run, self.accountant = ledger, run, accountant
        self.delta = _delta(delta, ledger, sampler)
        require_small_delta(self.delta, sampler.examples, sampler.unit, warn=True)
        self._method, self._sampler, self._plan = method, sampler, plan
        self.units = units_of(method, sampler)
        self._begins_after, self._most = begins_after, most_epsilon
        self._earlier = ledger.charged(run)

    @property
    def paid(self) -> int:
        """How many charges the run has made in all its lives."""
        return sum(count for _, count in self.ledger.charged(self.run))

    @property
    def was_exposed(self) -> bool:
        """Has a life of this run before this one done something that was not private?"""
        return any(exposes(event) for event, _ in self._earlier)

    @property
    def paid_steps(self) -> int:
        """How many steps the run has reserved in all its lives."""
        return sum(life.steps for life in self.ledger.lives(self.run))

    @property
    def charges(self) -> tuple[dict[str, Any], ...]:
        """Every event that was charged, as text, with how often: what epsilon is composed of."""
        charged = self.ledger.charged(self.run)
        return tuple({"event": text_of(event), "count": count} for event, count in charged)

    def open(self) -> None:
        """Open the run on the ledger."""
        relation = self._sampler.relation
        self.ledger.open(self.run, relation, self.accountant, self._plan)

    def require_paid_first(self, events: Sequence[DpEvent]) -> None:
        """Refuse a run whose ledger does not hold what was measured for it before it began."""
        charged = {text_of(event) for event, _ in self._earlier}
        if not all(text_of(event) in charged for event in events):
            raise ContractError(
                "Expected a ledger on which this run has paid for what was measured before its "
                "first step, found one without that charge. Give the ledger of that measurement."
            )

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

    def is_ahead(self, taken: int) -> bool:
        """Are steps reserved on the disk that are not among the ``taken`` ones?

        Every step has an entry of its own, those of an epoch that is paid for already included.
        """
        in_this_life = self.ledger.lives(self.run)[-1].steps
        return in_this_life > taken - self._begins_after

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

        One whose earlier lives have paid for what was lost takes as many fewer steps as it must.
        """
        left = planned - self._begins_after
        if not self._earlier or not left:
            return planned
        if self._most is not None and self.epsilon(planned) > self._most:
            left = largest(self._keeps_to_its_own, limit=left)
            planned = self._begins_after + left
        if not left or self.ledger.budget is None:
            return planned
        if self._side_events():
            room = left if self.fits(left) else largest(self.fits, limit=left)
            return self._begins_after + room
        charged = self.units.charged_steps
        room = self.ledger.room(self._step_event(1), charged(left))
        if room < charged(left):
            left = largest(lambda steps: charged(steps) <= room, limit=left)
        return self._begins_after + left

    def epsilon(self, steps: int | None = None, accountant: Accountant | None = None) -> float:
        """What the run costs by all that was charged, or will when ``steps`` steps are taken."""
        accountant = accountant or self.accountant
        alike = self._sampler.relation is not Relation.REPLACE_ONE
        if accountant is not self.accountant and not alike:  # who else would charge other events
            return self.mechanism_epsilon(steps, accountant)
        charged = self.ledger.charged(self.run)
        return epsilon_of(
            composed(charged if steps is None else self._planned(steps)),
            delta=self.delta,
            accountant=accountant,
            relation=self._sampler.relation,
        )

    def mechanism_epsilon(self, steps: int | None, accountant: Accountant) -> float:
        """What so many steps of the mechanism would cost, whatever was charged."""
        lives = self.ledger.lives(self.run)
        if steps is not None:
            more = max(0, steps - self._begins_after)
            lives = (*lives, Life(more, informed=self._plan.paid_first > 0))
        return epsilon_of_lives(
            self._method,
            self._sampler,
            lives,
            delta=self.delta,
            accountant=accountant,
            besides=self._measured(),
        )

    def _measured(self) -> tuple[DpEvent, ...]:
        """Charges that are neither for steps nor for side information of the method."""
        known = {text_of(event) for event in (*self._side_events(), self._step_event(1))}
        return tuple(
            event
            for event, count in self._earlier
            for _ in range(count)
            if not exposes(event) and text_of(event) not in known
        )

    def _keeps_to_its_own(self, more: int) -> bool:
        return self._most is None or self.epsilon(self._begins_after + more) <= self._most

    def _planned(self, steps: int) -> list[tuple[DpEvent, int]]:
        more = self.units.charged_steps(max(0, steps - self._begins_after))
        merged: dict[str, tuple[DpEvent, int]] = {}
        for event, count in (
            *self._earlier,
            *((event, 1) for event in self._side_events()),
            (self._step_event(1), more),
        ):
            merged[repr(event)] = (event, merged.get(repr(event), (event, 0))[1] + count)
        return list(merged.values())

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
    held = ledger.budget
    if delta is None:
        return held.delta if held is not None else default_delta(sampler.examples)
    require_delta(delta)
    if held is not None and delta != held.delta:
        raise ContractError(
            f"Expected the delta of the budget, {held.delta:g}, found another, {delta:g}: epsilon "
            "at one is no claim at the other. Leave delta out."
        )
    return delta
