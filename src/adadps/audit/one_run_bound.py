"""A lower bound on ε from one run with many canaries (Steinke, Nasr, Jagielski 2023, section 5).

Each of m canaries is included in the data, or not, by its own coin. An observer of everything that
the run released guesses r of the coins and abstains from the others. If the run is (ε, δ)-private
with respect to flipping one coin, the number of right guesses is hardly larger than that of r
tosses of a coin that is right with probability p = e^ε / (1 + e^ε):

    P[right ≥ v] ≤ P[B ≥ v] + 2 m δ · max_i P[v > B ≥ v - i] / i,     B ~ Binomial(r, p).

The lower bound is the largest ε under which the observation is less likely than 1 - confidence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.stats import binom

from adadps.audit.outcome import require_confidence
from adadps.errors import require

LARGEST = 50.0
"""The largest bound; no number of canaries that fits in memory could show more."""


def p_value(*, canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Bound the probability of at least ``right`` right guesses under (ε, δ) from above.

    Without δ it is a binomial tail: three of three at ε = 0 have probability 1/8.

    >>> p_value(canaries=3, guesses=3, right=3, epsilon=0.0, delta=0.0)
    0.125
    """
    _require_counts(canaries, guesses, right)
    accuracy = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(right - 1, guesses, accuracy))
    if right == 0 or delta == 0:
        return min(1.0, tail)
    below = np.cumsum(binom.pmf(right - np.arange(1, right + 1), guesses, accuracy))
    slope = float((below / np.arange(1, right + 1)).max())
    return min(1.0, tail + 2 * canaries * delta * slope)


def one_run_epsilon(
    *, canaries: int, guesses: int, right: int, delta: float, confidence: float
) -> float:
    """Return the lower bound on ε, 0 if nothing can be concluded.

    If all guesses are right and δ = 0, it solves p^r = 1 - confidence.

    >>> found = one_run_epsilon(canaries=100, guesses=100, right=100, delta=0.0, confidence=0.95)
    >>> round(found, 3) == round(math.log(1 / (0.05 ** (-1 / 100) - 1)), 3)
    True
    """
    require_confidence(confidence)
    require(0 <= delta < 1, "0 <= delta < 1", delta, "Use the delta of the claim.")
    error = 1 - confidence

    def likely(epsilon: float) -> bool:
        found = p_value(
            canaries=canaries, guesses=guesses, right=right, epsilon=epsilon, delta=delta
        )
        return found > error

    if likely(0.0):
        return 0.0
    low, high = 0.0, LARGEST
    if not likely(high):
        return high
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if likely(middle) else (middle, high)
    return low


def best_of(
    right: Sequence[bool], numbers: Sequence[int], *, delta: float, confidence: float
) -> tuple[float, int, int]:
    """Return the best bound over several numbers of guesses, which share the allowed error.

    ``right`` says for every canary, the surest guess first, whether its guess is right. The result
    is the bound, the number of guesses, and the number of right guesses.

    >>> best_of([True] * 90 + [False] * 10, [90, 100], delta=0.0, confidence=0.95)[1:]
    (90, 90)
    """
    each = 1 - (1 - confidence) / len(numbers)
    found = []
    for guesses in numbers:
        hits = sum(right[:guesses])
        epsilon = one_run_epsilon(
            canaries=len(right), guesses=guesses, right=hits, delta=delta, confidence=each
        )
        found.append((epsilon, guesses, hits))
    return max(found)


def best_ranking(
    rankings: Mapping[str, Sequence[bool]],
    numbers: Sequence[int],
    *,
    delta: float,
    confidence: float,
) -> tuple[float, int, int, str]:
    """Return the best bound over several rankings of the same canaries, which share the error.

    The result is the bound, the number of guesses, the number of right guesses, and the name of the
    ranking.

    >>> tried = {"worse": [True, False] * 50, "better": [True] * 100}
    >>> best_ranking(tried, [100], delta=0.0, confidence=0.95)[1:]
    (100, 100, 'better')
    """
    each = 1 - (1 - confidence) / len(rankings)
    return max(
        (*best_of(right, numbers, delta=delta, confidence=each), name)
        for name, right in rankings.items()
    )


def _require_counts(canaries: int, guesses: int, right: int) -> None:
    require(
        0 <= right <= guesses <= canaries,
        "no more right guesses than guesses, and no more guesses than canaries",
        f"{right}, {guesses} and {canaries}",
        "Check the counts.",
    )
