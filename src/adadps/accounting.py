"""From a method, a sampler and a number of steps to epsilon, and back to the noise.

The event that is composed here is the one the ledger is charged with, made by the sampler that
draws the batches. PLD is computed with a discretisation of 1e-4, which rounds up.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np
from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    NeighboringRelation,
    NonPrivateDpEvent,
    SelfComposedDpEvent,
    UnsupportedEventError,
    pld,
    rdp,
)

from adadps.contract import Grouping
from adadps.errors import ContractError, SettingError
from adadps.events import exposes
from adadps.sampling import Sampler
from adadps.stages.chain import Chain
from adadps.types import Accountant, Relation, require

DISCRETISATION = 1e-4
LARGEST_EPSILON = 1000.0
NOISE_UNITS = 10_000
NEARLY_ALL = 0.9
Values = np.ndarray[tuple[int], np.dtype[np.float64]]
_MODERATE = "Use a noise multiplier between 0.1 and 1000 and a delta above 1e-15."

MOST_KNOWN = 256
_KNOWN: dict[tuple[str, float, Relation], float] = {}
"""What PLD has found, which takes seconds."""

_RELATIONS = {
    Relation.ADD_OR_REMOVE_ONE: NeighboringRelation.ADD_OR_REMOVE_ONE,
    Relation.ZERO_OUT: NeighboringRelation.REPLACE_SPECIAL,
    Relation.REPLACE_ONE: NeighboringRelation.REPLACE_ONE,
}


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

    >>> from dp_accounting import GaussianDpEvent
    >>> round(epsilon_of(GaussianDpEvent(1.0), delta=1e-5, accountant=Accountant.PLD,
    ...                  relation=Relation.ADD_OR_REMOVE_ONE), 2)
    4.38
    """
    require_delta(delta)
    if exposes(event):
        return math.inf
    if accountant is Accountant.RDP:
        return _compute(_rdp(relation), event, delta)
    key = (repr(event), delta, relation)
    if key not in _KNOWN:
        _require_reachable(event, delta, relation)
        accounted = pld.PLDAccountant(_RELATIONS[relation], DISCRETISATION)
        if len(_KNOWN) == MOST_KNOWN:
            _KNOWN.pop(next(iter(_KNOWN)))
        _KNOWN[key] = _compute(accounted, event, delta)
    return _KNOWN[key]


@dataclass(frozen=True)
class RenyiCurve:
    """The Rényi divergence of an event at each order; curves of events that compose add up."""

    orders: Values
    values: Values

    def epsilon(self, delta: float, order: float | None = None) -> float:
        """Epsilon at ``delta`` by the best order, or by one that was fixed beforehand."""
        chosen = slice(None) if order is None else self.orders == order
        with _explained(), _quiet():
            epsilon, _ = rdp.compute_epsilon(self.orders[chosen], self.values[chosen], delta)
        return _finite(float(epsilon))

    def order_for(self, budget: Budget) -> float:
        """An order to fix beforehand, when more events like this one are to come.

        The lowest order at which the budget holds at least 9 in 10 of the events that it holds at
        the best: sampled events with less noise than this one explode at slightly higher orders.

        >>> from dp_accounting import GaussianDpEvent
        >>> curve = renyi_curve(GaussianDpEvent(30.0), Relation.ADD_OR_REMOVE_ONE)
        >>> curve.order_for(Budget(epsilon=1.0, delta=1e-5))  # the best one is 18
        14.0
        """
        usable = self.orders > 1.01
        orders = self.orders[usable]
        with np.errstate(all="ignore"):
            overhead = np.log1p(-1 / orders) - np.log(budget.delta * orders) / (orders - 1)
            events = np.nan_to_num((budget.epsilon - overhead) / self.values[usable], nan=-math.inf)
        return float(orders[np.argmax(events >= NEARLY_ALL * events.max())])


def renyi_curve(event: DpEvent, relation: Relation) -> RenyiCurve:
    """The Rényi curve of an event that is private."""
    with _explained(), _quiet(), np.errstate(all="ignore"):
        composed = _rdp(relation).compose(event)
    return RenyiCurve(composed.orders, composed.rdp)


def run_event(
    method: Chain, sampler: Sampler, lives: Sequence[Life], accountant: Accountant
) -> DpEvent:
    """Everything that these lives of a run reveal, side information included."""
    parts = [side_event(method) for life in lives if life.informed]
    if method.exposures:
        parts.append(NonPrivateDpEvent())
    else:
        sigma, grouping = method.release.noise_multiplier, grouping_of(method)
        charged = sum(sampler.charged_steps(life.steps) for life in lives)
        if charged:
            step = sampler.step_event(sigma, 1, accountant, grouping)
            parts.append(SelfComposedDpEvent(step, charged))
    return ComposedDpEvent(parts)


def side_event(method: Chain) -> DpEvent:
    """What the side information of ``method`` cost, paid once."""
    return ComposedDpEvent([stage.event for stage in method.informed])


def grouping_of(method: Chain) -> Grouping:
    """What ``method`` clips: single examples or groups."""
    groups = method.release.groups
    return groups.grouping if groups else Grouping.NONE


def epsilon_of_run(
    method: Chain, sampler: Sampler, steps: int, *, delta: float, accountant: Accountant
) -> float:
    """Epsilon of ``steps`` steps of ``method`` with batches from ``sampler``.

    >>> from adadps.methods import dp_sgd
    >>> from adadps.sampling import poisson
    >>> from adadps.stages import privatize
    >>> toy = dp_sgd(privatize(clip_norm=1.0, noise_multiplier=0.7), lr=0.1)
    >>> sampler = poisson(examples=1000, expected_size=8)
    >>> round(epsilon_of_run(toy, sampler, 2250, delta=1e-3, accountant=Accountant.RDP), 2)
    4.13
    """
    return epsilon_of_lives(
        method, sampler, [Life(steps, informed=True)], delta=delta, accountant=accountant
    )


def epsilon_of_lives(
    method: Chain,
    sampler: Sampler,
    lives: Sequence[Life],
    *,
    delta: float,
    accountant: Accountant,
) -> float:
    """Epsilon of a run that was resumed: every life draws afresh, so that all of them add up."""
    units = method.release.groups.units_of(sampler) if method.release.groups else sampler
    event = run_event(method, units, lives, accountant)
    return epsilon_of(event, delta=delta, accountant=accountant, relation=sampler.relation)


def calibrate_noise(
    sampler: Sampler,
    steps: int,
    *,
    budget: Budget,
    accountant: Accountant,
    grouping: Grouping = Grouping.NONE,
) -> float:
    """The smallest noise multiplier (to 1e-4) with which ``steps`` steps fit the budget."""

    def spent(noise_multiplier: float) -> float:
        return epsilon_of(
            sampler.run_event(noise_multiplier, steps, accountant, grouping),
            delta=budget.delta,
            accountant=accountant,
            relation=sampler.relation,
        )

    start = 1.0
    if accountant is Accountant.PLD:  # Rényi is quick, and a little above
        with suppress(ContractError, SettingError):
            start = calibrate_noise(
                sampler, steps, budget=budget, accountant=Accountant.RDP, grouping=grouping
            )
    return smallest_noise(spent, budget.epsilon, start)


def calibrate_steps(
    sampler: Sampler,
    noise_multiplier: float,
    *,
    budget: Budget,
    accountant: Accountant,
    grouping: Grouping = Grouping.NONE,
) -> int:
    """The largest number of steps that fits the budget; 0 if not even one does."""

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


def _rdp(relation: Relation) -> rdp.RdpAccountant:
    return rdp.RdpAccountant(neighboring_relation=_RELATIONS[relation])


def _require_reachable(event: DpEvent, delta: float, relation: Relation) -> None:
    """Refuse what PLD could only compute with gigabytes of memory, by a rough bound from RDP."""
    doubled = 4.0 if relation is Relation.REPLACE_ONE else 1.0
    rough = doubled * _compute(_rdp(Relation.ADD_OR_REMOVE_ONE), event, delta)
    require(
        rough <= LARGEST_EPSILON,
        f"settings with an epsilon below {LARGEST_EPSILON:g}",
        f"about {rough:.3g}",
        "That is no protection: add noise, take fewer steps, or draw smaller batches.",
    )


def _compute(accountant: object, event: DpEvent, delta: float) -> float:
    with _explained(), _quiet(), np.errstate(all="ignore"):
        epsilon = float(accountant.compose(event).get_epsilon(delta))  # type: ignore[attr-defined]
    return _finite(epsilon)


def _finite(epsilon: float) -> float:
    if not 0 <= epsilon < math.inf:
        raise SettingError(
            f"Expected a finite epsilon >= 0, the accountant found {epsilon}. {_MODERATE}"
        )
    return epsilon


@contextmanager
def _explained() -> Iterator[None]:
    """Say in our words what the accountant cannot compute."""
    try:
        yield
    except (ArithmeticError, MemoryError, ValueError) as error:
        raise SettingError(
            "Expected settings that the accountant can compute with, found "
            f"{type(error).__name__}: {error}. {_MODERATE}"
        ) from error
    except UnsupportedEventError as error:
        raise ContractError(
            f"Expected events that this accountant can compose, found one that it cannot: {error}. "
            "Use the other accountant, or another sampler."
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the accountant's notes about single Rényi orders out of people's terminals."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
