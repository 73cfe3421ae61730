"""A lower bound on ε from the scores of many runs, half of them with one additional example.

For an (ε, δ)-private mechanism and every set R of what can be observed,

    P[R with the example] ≤ e^ε P[R without it] + δ,     and vice versa.

So the frequencies of one set R in two samples give ε ≥ log((p - δ) / q), with p bounded from below
and q from above (Clopper and Pearson 1934, exact for every sample size). R is a score beyond a
threshold. The score, threshold and side are chosen by looking at some runs, and the bound is
computed from the others: then a single set is tested, and the confidence is valid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import beta

from adadps.audit.outcome import require_confidence
from adadps.errors import require

Numbers = npt.NDArray[np.float64]

THRESHOLDS = 101
"""The number of quantiles of the scores that are tried as thresholds."""

CHOOSING = 0.25
"""The share of the runs on which the set is chosen; the bound comes from the rest."""


NOTHING = 1e-300
"""Takes the place of a probability of zero or less."""

CAUTION = 0.9999
"""The confidence with which a set is chosen, high so that a lucky sample does not decide."""


@dataclass(frozen=True)
class Guess:
    """The set R: a score on one side of a threshold, guessed to be likelier in one world."""

    observer: str
    threshold: float
    above: bool
    means_with: bool

    def hits(self, scores: Numbers) -> int:
        """Return how many of these scores lie in R."""
        inside = scores >= self.threshold if self.above else scores < self.threshold
        return int(inside.sum())

    def __str__(self) -> str:
        side, world = ("≥" if self.above else "<"), ("with" if self.means_with else "without")
        return f"{self.observer} {side} {self.threshold:.4g}: {world} the example"


@dataclass(frozen=True)
class HitCounts:
    """How often R occurred in the world where it is guessed to be likely, and in the other."""

    hits: int
    runs: int
    false_hits: int
    other_runs: int

    def epsilon(self, *, delta: float, confidence: float) -> float:
        """Return max(0, log((p - δ) / q)), with p and q each exact at half of the allowed error."""
        found = _log_ratio(
            (self.hits, self.runs), (self.false_hits, self.other_runs), delta, confidence
        )
        return max(0.0, float(found))


def _log_ratio(
    hits: tuple[Any, int], false_hits: tuple[Any, int], delta: float, confidence: float
) -> Any:
    """Return log((p - δ) / q) for many sets at once; below 0 where the runs show nothing."""
    error = (1 - confidence) / 2
    likely = at_least(*hits, error) - delta
    unlikely = at_most(*false_hits, error)
    return np.log(np.maximum(likely, NOTHING) / unlikely)


def at_least(hits: Any, runs: int, error: float) -> Any:
    """Return a probability that exceeds the true one with probability at most ``error``.

    If all of n tosses are heads, it solves p^n = error.

    >>> round(float(at_least(10, 10, 0.05)), 4) == round(0.05 ** (1 / 10), 4)
    True
    """
    found = beta.ppf(error, np.maximum(hits, 1), runs - np.maximum(hits, 1) + 1)
    return np.where(np.equal(hits, 0), 0.0, found)


def at_most(hits: Any, runs: int, error: float) -> Any:
    """Return a probability that is below the true one with probability at most ``error``.

    >>> round(float(at_most(0, 10, 0.05)), 4) == round(1 - 0.05 ** (1 / 10), 4)
    True
    """
    return 1 - at_least(np.subtract(runs, hits), runs, error)


def choose(
    with_example: Mapping[str, Numbers], without: Mapping[str, Numbers], *, delta: float
) -> Guess:
    """Choose the set that promises the largest bound, on runs that the bound must not use."""
    found = []
    for observer, scores in with_example.items():
        others = without[observer]
        together = np.concatenate([scores, others])
        thresholds = np.unique(np.quantile(together, np.linspace(0, 1, THRESHOLDS)))
        above = [_at_or_above(world, thresholds) for world in (scores, others)]
        sizes = [len(scores), len(others)]
        for upper in (True, False):
            inside = above if upper else [n - hits for n, hits in zip(sizes, above, strict=True)]
            for means_with, (likely, other) in ((True, (0, 1)), (False, (1, 0))):
                hits, false_hits = ((inside[i], sizes[i]) for i in (likely, other))
                promised = _log_ratio(hits, false_hits, delta, CAUTION)
                best = int(np.argmax(promised))
                guess = Guess(observer, float(thresholds[best]), upper, means_with)
                found.append((float(promised[best]), guess))
    return max(found, key=lambda pair: pair[0])[1]


def _at_or_above(scores: Numbers, thresholds: Numbers) -> Any:
    return len(scores) - np.searchsorted(np.sort(scores), thresholds, side="left")


def count(
    guess: Guess, with_example: Mapping[str, Numbers], without: Mapping[str, Numbers]
) -> HitCounts:
    """Count how often ``guess`` is made in both worlds."""
    worlds = [with_example[guess.observer], without[guess.observer]]
    likely, unlikely = worlds if guess.means_with else worlds[::-1]
    return HitCounts(guess.hits(likely), len(likely), guess.hits(unlikely), len(unlikely))


def bound(
    with_example: Mapping[str, Numbers],
    without: Mapping[str, Numbers],
    *,
    delta: float,
    confidence: float,
) -> tuple[float, Guess, HitCounts]:
    """Choose a set on the first quarter of the runs, and bound ε by the others.

    The scores are given per observer, in the order of the runs.

    >>> from numpy.random import default_rng
    >>> rng = default_rng(0)
    >>> apart = {"score": rng.normal(9, 1, 1000)}, {"score": rng.normal(0, 1, 1000)}
    >>> round(bound(*apart, delta=0.0, confidence=0.95)[0], 1)  # 750 runs allow no more
    5.3
    """
    require_confidence(confidence)
    require(0 <= delta < 1, "0 <= delta < 1", delta, "Use the delta of the claim.")
    runs = min(len(scores) for world in (with_example, without) for scores in world.values())
    require(
        runs >= 8, "at least 8 runs in each world", runs, "Use some hundreds for a useful bound."
    )
    border = math.ceil(CHOOSING * runs)
    worlds = (with_example, without)
    first, second = (
        [{name: scores[part] for name, scores in world.items()} for world in worlds]
        for part in (slice(0, border), slice(border, None))
    )
    guess = choose(*first, delta=delta)
    counted = count(guess, *second)
    return counted.epsilon(delta=delta, confidence=confidence), guess, counted
