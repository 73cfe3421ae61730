"""Rényi curves of privacy events, and epsilon from them.

Where the curve of a Poisson-sampled Gaussian is tiny, dp-accounting loses it to rounding: it comes
out as zero or below, and epsilon as 0.0. `renyi_divergences` takes its place there: the divergences
of the Poisson-sampled Gaussian mechanism, exact even where they are tiny.

With u(z) = q (exp((2z - 1)/2σ²) - 1) and z ~ N(0, σ²), the divergence of order α is

    log A / (α - 1),    A = E (1 + u)^α    (Mironov, Talwar, Zhang 2019, "Rényi differential privacy
                                            of the sampled Gaussian mechanism").

For a small rate q or much noise, A differs from 1 by less than float64 can represent: log A is then
only rounding error, sometimes below zero, as if nothing had been revealed. Since E u = 0,

    A - 1 = E [(1 + u)^α - 1 - α u],

where no term is negative, so that nothing cancels. For whole orders this is a finite sum:

    A - 1 = Σ_{i=2}^α C(α, i) q^i (1 - q)^(α-i) (exp((i² - i)/2σ²) - 1).

Other orders are integrated by the trapezoidal rule, whose error decreases exponentially for an
analytic integrand: the nearest singularity is at height πσ² above the real line.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    NeighboringRelation,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
    UnsupportedEventError,
    rdp,
)
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.rdp.rdp_privacy_accountant import _compute_rdp_repeat_and_select
from scipy.special import binom, gammaln, logsumexp

from adadps.errors import ContractError, SettingError
from adadps.types import Relation

NEARLY_ALL = 0.9
SMALLEST_EPSILON = 1e-4
"""The smallest epsilon that is reported for anything that reveals something.

A delta above the total variation of a mechanism covers everything that it reveals, and epsilon = 0
is then true; but it would read as if nothing were revealed. This is also the resolution of PLD.
"""

ROUNDING = 1e-12
"""More than the rounding error of dp-accounting on the divergence of a sampled step."""

TRUSTED = 1e-4
"""Above this, the relative rounding error of a divergence is below 1e-8."""

_MODERATE = "Use a noise multiplier between 0.1 and 1000 and a delta above 1e-15."

MOST_KNOWN = 256
_KNOWN: dict[tuple[str, Relation], Values] = {}
"""A cache of the curves of sampled events, each of which takes up to a second."""

NEIGHBOURS = {
    Relation.ADD_OR_REMOVE_ONE: NeighboringRelation.ADD_OR_REMOVE_ONE,
    Relation.ZERO_OUT: NeighboringRelation.REPLACE_SPECIAL,
    Relation.REPLACE_ONE: NeighboringRelation.REPLACE_ONE,
}


class Spendable(Protocol):
    """A budget: epsilon at delta."""

    @property
    def epsilon(self) -> float:
        """The epsilon that may be spent."""

    @property
    def delta(self) -> float:
        """The delta at which it may be spent."""


@dataclass(frozen=True)
class RenyiCurve:
    """The Rényi divergence of an event at each order; composing events adds their curves."""

    orders: Values
    values: Values

    def epsilon(self, delta: float, order: float | None = None) -> float:
        """Return epsilon at ``delta`` by the best order, or by one that was fixed beforehand."""
        if not self.values.any():
            return 0.0
        chosen = slice(None) if order is None else self.orders == order
        with explained():
            epsilon, _ = rdp.compute_epsilon(self.orders[chosen], self.values[chosen], delta)
        return reported(float(epsilon))

    def order_for(self, budget: Spendable) -> float:
        """Return an order to fix beforehand, when more events like this one are to come.

        It is the lowest order at which the budget holds at least nine in ten of the events that it
        holds at the best one: sampled events with less noise explode at slightly higher orders.

        >>> from adadps.accounting.epsilon import Budget
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
    """Return the Rényi curve of a private event.

    >>> curve = renyi_curve(GaussianDpEvent(1.0), Relation.ADD_OR_REMOVE_ONE)
    >>> float(curve.values[curve.orders == 2.0][0])  # α / 2σ²
    1.0
    """
    with explained(), np.errstate(all="ignore"):
        orders = np.asarray(_accountant(relation).orders, dtype=np.float64)
        return RenyiCurve(orders, _divergences(event, relation, orders))


def reported(epsilon: float) -> float:
    """Return epsilon as it may be reported, at least `SMALLEST_EPSILON`."""
    if not 0 <= epsilon < math.inf:
        raise SettingError(
            f"Expected a finite epsilon >= 0, the accountant found {epsilon}. {_MODERATE}"
        )
    return max(epsilon, SMALLEST_EPSILON)


def _divergences(event: DpEvent, relation: Relation, orders: Values) -> Values:
    if isinstance(event, NoOpDpEvent):
        return np.zeros_like(orders)
    if isinstance(event, ComposedDpEvent):
        parts = [_divergences(part, relation, orders) for part in event.events]
        return np.sum(parts, axis=0) if parts else np.zeros_like(orders)
    if isinstance(event, SelfComposedDpEvent):
        once = _divergences(event.event, relation, orders)
        return event.count * once if event.count else np.zeros_like(orders)
    if isinstance(event, PoissonSampledDpEvent | SampledWithoutReplacementDpEvent):
        key = (repr(event), relation)  # a fit, its ledger and its statement need the same one
        if key not in _KNOWN:
            if len(_KNOWN) == MOST_KNOWN:
                _KNOWN.pop(next(iter(_KNOWN)))
            _KNOWN[key] = _sampled(event, relation, orders)
        return _KNOWN[key].copy()
    if isinstance(
        event, RepeatAndSelectDpEvent
    ):  # from our curve of a trial, not from a rounded one
        once = _divergences(event.event, relation, orders)
        selected = _compute_rdp_repeat_and_select(orders, once, event.mean, event.shape)
        return np.asarray(selected, dtype=np.float64)
    return np.asarray(_accountant(relation).compose(event).rdp, dtype=np.float64)


def _sampled(
    event: PoissonSampledDpEvent | SampledWithoutReplacementDpEvent,
    relation: Relation,
    orders: Values,
) -> Values:
    """Return the bounds of dp-accounting; for Poisson, exact divergences where they are tiny."""
    accounted: Values = np.array(_accountant(relation).compose(event).rdp, dtype=np.float64)
    if not isinstance(event, PoissonSampledDpEvent) or relation is Relation.REPLACE_ONE:
        return accounted
    rate, inner = event.sampling_probability, event.event
    if not isinstance(inner, GaussianDpEvent) or not 0 < rate < 1:
        return accounted
    if inner.noise_multiplier < LEAST_NOISE:
        return np.asarray(np.maximum(accounted, 0) + ROUNDING)
    tiny = ~(accounted > TRUSTED)
    exact = renyi_divergences(rate, inner.noise_multiplier, orders[tiny])
    accounted[tiny] = np.fmax(accounted[tiny], exact)
    return accounted


def _accountant(relation: Relation) -> rdp.RdpAccountant:
    return rdp.RdpAccountant(neighboring_relation=NEIGHBOURS[relation])


@contextmanager
def explained() -> Iterator[None]:
    """Turn errors of the accountant into our own, and silence its warnings about single orders."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
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
    finally:
        logger.setLevel(level)


Values = npt.NDArray[np.float64]

LEAST_NOISE, MOST_NOISE = 0.05, 1e6
"""The range of noise multipliers; larger ones are treated as the largest."""

SAFETY = 1e-9
"""A - 1 is raised by this share, a thousand times its possible rounding error."""

SMALL = 0.05
TERMS = range(2, 18)
"""Up to |u| = SMALL, (1 + u)^α - 1 - α u is computed by its power series, without cancellation."""


def renyi_divergences(rate: float, noise_multiplier: float, orders: Values) -> Values:
    """Return the divergence at each order > 1, for 0 < rate < 1, never rounded down.

    >>> renyi_divergences(0.01, 1.0, np.array([2.0, 2.5])).round(7).tolist()
    [0.0001718, 0.0002176]
    >>> bool(renyi_divergences(1e-9, 400.0, np.array([1.1]))[0] > 0)
    True
    """
    sigma = min(noise_multiplier, MOST_NOISE)
    whole = orders == np.floor(orders)
    excess = np.empty_like(orders)
    excess[whole] = [_log_excess_of_whole(rate, sigma, int(order)) for order in orders[whole]]
    if (~whole).any():
        excess[~whole] = _log_excess_of_fractions(rate, sigma, orders[~whole])
    divergences: Values = np.logaddexp(0.0, excess + SAFETY) / (orders - 1)
    return divergences


def _log_excess_of_whole(rate: float, sigma: float, order: int) -> float:
    """Return log(A - 1) as a finite sum."""
    i = np.arange(2, order + 1, dtype=np.float64)
    ways = gammaln(order + 1) - gammaln(i + 1) - gammaln(order - i + 1)
    chosen = i * math.log(rate) + (order - i) * math.log1p(-rate)
    return float(logsumexp(ways + chosen + _log_expm1((i * i - i) / (2 * sigma**2))))


def _log_excess_of_fractions(rate: float, sigma: float, orders: Values) -> list[float]:
    """Return log(A - 1) as an integral; all orders share the points of evaluation."""
    width = min(sigma / 3, 0.4 * sigma**2)
    z = np.arange(-10 * sigma, float(orders.max()) + 10 * sigma + width, width)
    log_weight = -0.5 * (z / sigma) ** 2 + math.log(width / (sigma * math.sqrt(2 * math.pi)))
    exponent = (2 * z - 1) / (2 * sigma**2)
    with np.errstate(all="ignore"):
        u = rate * np.expm1(exponent)
        return [
            float(logsumexp(log_weight + _log_convex(rate, exponent, u, float(order))))
            for order in orders
        ]


def _log_convex(rate: float, exponent: Values, u: Values, order: float) -> Values:
    """Return log((1 + u)^α - 1 - α u) for u of any size."""
    found = np.empty_like(u)
    small, above = np.abs(u) <= SMALL, u > SMALL
    below = ~small & ~above
    near = u[small]
    found[small] = np.log(sum(binom(order, k) * near**k for k in TERMS))
    log_power = order * np.logaddexp(math.log1p(-rate), math.log(rate) + exponent[above])
    log_u = math.log(rate) + exponent[above] + np.log1p(-np.exp(-exponent[above]))
    log_line = np.logaddexp(0.0, math.log(order) + log_u)
    found[above] = log_power + np.log1p(-np.exp(log_line - log_power))
    found[below] = np.log((1 + u[below]) ** order - 1 - order * u[below])
    return found


def _log_expm1(x: Values) -> Values:
    """Return log(exp(x) - 1) for x > 0, without overflow."""
    with np.errstate(over="ignore"):
        found: Values = np.where(x > 50, x, np.log(np.expm1(np.minimum(x, 50))))
    return found
