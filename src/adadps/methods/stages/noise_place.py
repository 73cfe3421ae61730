"""Where the noise is added to a sum over users, and how much there is in total.

=====================  ===========================================  ==============================
noise                  standard deviation of a sum of k users      who has to be trusted
=====================  ===========================================  ==============================
`by_server`            σC: once, on the sum                         the server, with every update
`in_shares`            max(σ, s √k) C: every device adds sC, the    the server, to show the sum
                       server tops it up to σC                      alone (secure aggregation)
`by_each_device`       σC √k: every device adds σC                  nobody
=====================  ===========================================  ==============================

`adadps.accounting.contract` says what each may claim under which sampling. Where devices add the
noise, the data of users is protected, but not their participation: the amount of noise reveals how
many of them take part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

from adadps.accounting.contract import Grouping
from adadps.errors import require, require_positive


class NoisePlace(Protocol):
    """Who adds how much noise."""

    grouping: ClassVar[Grouping]

    def on_device(self, noise_multiplier: float) -> float:
        """Return the noise that a device adds to its update, in units of C."""

    def topped_up(self, noise_multiplier: float, answers: int) -> float:
        """Return the noise that the server adds to a sum of ``answers`` updates, in units of C."""

    def least_answers(self) -> int:
        """Return the least number of answers; a round with fewer is discarded but stays charged."""


@dataclass(frozen=True)
class ByServer:
    """Noise once, on the sum. Build it with `by_server`."""

    grouping: ClassVar[Grouping] = Grouping.USERS

    def on_device(self, noise_multiplier: float) -> float:  # noqa: ARG002
        """Return 0: the server adds all of it."""
        return 0.0

    def topped_up(self, noise_multiplier: float, answers: int) -> float:  # noqa: ARG002
        """Return all of the noise, also for an empty sum."""
        return noise_multiplier

    def least_answers(self) -> int:
        """Return 0: an empty cohort is noised like any other."""
        return 0

    def __str__(self) -> str:
        return ""


@dataclass(frozen=True)
class InShares:
    """A share of the noise on every device. Build it with `in_shares`."""

    minimum: int
    share: float | None
    grouping: ClassVar[Grouping] = Grouping.USERS_IN_SHARES

    def on_device(self, noise_multiplier: float) -> float:
        """Return the share; by default the minimum of answers together carries all of the noise."""
        usual = noise_multiplier / math.sqrt(self.minimum)
        return usual if self.share is None else self.share

    def topped_up(self, noise_multiplier: float, answers: int) -> float:
        """Return what is missing to σ."""
        there = answers * self.on_device(noise_multiplier) ** 2
        return math.sqrt(max(0.0, noise_multiplier**2 - there))

    def least_answers(self) -> int:
        """Return the declared minimum."""
        return self.minimum

    def __str__(self) -> str:
        share = "" if self.share is None else f" of {self.share:g}"
        return f", noise in shares{share}, at least {self.minimum} answers"


@dataclass(frozen=True)
class ByEachDevice:
    """All of the noise on every device. Build it with `by_each_device`."""

    grouping: ClassVar[Grouping] = Grouping.USERS_ALONE

    def on_device(self, noise_multiplier: float) -> float:
        """Return σ: an update is private before it leaves the device."""
        return noise_multiplier

    def topped_up(self, noise_multiplier: float, answers: int) -> float:  # noqa: ARG002
        """Return 0: the devices have added all of it."""
        return 0.0

    def least_answers(self) -> int:
        """Return 0: every answer is private on its own."""
        return 0

    def __str__(self) -> str:
        return ", noise by each device"


def by_server() -> ByServer:
    """Add the noise once, on the sum: the most accurate choice, if the server is trusted."""
    return ByServer()


def in_shares(*, minimum: int, share: float | None = None) -> InShares:
    """Let every device add a share of the noise, which the server tops up to σC.

    ``share`` is in units of C. By default it is σ/√minimum, so that ``minimum`` answers carry all
    of the noise without the server. A round with fewer answers is discarded. Algorithm 3 of the
    paper, as its text has it, is ``in_shares(minimum=1)``: every device adds N(0, σ²C²).

    >>> in_shares(minimum=4).on_device(1.0)
    0.5
    """
    whole = isinstance(minimum, int) and not isinstance(minimum, bool) and minimum >= 1
    require(whole, "a whole number of answers, minimum >= 1", minimum, "Declare the least number.")
    if share is not None:
        require_positive("share", share)
    return InShares(minimum, share)


def by_each_device() -> ByEachDevice:
    """Add all of the noise on every device: nobody has to be trusted, at a cost in accuracy."""
    return ByEachDevice()


def deviation(place: NoisePlace, noise_multiplier: float, answers: int) -> float:
    """Return the standard deviation of the noise on a sum of ``answers`` updates, in units of C.

    >>> deviation(by_each_device(), 1.0, answers=100)
    10.0
    """
    devices = answers * place.on_device(noise_multiplier) ** 2
    return math.sqrt(devices + place.topped_up(noise_multiplier, answers) ** 2)
