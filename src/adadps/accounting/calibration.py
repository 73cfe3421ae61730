"""Calibration: the noise multiplier, or the number of steps, that fits a budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress

from dp_accounting import ComposedDpEvent, DpEvent, GaussianDpEvent

from adadps.accounting.contract import Grouping, measurement_divisor
from adadps.accounting.delta import require_small_delta
from adadps.accounting.epsilon import Budget, epsilon_of
from adadps.accounting.samplers import Sampler
from adadps.errors import ContractError, SettingError, require
from adadps.types import Accountant, Relation

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
