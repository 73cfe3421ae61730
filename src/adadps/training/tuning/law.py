"""How many trials private selection makes: a random number that stays secret.

With t = log(1/γ), the truncated negative binomial law of Papernot and Steinke (2022, Definition 1)
on k = 1, 2, 3, ... with shape η has

    P(k) ∝ (1-γ)^k ∏_{l<k} (l+η)/(l+1),     E = η (e^t - 1) / (1 - e^{-ηt}),

geometric for η = 1, logarithmic for η = 0 (P(k) ∝ (1-γ)^k / k, E = (e^t - 1) / t). The limit of
η to infinity is the Poisson law on k = 0, 1, 2, ...
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from adadps.errors import require


@dataclass(frozen=True)
class NumberOfTrials:
    """The law of the number of trials, by its mean and its shape.

    >>> NumberOfTrials(mean=4.0, shape=1.0).halting  # geometric: stop after each with 1/4
    0.25
    """

    mean: float
    shape: float

    def __post_init__(self) -> None:
        require(
            1 <= self.mean < math.inf,
            "1 <= mean_trials < infinity",
            self.mean,
            "A number of trials is at least 1; try about twice as many as there are settings.",
        )
        require(
            self.shape >= 0,
            "shape >= 0",
            self.shape,
            "Use 1 (geometric), 0 (logarithmic), math.inf (Poisson), or a number between.",
        )

    def __str__(self) -> str:
        if self.shape == math.inf:
            name = "Poisson"
        else:
            known = {0.0: "logarithmic", 1.0: "geometric"}
            name = known.get(self.shape, f"negative binomial (shape {self.shape:g})")
        return f"{name} with mean {self.mean:g}"

    @property
    def halting(self) -> float:
        """γ, rounded so that the mean of what is drawn never exceeds the declared one."""
        return math.exp(-self._exponent)

    def draw(self, rng: np.random.Generator) -> int:
        """A number of trials; 0 is possible under the Poisson law only.

        By inversion of one uniform number of 53 bits: it stops short of the last 2^-53 of the law.
        """
        if self.shape == math.inf:
            return int(rng.poisson(self.mean))
        left, count = rng.random(), 1
        log_mass = self._log_first()
        log_rest = _log1m_exp(self._exponent)
        while True:
            mass = math.exp(log_mass)
            left -= mass
            if left < 0 or (mass == 0 and count > self.mean):
                return count
            log_mass += log_rest + math.log((count + self.shape) / (count + 1))
            count += 1

    @cached_property
    def _exponent(self) -> float:
        """t = log(1/γ), from below: fewer trials, never more, than were paid for."""
        if self.shape == 1:
            return math.log(self.mean)
        low, high = 0.0, 1.0
        while _mean(high, self.shape) < self.mean:
            high *= 2
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if _mean(middle, self.shape) <= self.mean else (low, middle)
        return low

    def _log_first(self) -> float:
        """log P(1); 0 where there is always exactly one trial."""
        t = self._exponent
        if t == 0:
            return 0.0
        log_rest = _log1m_exp(t)
        if self.shape == 0:
            return log_rest - math.log(t)
        # P(1) = (1-γ) η / (γ^-η - 1), and γ^-η - 1 = e^{ηt} (1 - e^{-ηt})
        exponent = self.shape * t
        return log_rest + math.log(self.shape) - exponent - _log1m_exp(exponent)


def _mean(t: float, shape: float) -> float:
    if t == 0:
        return 1.0
    if shape == 0:
        return math.expm1(t) / t
    return shape * math.expm1(t) / -math.expm1(-shape * t)


def _log1m_exp(t: float) -> float:
    """log(1 - e^-t); minus infinity at 0."""
    return math.log(-math.expm1(-t)) if t > 0 else -math.inf
