"""Two ways to choose among settings, and what each costs.

*Fixed grid*: every setting is tried once. All trials are fixed in advance and composed, and
everything may be shown. *Private selection*: a random number of trials, each with a setting drawn
uniformly; only the best is released (Papernot and Steinke 2022). If a trial is (λ, ε(λ))-RDP for
each λ, the best of a truncated negative binomial number of trials (mean m, halting γ, shape η) is
RDP with

    ε'(λ) = ε(λ) + (1+η) min_λ̂ [ (1 - 1/λ̂) ε(λ̂) + log(1/γ)/λ̂ ] + log(m)/(λ-1),

and the best of a Poisson number with ε'(λ) = ε(λ) + m δ̂ + log(m)/(λ-1), where a trial is
(log(1 + 1/(λ-1)), δ̂)-DP. dp-accounting computes both.

The number of trials of private selection is random and stays secret. With t = log(1/γ), the
truncated negative binomial law of Papernot and Steinke (2022, Definition 1) on k = 1, 2, 3, ...
with shape η has

    P(k) ∝ (1-γ)^k ∏_{l<k} (l+η)/(l+1),     E = η (e^t - 1) / (1 - e^{-ηt}),

geometric for η = 1, logarithmic for η = 0 (P(k) ∝ (1-γ)^k / k, E = (e^t - 1) / t). The limit of
η to infinity is the Poisson law on k = 0, 1, 2, ...
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from dp_accounting import (
    DpEvent,
    NonPrivateDpEvent,
)
from dp_accounting.dp_event import RepeatAndSelectDpEvent

from adadps.accounting.events import exposes
from adadps.accounting.renyi import renyi_curve
from adadps.errors import ContractError, require
from adadps.types import Accountant, Relation


class Selection(Protocol):
    """How trials are chosen and paid for."""

    @property
    def name(self) -> str:
        """The name of this selection on the card."""

    def trials(self, settings: int) -> str:
        """Return how many trials there are, in words that may be published."""

    @property
    def secret(self) -> str | None:
        """What must stay secret for the guarantee to hold; None if nothing must."""

    def accountants(self, fitting: Sequence[Accountant]) -> tuple[Accountant, ...]:
        """Return those of ``fitting`` that can compose the trials; refuse if there are none."""

    def charges(self, events: Sequence[DpEvent], relation: Relation) -> list[tuple[DpEvent, int]]:
        """Return each charge with its count, if one trial of each setting costs ``events``."""


@dataclass(frozen=True)
class FixedGrid:
    """Tries every setting once. Build it with `fixed_grid`."""

    name = "fixed grid"
    secret = None

    def trials(self, settings: int) -> str:
        """Return the number of settings in words."""
        return "1 trial of tuning" if settings == 1 else f"{settings} trials of tuning"

    def accountants(self, fitting: Sequence[Accountant]) -> tuple[Accountant, ...]:
        """Return all of them: the trials are fixed in advance, so PLD may compose them too."""
        return tuple(fitting)

    def charges(self, events: Sequence[DpEvent], relation: Relation) -> list[tuple[DpEvent, int]]:  # noqa: ARG002
        """Return the events of all trials; equal ones are counted together."""
        counted: dict[str, tuple[DpEvent, int]] = {}
        for event in events:
            counted[repr(event)] = (event, counted.get(repr(event), (event, 0))[1] + 1)
        return list(counted.values())


@dataclass(frozen=True)
class PrivateSelection:
    """The best of a random, secret number of trials. Build it with `private_selection`."""

    number: NumberOfTrials
    name = "private selection"
    secret = "the number of trials, every trial but the best, and how long the tuning took"

    def trials(self, settings: int) -> str:
        """Return the distribution of the number of trials; the number itself is not public."""
        return f"private selection among {settings} settings ({self.number}, number secret)"

    def accountants(self, fitting: Sequence[Accountant]) -> tuple[Accountant, ...]:
        """Return only RDP: the theorem is about Rényi divergences."""
        if Accountant.RDP not in fitting:
            names = " or ".join(one.value for one in fitting)
            raise ContractError(
                "Expected the accountant rdp for private selection, found a sampler or a choice "
                f"that allows only {names or 'none'}. Use rdp with a sampler and relation that it "
                "can price, or a fixed grid."
            )
        return (Accountant.RDP,)

    def charges(self, events: Sequence[DpEvent], relation: Relation) -> list[tuple[DpEvent, int]]:
        """Return one event for all trials, at the price of the most expensive setting."""
        worst = most_expensive(events, relation)
        if exposes(worst):
            return [(NonPrivateDpEvent(), 1)]
        return [(RepeatAndSelectDpEvent(worst, self.number.mean, self.number.shape), 1)]


def fixed_grid() -> FixedGrid:
    """Try every setting once, pay for each, and show all of them.

    ε covers all trials composed. It grows roughly with the square root of their number.

    >>> fixed_grid().trials(4)
    '4 trials of tuning'
    """
    return FixedGrid()


def private_selection(*, mean_trials: float, shape: float) -> PrivateSelection:
    """Try a random number of random settings for about the price of two or three; show the best.

    The number of trials has mean ``mean_trials`` and shape η = ``shape``: 1 is geometric, 0
    logarithmic, ``math.inf`` Poisson, and other numbers are truncated negative binomial. If a trial
    is purely ε-DP, the selection is (2+η)ε-DP, however many trials there are. For all other trials,
    RDP computes the price.

    >>> private_selection(mean_trials=10, shape=1).trials(4)
    'private selection among 4 settings (geometric with mean 10, number secret)'
    """
    return PrivateSelection(NumberOfTrials(mean=float(mean_trials), shape=float(shape)))


def most_expensive(events: Sequence[DpEvent], relation: Relation) -> DpEvent:
    """Return the event that costs at least as much as every other one at every Rényi order.

    A trial draws its setting at random, so at each order it costs at most the largest divergence
    of any setting. If no single setting attains this maximum at every order, there is no event to
    charge, and the settings are refused.

    >>> from dp_accounting import GaussianDpEvent
    >>> most_expensive([GaussianDpEvent(3.0), GaussianDpEvent(2.0)], Relation.ADD_OR_REMOVE_ONE)
    GaussianDpEvent(noise_multiplier=2.0)
    """
    distinct = list({repr(event): event for event in events}.values())
    for event in distinct:
        if exposes(event):
            return event
    if len(distinct) == 1:
        return distinct[0]
    curves = [renyi_curve(event, relation).values for event in distinct]
    largest = np.max(curves, axis=0)
    for event, curve in zip(distinct, curves, strict=True):
        if bool((curve >= largest).all()):
            return event
    raise ContractError(
        "Expected one setting that costs at least as much as all others at every Rényi order, "
        f"found {len(distinct)} whose curves cross. Private selection charges the same for every "
        "trial: give all settings the same noise multiplier and side information, or use a fixed "
        "grid."
    )


@dataclass(frozen=True)
class NumberOfTrials:
    """The distribution of the number of trials, given by its mean and shape.

    >>> NumberOfTrials(mean=4.0, shape=1.0).halting  # geometric: stop with probability 1/4
    0.25
    """

    mean: float
    shape: float

    def __post_init__(self) -> None:
        require(
            1 <= self.mean < math.inf,
            "1 <= mean_trials < infinity",
            self.mean,
            "Try about twice the number of settings.",
        )
        require(
            self.shape >= 0,
            "shape >= 0",
            self.shape,
            "Use 1 (geometric), 0 (logarithmic), math.inf (Poisson), or a number in between.",
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
        """γ, rounded so that the mean number of trials never exceeds the declared one."""
        return math.exp(-self._exponent)

    def draw(self, rng: np.random.Generator) -> int:
        """Draw a number of trials; 0 is possible only under the Poisson law.

        The other laws invert one uniform number of 53 bits, so their last 2^-53 is never reached.
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
        """t = log(1/γ), rounded down: the mean is at most that which is paid for."""
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
