"""From a method, a sampler and a number of steps to epsilon, and back from a budget to the noise.

The event composed here is the one that the ledger is charged with, made by the sampler that draws
the batches. PLD uses a discretisation of 1e-4, which rounds up; RDP is in
`adadps.accounting.renyi`. Calibration goes the other way: it finds the noise multiplier, or the
number of steps, that fits a budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    NonPrivateDpEvent,
    SelfComposedDpEvent,
    pld,
)

from adadps.accounting.contract import Grouping, measurement_divisor, require_unit
from adadps.accounting.events import (
    delta_of,
    exposes,
    is_free,
    require_delta,
    require_small_delta,
    without_delta,
)
from adadps.accounting.renyi import NEIGHBOURS, explained, renyi_curve, reported
from adadps.accounting.samplers import Sampler
from adadps.errors import ContractError, SettingError, require
from adadps.types import Accountant, Relation, Unit

DISCRETISATION = 1e-4
LARGEST_EPSILON = 1000.0

MOST_KNOWN = 256
_KNOWN: dict[tuple[str, float, Relation], float] = {}
"""A cache of results by PLD, each of which takes seconds."""


@dataclass(frozen=True)
class Budget:
    """A privacy budget: epsilon at delta.

    >>> Budget(epsilon=1.0, delta=1e-5).epsilon
    1.0
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        require_epsilon(self.epsilon)
        require_delta(self.delta)


@dataclass(frozen=True)
class Life:
    """One life of a run: what it paid from its start, or a checkpoint, to its end or a crash."""

    steps: int
    informed: bool
    """Whether side information was paid for."""

    @classmethod
    def of(cls, charges: int, paid_first: int) -> Life:
        """Return the life with this many charges, the first ``paid_first`` for side information.

        >>> Life.of(charges=5, paid_first=1)
        Life(steps=4, informed=True)
        """
        return cls(max(0, charges - paid_first), paid_first > 0 and charges > 0)


def require_epsilon(epsilon: float) -> None:
    """Refuse an epsilon that is not a positive, finite number."""
    require(
        0 < epsilon < math.inf, "epsilon > 0", epsilon, "Common budgets lie between 0.1 and 10."
    )


def epsilon_of(
    event: DpEvent, *, delta: float, accountant: Accountant, relation: Relation
) -> float:
    """Return epsilon of a composed event at ``delta``; infinite if the event is not private.

    The part of delta that the event itself uses (`DeltaDpEvent`) is subtracted first.

    >>> from dp_accounting import GaussianDpEvent
    >>> round(epsilon_of(GaussianDpEvent(1.0), delta=1e-5, accountant=Accountant.PLD,
    ...                  relation=Relation.ADD_OR_REMOVE_ONE), 2)
    4.38
    """
    require_delta(delta)
    if exposes(event):
        return math.inf
    spent = delta_of(event)
    if spent >= delta:
        return math.inf
    if spent:
        event, delta = without_delta(event), delta - spent
    if is_free(event):
        return 0.0
    if accountant is Accountant.RDP:
        return renyi_curve(event, relation).epsilon(delta)
    key = (repr(event), delta, relation)
    if key not in _KNOWN:
        _require_reachable(event, delta, relation)
        if len(_KNOWN) == MOST_KNOWN:
            _KNOWN.pop(next(iter(_KNOWN)))
        _KNOWN[key] = _by_pld(event, delta, relation)
    return _KNOWN[key]


class ClippedAsOne(Protocol):
    """Examples that are clipped as one: a group, or the rows of a user."""

    @property
    def grouping(self) -> Grouping:
        """The row of the contract that gives their price."""

    @property
    def unit(self) -> str:
        """The unit of privacy: whose data epsilon protects."""

    def units_of(self, sampler: Sampler) -> Sampler:
        """Return the sampler as it draws these units."""


class ReleasedSum(Protocol):
    """The noisy sum of clipped gradients."""

    @property
    def noise_multiplier(self) -> float:
        """σ: the standard deviation of the noise divided by the clip norm."""

    @property
    def groups(self) -> ClippedAsOne | None:
        """Examples that are clipped as one; None if each is clipped alone."""


class Accounted(Protocol):
    """What accounting needs to know about a method; every `Chain` provides it."""

    @property
    def release(self) -> ReleasedSum:
        """The sum that is released at every step."""

    @property
    def exposures(self) -> tuple[str, ...]:
        """The reasons why it is not private; empty if it is."""

    def side_events(self, relation: Relation, accountant: Accountant) -> tuple[DpEvent, ...]:
        """Return the events of its side information."""


def run_event(
    method: Accounted, sampler: Sampler, lives: Sequence[Life], accountant: Accountant
) -> DpEvent:
    """Return the event of all these lives of a run, side information included."""
    side = method.side_events(sampler.relation, accountant)
    parts = [event for life in lives if life.informed for event in side]
    if method.exposures:
        parts.append(NonPrivateDpEvent())
    else:
        sigma, grouping = method.release.noise_multiplier, grouping_of(method)
        charged = sum(sampler.charged_steps(life.steps) for life in lives)
        if charged:
            step = sampler.step_event(sigma, 1, accountant, grouping)
            parts.append(SelfComposedDpEvent(step, charged))
    return ComposedDpEvent(parts)


def grouping_of(method: Accounted) -> Grouping:
    """Return what ``method`` clips: single examples, groups or users."""
    groups = method.release.groups
    return groups.grouping if groups else Grouping.NONE


def unit_of(method: Accounted) -> str:
    """Return the unit of privacy of ``method``: whose data epsilon protects."""
    groups = method.release.groups
    return groups.unit if groups else Unit.EXAMPLE.value


def units_of(method: Accounted, sampler: Sampler) -> Sampler:
    """Return ``sampler`` as it draws the units of ``method``, or refuse one that draws others."""
    groups = method.release.groups
    require_unit(sampler.unit, grouping_of(method))
    return groups.units_of(sampler) if groups else sampler


def epsilon_of_run(
    method: Accounted, sampler: Sampler, steps: int, *, delta: float, accountant: Accountant
) -> float:
    """Return epsilon of ``steps`` steps of ``method`` with batches from ``sampler``.

    >>> from adadps.methods.paper import dp_sgd
    >>> from adadps.accounting.samplers import poisson
    >>> from adadps.methods.stages import privatize
    >>> toy = dp_sgd(privatize(clip_norm=1.0, noise_multiplier=0.7), lr=0.1)
    >>> sampler = poisson(examples=1000, expected_size=8)
    >>> round(epsilon_of_run(toy, sampler, 2250, delta=1e-3, accountant=Accountant.RDP), 2)
    4.13
    """
    return epsilon_of_lives(
        method, sampler, [Life(steps, informed=True)], delta=delta, accountant=accountant
    )


def epsilon_of_lives(
    method: Accounted,
    sampler: Sampler,
    lives: Sequence[Life],
    *,
    delta: float,
    accountant: Accountant,
    besides: Sequence[DpEvent] = (),
) -> float:
    """Return epsilon of a resumed run: every life draws afresh, so all of them compose."""
    require_small_delta(delta, sampler.examples, sampler.unit)
    units = units_of(method, sampler)
    event = run_event(method, units, lives, accountant)
    event = ComposedDpEvent([*besides, event]) if besides else event
    return epsilon_of(event, delta=delta, accountant=accountant, relation=sampler.relation)


def _require_reachable(event: DpEvent, delta: float, relation: Relation) -> None:
    """Refuse an epsilon for which PLD would need gigabytes, by a rough bound from RDP."""
    doubled = 4.0 if relation is Relation.REPLACE_ONE else 1.0
    rough = doubled * renyi_curve(event, Relation.ADD_OR_REMOVE_ONE).epsilon(delta)
    require(
        rough <= LARGEST_EPSILON,
        f"settings with an epsilon below {LARGEST_EPSILON:g}",
        f"about {rough:.3g}",
        "That is no protection: add noise, take fewer steps, or use smaller batches.",
    )


def _by_pld(event: DpEvent, delta: float, relation: Relation) -> float:
    accountant = pld.PLDAccountant(NEIGHBOURS[relation], DISCRETISATION)
    with explained(), np.errstate(all="ignore"):
        epsilon = float(accountant.compose(event).get_epsilon(delta))
    return reported(epsilon)


NOISE_UNITS = 10_000
"""Noise multipliers are found in whole units of 1/10,000."""


def calibrate_noise(
    sampler: Sampler,
    steps: int,
    *,
    budget: Budget,
    accountant: Accountant,
    grouping: Grouping | None = None,
    besides: Sequence[DpEvent] = (),
) -> float:
    """Return the smallest noise multiplier (to 1e-4) with which ``steps`` steps fit the budget.

    ``besides`` are further events paid from the same budget, such as
    ``method.side_events(relation, accountant)``. Without a ``grouping``, every unit that the
    sampler draws is clipped by itself.
    """
    grouping = grouping or sampler.alone
    require_small_delta(budget.delta, sampler.examples, sampler.unit)

    def spent(noise_multiplier: float) -> float:
        steps_alone = sampler.run_event(noise_multiplier, steps, accountant, grouping)
        return epsilon_of(
            ComposedDpEvent([*besides, steps_alone]) if besides else steps_alone,
            delta=budget.delta,
            accountant=accountant,
            relation=sampler.relation,
        )

    start = 1.0
    if accountant is Accountant.PLD:  # Rényi accounting is quick, and gives a little more noise
        with suppress(ContractError, SettingError):
            start = calibrate_noise(
                sampler,
                steps,
                budget=budget,
                accountant=Accountant.RDP,
                grouping=grouping,
                besides=besides,
            )
    return smallest_noise(spent, budget.epsilon, start)


def calibrate_side_noise(*, budget: Budget, accountant: Accountant, relation: Relation) -> float:
    """Return the smallest noise multiplier (to 1e-4) for one measurement on all examples.

    For `side.noisy_frequencies`. The budget is the slice that the measurement would cost by itself;
    composed with the training steps, it costs less than the sum of both.

    >>> sigma = calibrate_side_noise(budget=Budget(epsilon=0.5, delta=1e-6),
    ...                              accountant=Accountant.PLD, relation=Relation.ZERO_OUT)
    >>> round(sigma, 2)
    8.06
    """
    divisor = measurement_divisor(relation, accountant)

    def spent(noise_multiplier: float) -> float:
        event = GaussianDpEvent(noise_multiplier / divisor)
        return epsilon_of(event, delta=budget.delta, accountant=accountant, relation=relation)

    return smallest_noise(spent, budget.epsilon)


def calibrate_steps(
    sampler: Sampler,
    noise_multiplier: float,
    *,
    budget: Budget,
    accountant: Accountant,
    grouping: Grouping | None = None,
) -> int:
    """Return the largest number of steps that fits the budget; 0 if not even one fits."""
    grouping = grouping or sampler.alone
    require_small_delta(budget.delta, sampler.examples, sampler.unit)

    def fits(steps: int) -> bool:
        try:
            event = sampler.run_event(noise_multiplier, steps, accountant, grouping)
            spent = epsilon_of(
                event, delta=budget.delta, accountant=accountant, relation=sampler.relation
            )
        except SettingError:
            return False
        return spent <= budget.epsilon

    return largest(fits)


def largest(fits: Callable[[int], bool], limit: int = 2**40) -> int:
    """Return the largest count for which a monotone condition holds, by doubling and bisection.

    >>> largest(lambda count: count <= 37)
    37
    """
    high = 1
    while high < limit and fits(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def smallest_noise(spent: Callable[[float], float], target: float, start: float = 1.0) -> float:
    """Return the smallest noise, in units of 1e-4, with which at most ``target`` is spent.

    >>> smallest_noise(lambda noise_multiplier: 1 / noise_multiplier, target=0.5)
    2.0
    """

    def excess(units: int) -> float:
        try:
            return math.log(max(spent(units / NOISE_UNITS), 1e-300) / target)
        except SettingError:
            return math.inf

    high = max(2, round(start * NOISE_UNITS))
    above = excess(high)  # only values that were checked are returned
    while above > 0:
        high *= 2
        require(
            high < 1e6 * NOISE_UNITS,
            "a reachable epsilon",
            target,
            "Ask for more epsilon or delta.",
        )
        above = excess(high)
    low = round(0.95 * high)
    below = excess(low)
    while low > 1 and below <= 0:
        high, above, low = low, below, low // 2
        below = excess(low)
    if below <= 0:
        return low / NOISE_UNITS
    other_side = False
    while high - low > 1:
        middle = _between(low, below, high, above, other_side)
        found, other_side = excess(middle), not other_side
        if found <= 0:
            high, above = middle, found
        else:
            low, below = middle, found
    return high / NOISE_UNITS


def _between(low: int, below: float, high: int, above: float, other_side: bool) -> int:
    """Interpolate the zero crossing, shifted to alternating sides so that both ends close in."""
    margin = max(1, (high - low) // 64)
    crossing = (low + high) // 2
    if math.isfinite(below):
        crossing = low + round((high - low) * below / (below - above))
        crossing += -margin if other_side else margin
    return min(max(crossing, low + 1), high - 1)
