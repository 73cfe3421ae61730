"""A lower bound on ε from one run with many canaries (Steinke, Nasr, Jagielski 2023, section 5).

Each of m canaries is put into the data, or not, by a coin of its own. Whoever sees all that the run
released guesses r of the coins and says nothing about the others. If the run is (ε, δ)-private
towards a flip of one coin, the number of right guesses is hardly larger than that of r tosses of a
coin that is right with probability p = e^ε / (1 + e^ε):

    P[right ≥ v] ≤ P[B ≥ v] + 2 m δ · max_i P[v > B ≥ v - i] / i,     B ~ Binomial(r, p).

The lower bound is the largest ε that makes what was seen less likely than 1 - confidence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.stats import binom

from adadps.audit.outcome import require_confidence
from adadps.errors import require

LARGEST = 50.0
"""No number of canaries that fits in memory tells more."""


def p_value(*, canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """An upper bound on the probability of so many right guesses under (ε, δ).

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
    """The lower bound on ε, 0 if nothing can be said.

    All right, and no δ: p^r = 1 - confidence.

    >>> found = one_run_epsilon(canaries=100, guesses=100, right=100, delta=0.0, confidence=0.95)
    >>> round(found, 3) == round(math.log(1 / (0.05 ** (-1 / 100) - 1)), 3)
    True
    """
    require_confidence(confidence)
    require(0 <= delta < 1, "0 <= delta < 1", delta, "Take that of the claim.")
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
    """The best bound over several numbers of guesses, with the error shared between them.

    ``right`` says of every canary, the surest guess first, whether its guess is right. Returns the
    bound, the number of guesses, and how many of them are right.

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
    """The best bound over several rankings of the same canaries, with the error shared by all.

    Returns the bound, the number of guesses, how many of them are right, and the ranking's name.

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
        "Count again.",
    )
