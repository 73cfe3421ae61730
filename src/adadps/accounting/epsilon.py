"""From a method, a sampler and a number of steps to epsilon, and back to the noise.

The event that is composed here is the one the ledger is charged with, made by the sampler that
draws the batches. PLD is computed with a discretisation of 1e-4, which rounds up; RDP is in
`adadps.accounting.renyi`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

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
from adadps.accounting.delta import require_small_delta
from adadps.accounting.events import delta_of, exposes, is_free, without_delta
from adadps.accounting.mechanism import Accounted
from adadps.accounting.renyi import NEIGHBOURS, explained, renyi_curve, reported
from adadps.accounting.samplers import Sampler
from adadps.errors import ContractError, SettingError, require
from adadps.types import Accountant, Relation, Unit

DISCRETISATION = 1e-4
LARGEST_EPSILON = 1000.0
NOISE_UNITS = 10_000

MOST_KNOWN = 256
_KNOWN: dict[tuple[str, float, Relation], float] = {}
"""What PLD has found, which takes seconds."""


@dataclass(frozen=True)
class Budget:
    """What may be spent: epsilon at delta.

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
    """What a run has paid from a start, or from a checkpoint, to its end or to a crash."""

    steps: int
    informed: bool
    """Was side information paid for?"""

    @classmethod
    def of(cls, charges: int, paid_first: int) -> Life:
        """A life of so many charges.

        >>> Life.of(charges=5, paid_first=1)
        Life(steps=4, informed=True)
        """
        return cls(max(0, charges - paid_first), paid_first > 0 and charges > 0)


def require_epsilon(epsilon: float) -> None:
    """Refuse an epsilon that is not a positive, finite number."""
    require(
        0 < epsilon < math.inf, "epsilon > 0", epsilon, "Common budgets lie between 0.1 and 10."
    )


def require_delta(delta: float) -> None:
    """Refuse a delta outside (0, 1)."""
    require(0 < delta < 1, "0 < delta < 1", delta, "Choose it well below 1/n.")


def default_delta(examples: int) -> float:
    """1/(10 n) for a declared number of examples n."""
    return 1 / (10 * examples)


def epsilon_of(
    event: DpEvent, *, delta: float, accountant: Accountant, relation: Relation
) -> float:
    """Epsilon of a composed event at ``delta``; infinite if the event is not private.

    What the event takes of delta itself (`DeltaDpEvent`) is subtracted first.

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


def run_event(
    method: Accounted, sampler: Sampler, lives: Sequence[Life], accountant: Accountant
) -> DpEvent:
    """Everything that these lives of a run reveal, side information included."""
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
    """What ``method`` clips: single examples, groups or users."""
    groups = method.release.groups
    return groups.grouping if groups else Grouping.NONE


def unit_of(method: Accounted) -> str:
    """Whose data the epsilon of ``method`` protects."""
    groups = method.release.groups
    return groups.unit if groups else Unit.EXAMPLE.value


def units_of(method: Accounted, sampler: Sampler) -> Sampler:
    """``sampler`` as it draws the units of ``method``; refused if it draws others."""
    groups = method.release.groups
    require_unit(sampler.unit, grouping_of(method))
    return groups.units_of(sampler) if groups else sampler


def epsilon_of_run(
    method: Accounted, sampler: Sampler, steps: int, *, delta: float, accountant: Accountant
) -> float:
    """Epsilon of ``steps`` steps of ``method`` with batches from ``sampler``.

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
    """Epsilon of a run that was resumed: every life draws afresh, so that all of them add up."""
    require_small_delta(delta, sampler.examples, sampler.unit)
    units = units_of(method, sampler)
    event = run_event(method, units, lives, accountant)
    event = ComposedDpEvent([*besides, event]) if besides else event
    return epsilon_of(event, delta=delta, accountant=accountant, relation=sampler.relation)


def calibrate_noise(
    sampler: Sampler,
    steps: int,
    *,
    budget: Budget,
    accountant: Accountant,
    grouping: Grouping | None = None,
    besides: Sequence[DpEvent] = (),
) -> float:
    """The smallest noise multiplier (to 1e-4) with which ``steps`` steps fit the budget.

    ``besides`` is what is paid from the same budget before them, such as
    ``method.side_events(relation, accountant)``. Without a ``grouping`` every unit that the sampler
    draws is clipped by itself.
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
    if accountant is Accountant.PLD:  # Rényi is quick, and a little above
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
    """The smallest noise multiplier (to 1e-4) of one measurement on all examples in the budget.

    For `side.noisy_frequencies`. The budget is the slice that the measurement would cost by itself;
    together with the steps it costs less than the sum of both.

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
    """The largest number of steps that fits the budget; 0 if not even one does."""
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
    """The largest count for which a monotone condition holds, by doubling and halving.

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
    """The smallest noise, in whole units of 1e-4, with which no more than ``target`` is spent.

    >>> smallest_noise(lambda noise_multiplier: 1 / noise_multiplier, target=0.5)
    2.0
    """

    def excess(units: int) -> float:
        try:
            return math.log(max(spent(units / NOISE_UNITS), 1e-300) / target)
        except SettingError:
            return math.inf

    high = max(2, round(start * NOISE_UNITS))
    above = excess(high)  # what is returned is what was checked
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
    """Where a straight line crosses zero, a little to either side: then both ends close in."""
    margin = max(1, (high - low) // 64)
    crossing = (low + high) // 2
    if math.isfinite(below):
        crossing = low + round((high - low) * below / (below - above))
        crossing += -margin if other_side else margin
    return min(max(crossing, low + 1), high - 1)


def _require_reachable(event: DpEvent, delta: float, relation: Relation) -> None:
    """Refuse what PLD could only compute with gigabytes of memory, by a rough bound from RDP."""
    doubled = 4.0 if relation is Relation.REPLACE_ONE else 1.0
    rough = doubled * renyi_curve(event, Relation.ADD_OR_REMOVE_ONE).epsilon(delta)
    require(
        rough <= LARGEST_EPSILON,
        f"settings with an epsilon below {LARGEST_EPSILON:g}",
        f"about {rough:.3g}",
        "That is no protection: add noise, take fewer steps, or draw smaller batches.",
    )


def _by_pld(event: DpEvent, delta: float, relation: Relation) -> float:
    accountant = pld.PLDAccountant(NEIGHBOURS[relation], DISCRETISATION)
    with explained(), np.errstate(all="ignore"):
        epsilon = float(accountant.compose(event).get_epsilon(delta))
    return reported(epsilon)
