"""What a run pays: for side information, then for every step, before anything is drawn.

A run that is resumed continues as a further *life* of the same run. It starts sampling afresh, so
its first step is charged like a first step, and what its earlier lives have reserved stays paid.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from dp_accounting import ComposedDpEvent, DpEvent, NonPrivateDpEvent, SelfComposedDpEvent

from adadps.accounting.epsilon import (
    Budget,
    Life,
    epsilon_of,
    epsilon_of_lives,
    grouping_of,
    largest,
    units_of,
)
from adadps.accounting.events import (
    composed,
    default_delta,
    exposes,
    require_delta,
    require_small_delta,
    text_of,
)
from adadps.accounting.ledger import DiskLedger, Ledger, MemoryLedger
from adadps.accounting.noisy_counts.price import Paid
from adadps.accounting.samplers import Sampler
from adadps.engine.group import ALONE, Group
from adadps.errors import BudgetError, ContractError, SettingError
from adadps.methods.stages.chain import Chain
from adadps.training.checkpoint import RunFolder
from adadps.training.describe import plan_of
from adadps.training.shared_ledger import SharedLedger
from adadps.types import Accountant, Relation

STEPS_RESERVED_AT_ONCE = 16
"""A disk ledger reserves this many steps at once, and no more than a hundredth of the run."""


@dataclass(frozen=True, kw_only=True)
class PaymentTerms:
    """What a run may spend, who counts it, and where it is written down.

    ``budget`` is what this run may cost; ``ledger`` is the account that it is paid from, which may
    carry a budget for all its runs together. ``measured`` was paid before the run began.
    """

    budget: Budget | None = None
    ledger: Ledger | None = None
    delta: float | None = None
    accountant: Accountant | None = None
    measured: Paid | None = None


class Payment:
    """The account of one run on its ledger: its plan, its name there, what it has paid."""

    def __init__(
        self,
        method: Chain,
        sampler: Sampler,
        steps: int,
        terms: PaymentTerms,
        folder: RunFolder,
        group: Group = ALONE,
    ) -> None:
        held, measured = folder.found, terms.measured
        self._group = group
        self.ledger = self._ledger_for(terms, folder)
        self._to_create = folder.ledger if terms.ledger is None and folder else None
        self.accountant = accountant_for(method, sampler, terms)
        self.delta = _delta(terms.delta, self.ledger.budget or terms.budget, sampler)
        require_small_delta(self.delta, sampler.examples, sampler.unit, warn=True)
        self.units = units_of(method, sampler)
        paid_before = measured.events if measured else ()
        plan = plan_of(method, sampler, steps, self.accountant, paid_before)
        self.plan_hash = plan.plan_hash(sampler.relation, self.accountant)
        self.run = self._told_name(folder, measured)
        self._method, self._sampler = method, sampler
        self._plan = replace(plan, paid_first=0) if held and held.begun else plan
        self._begins_after = held.taken if held else 0
        self._most = terms.budget.epsilon if terms.budget else None
        self._owns_ledger = terms.ledger is None
        self._steps = steps
        self._steps_of_share: int | None = None  # in this life, where the run has a share
        self._earlier = self.ledger.charged(self.run)
        self._has_lost = self.paid > len(paid_before)  # steps, or a measurement, before this life
        self._charges_seen = self.paid
        self._events: dict[bool, DpEvent] = {}  # of steps that are charged, and of others
        if measured:
            self._require_paid_first(measured.events)

    def _ledger_for(self, terms: PaymentTerms, folder: RunFolder) -> Ledger:
        """The ledger of the run; in a group, the first process opens it for all."""
        make = partial(ledger_for, terms.ledger, terms.budget, folder.ledger)
        if self._group.is_alone or isinstance(terms.ledger, SharedLedger):
            return make()
        return SharedLedger(self._group, make)

    def _told_name(self, folder: RunFolder, measured: Paid | None) -> str:
        def name() -> str:
            return measured.run if measured else self._name(folder)

        return self.ledger.name_of(name) if isinstance(self.ledger, SharedLedger) else name()

    def _name(self, folder: RunFolder) -> str:
        """A new name, or that of the run on this ledger whose checkpoint is here or was lost."""
        if folder.found is not None:
            return folder.found.run
        known, held = None, self.ledger
        own = held.own if isinstance(held, SharedLedger) else held
        if folder and isinstance(own, DiskLedger):
            known = own.run_of(self.plan_hash)
            is_its_own = own.path == folder.ledger
            if known and not is_its_own and own.charged(known):
                known = None
        return known or secrets.token_hex(8)

    @property
    def paid(self) -> int:
        """How many charges the run has made in all its lives."""
        return sum(count for _, count in self.ledger.charged(self.run))

    @property
    def was_exposed(self) -> bool:
        """Has an earlier life of this run done something that was not private?"""
        return any(exposes(event) for event, _ in self._earlier)

    @property
    def paid_steps(self) -> int:
        """How many steps the run has reserved in all its lives."""
        return sum(life.steps for life in self.ledger.lives(self.run))

    @property
    def charges(self) -> tuple[dict[str, Any], ...]:
        """Every event that was charged, as text, with its count: what epsilon is composed of."""
        charged = self.ledger.charged(self.run)
        return tuple({"event": text_of(event), "count": count} for event, count in charged)

    def open(self) -> None:
        """Open the run on the ledger."""
        relation = self._sampler.relation
        self.ledger.open(self.run, relation, self.accountant, self._plan)

    def record(self) -> None:
        """Create the run's own ledger on the disk, now that its plan was found to fit."""
        place, budget = self._to_create, self.ledger.budget
        if place is None or isinstance(self.ledger, DiskLedger):
            return
        if isinstance(self.ledger, SharedLedger):
            if self.ledger.is_on_disk:
                return
            self.ledger = SharedLedger(self._group, lambda: DiskLedger(place, budget=budget))
        else:
            self.ledger = DiskLedger(place, budget=budget)
        self.open()

    def _require_paid_first(self, events: Sequence[DpEvent]) -> None:
        """Refuse a ledger that does not hold what was measured for this run before it began."""
        charged = {text_of(event) for event, _ in self._earlier}
        if not all(text_of(event) in charged for event in events):
            raise ContractError(
                "Expected a ledger on which this run has paid for what was measured before its "
                "first step, found one without that charge. Give the ledger of that measurement."
            )

    def pay_for_side_information(self) -> None:
        """Charge the cost of side information, unless this life has it from a checkpoint."""
        events = self._side_events()
        if events and self._has_share and not self._keeps_its_budget(0):
            raise self._beyond_share("side information alone does not fit")
        for event in events:
            self.ledger.authorise(event, run=self.run)
        self._charges_seen = self.paid

    def pay_for_step(self, index: int, last: int) -> None:
        """Charge step ``index`` of a run that will end with step ``last``."""
        index, steps = index - self._begins_after, last - self._begins_after
        if self._has_share:
            self._require_alone()
            steps = min(steps, self._room_of_share())
            if index > steps:
                raise self._beyond_share(f"step {index} does not fit")
        charged = self.units.charged_steps
        every_step_is_charged = charged(steps) == steps
        at_once = min(STEPS_RESERVED_AT_ONCE, last // 100) if every_step_is_charged else 1
        self.ledger.authorise(
            self._step_event(index),
            run=self.run,
            ahead=charged(steps) - charged(index - 1),
            at_once=max(1, min(at_once, steps - index + 1)),
        )
        if self._has_share:
            self._charges_seen = self.paid

    def _require_alone(self) -> None:
        """Refuse to spend a share that another object of the same run is spending, too."""
        if self.paid != self._charges_seen:
            raise ContractError(
                "Expected one run under this name on the ledger, found that another was charged in "
                "the meantime: both would spend the same share. Continue with one of them."
            )

    def is_ahead(self, taken: int) -> bool:
        """Are steps reserved on the disk that are not among the ``taken`` ones?

        Every step has an entry of its own, also in an epoch that is already paid for.
        """
        in_this_life = self.ledger.lives(self.run)[-1].steps
        return in_this_life > taken - self._begins_after

    def note_exposure(self) -> None:
        """Charge a step of a run that is not private; a budget refuses it."""
        if self._has_share:
            raise self._beyond_share("the run is not private")
        self.ledger.authorise(NonPrivateDpEvent(), run=self.run)

    def fits(self, steps: int) -> bool:
        """Decide whether ``steps`` further steps fit the budget: that of the run and the ledger."""
        return self._keeps_its_budget(steps) and self._room_on_ledger(steps) == steps

    def require_room(self, last: int) -> None:
        """Refuse a plan that its budget would cut short, with the model half trained."""
        if self.fits(last - self._begins_after):
            return
        planned = "more than can be computed"
        with suppress(SettingError):
            planned = f"{self.epsilon(last):.4g}"
        held = self.ledger.budget
        most, beside = self._most, ""
        if held is not None and (most is None or self._keeps_its_budget(last - self._begins_after)):
            most = held.epsilon  # the limit that the plan does not fit
            entries = self.ledger.entries
            beside = f" beside {entries} charges on the ledger" if entries else ""
        raise BudgetError(
            f"Expected {last} steps within epsilon = {most:g} at delta = {self.delta:g}, found a "
            f"plan that costs {planned}{beside}, which does not fit. Nothing was drawn. Plan fewer "
            "steps or more noise: `calibrate_noise` finds the noise, `calibrate_steps` the steps; "
            "where nothing is left on a ledger, no further run fits."
        )

    def require_private(self, not_private_because: Sequence[str]) -> None:
        """Refuse a run that is not private where a budget is to be kept."""
        held = self.ledger.budget
        most = self._most if self._most is not None else held.epsilon if held else None
        if most is not None:
            raise BudgetError(
                f"Expected a private run within the budget of epsilon = {most:g}, found one that "
                f"is not private: {'; '.join(not_private_because)}. Nothing was drawn. Leave the "
                "budget out to compare with such a run."
            )

    def last_step(self, planned: int) -> int:
        """Return the step at which a run must end to keep its budget.

        A run whose earlier lives have paid for what was lost takes as many fewer as it must.
        """
        left = planned - self._begins_after
        if not self._has_lost or not left:
            return planned
        if self._has_share:
            left = self._room_of_share()
        return self._begins_after + (self._room_on_ledger(left) if left else 0)

    @property
    def _has_share(self) -> bool:
        """Has the run a budget of its own on a ledger that may hold other runs?"""
        return self._most is not None and not self._owns_ledger

    def _room_of_share(self) -> int:
        """How many steps of this life fit the run's share of the ledger."""
        if self._steps_of_share is None:
            left = self._steps - self._begins_after
            fits = self._keeps_its_budget(left)
            self._steps_of_share = left if fits else largest(self._keeps_its_budget, limit=left)
        return self._steps_of_share

    def _beyond_share(self, why: str) -> BudgetError:
        return BudgetError(
            f"Expected a run within its share of the ledger, epsilon = {self._most:g} at delta = "
            f"{self.delta:g}, found that {why}. Plan fewer steps or more noise, or give the run a "
            "larger budget."
        )

    def _keeps_its_budget(self, steps: int) -> bool:
        if self._most is None:
            return True
        try:
            return self.epsilon(self._begins_after + steps) <= self._most
        except SettingError:  # epsilon is too large to be computed
            return False

    def _room_on_ledger(self, steps: int) -> int:
        """How many of ``steps`` further steps fit on the ledger, with unpaid side information."""
        if self.ledger.budget is None or not steps:
            return steps
        charged, event, first = self.units.charged_steps, self._step_event(1), self._side_events()
        if not first:
            room = self.ledger.room(event, charged(steps))
            if room == charged(steps):
                return steps
            return largest(lambda count: charged(count) <= room, limit=steps)

        def has_room(count: int) -> bool:
            whole = ComposedDpEvent([*first, SelfComposedDpEvent(event, charged(count))])
            return self.ledger.room(whole, 1) == 1

        return steps if has_room(steps) else largest(has_room, limit=steps)

    def epsilon(self, steps: int | None = None, accountant: Accountant | None = None) -> float:
        """What the run costs by all that was charged, or will when ``steps`` steps are taken."""
        accountant = accountant or self.accountant
        alike = self._sampler.relation is not Relation.REPLACE_ONE
        if accountant is not self.accountant and not alike:  # it would charge other events
            return self.mechanism_epsilon(steps, accountant)
        charges = self.ledger.charged(self.run) if steps is None else self._planned(steps)
        if not charges:
            return 0.0
        return epsilon_of(
            composed(charges),
            delta=self.delta,
            accountant=accountant,
            relation=self._sampler.relation,
        )

    def mechanism_epsilon(self, steps: int | None, accountant: Accountant) -> float:
        """What ``steps`` steps of the mechanism would cost, whatever was charged."""
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

    def _planned(self, steps: int) -> list[tuple[DpEvent, int]]:
        more = self.units.charged_steps(max(0, steps - self._begins_after))
        merged: dict[str, tuple[DpEvent, int]] = {}
        for event, count in (
            *self._earlier,
            *((event, 1) for event in self._side_events()),
            (self._step_event(1), more),
        ):
            merged[repr(event)] = (event, merged.get(repr(event), (event, 0))[1] + count)
        return [(event, count) for event, count in merged.values() if count]

    def _side_events(self) -> tuple[DpEvent, ...]:
        if not self._plan.paid_first:
            return ()
        return self._method.side_events(self._sampler.relation, self.accountant)

    def _step_event(self, index: int) -> DpEvent:
        charged = self.units.charged_steps
        is_charged = charged(index) > charged(index - 1)
        if is_charged not in self._events:
            method = self._method
            self._events[is_charged] = self.units.step_event(
                method.release.noise_multiplier, index, self.accountant, grouping_of(method)
            )
        return self._events[is_charged]


def ledger_for(ledger: Ledger | None, budget: Budget | None, beside: Path | None) -> Ledger:
    """Return the given ledger, that of an earlier life at ``beside``, or a new one in memory."""
    if ledger is None:
        if beside is not None and os.path.lexists(beside):
            return DiskLedger(beside, budget=budget)
        return MemoryLedger(budget)
    held = ledger.budget
    if budget is not None and held is not None and budget.delta != held.delta:
        raise ContractError(
            f"Expected a budget with the delta of the ledger, {held.delta:g}, found "
            f"{budget.delta:g}. Give the run a share of epsilon at the same delta."
        )
    return ledger


def accountant_for(method: Chain, sampler: Sampler, terms: PaymentTerms) -> Accountant:
    """Return the accountant asked for, that of the ledger, or the tightest that fits."""
    if terms.accountant is not None:
        return terms.accountant
    fitting = sampler.accountants(grouping_of(method))
    return fitting[0] if terms.ledger is None else terms.ledger.choose_accountant(fitting)


def _delta(delta: float | None, held: Budget | None, sampler: Sampler) -> float:
    if delta is None:
        return held.delta if held is not None else default_delta(sampler.examples)
    require_delta(delta)
    if held is not None and delta != held.delta:
        raise ContractError(
            f"Expected the delta of the budget, {held.delta:g}, found another, {delta:g}: epsilon "
            "at one is no claim at the other. Leave delta out."
        )
    return delta
