"""Rényi divergences of the Poisson-sampled Gaussian mechanism, exact even where they are tiny.

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

import math

import numpy as np
import numpy.typing as npt
from scipy.special import binom, gammaln, logsumexp

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
