"""Where the noise of users' sums is added, and how much of it there is in the end.

=====================  ===========================================  ==============================
noise                  a sum of k users has a deviation of          who has to be trusted
=====================  ===========================================  ==============================
`by_server`            σC: once, on the sum                         the server, with every update
`in_shares`            max(σ, s √k) C: every device adds sC, the    the server, to show the sum
                       server tops up what is missing to σC         alone (secure aggregation)
`by_each_device`       σC √k: every device adds σC                  nobody
=====================  ===========================================  ==============================

What each may claim under which sampling stands in `adadps.accounting.contract`. Where devices add
noise, it is what users hold that is protected; who of them takes part can be told by how much noise
there is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

from adadps.accounting.contract import Grouping
from adadps.errors import require, require_positive


class NoisePlace(Protocol):
    """Who adds how much."""

    grouping: ClassVar[Grouping]

    def on_device(self, noise_multiplier: float) -> float:
        """What a device adds to its update, in units of C."""

    def topped_up(self, noise_multiplier: float, answers: int) -> float:
        """What the server adds to the sum of so many answers, in units of C."""

    def least_answers(self) -> int:
        """A round with fewer answers is discarded, and stays paid for."""


@dataclass(frozen=True)
class ByServer:
    """Once on the sum. Build it with `by_server`."""

    grouping: ClassVar[Grouping] = Grouping.USERS

    def on_device(self, noise_multiplier: float) -> float:  # noqa: ARG002
        """Nothing."""
        return 0.0

    def topped_up(self, noise_multiplier: float, answers: int) -> float:  # noqa: ARG002
        """All of it, an empty sum included."""
        return noise_multiplier

    def least_answers(self) -> int:
        """None: an empty cohort is noised like any other."""
        return 0

    def __str__(self) -> str:
        return ""


@dataclass(frozen=True)
class InShares:
    """A share on every device. Build it with `in_shares`."""

    minimum: int
    share: float | None
    grouping: ClassVar[Grouping] = Grouping.USERS_IN_SHARES

    def on_device(self, noise_multiplier: float) -> float:
        """The share: by default so much that the least number of answers has all of it."""
        usual = noise_multiplier / math.sqrt(self.minimum)
        return usual if self.share is None else self.share

    def topped_up(self, noise_multiplier: float, answers: int) -> float:
        """What is missing to σ."""
        there = answers * self.on_device(noise_multiplier) ** 2
        return math.sqrt(max(0.0, noise_multiplier**2 - there))

    def least_answers(self) -> int:
        """As declared."""
        return self.minimum

    def __str__(self) -> str:
        share = "" if self.share is None else f" of {self.share:g}"
        return f", noise in shares{share}, at least {self.minimum} answers"


@dataclass(frozen=True)
class ByEachDevice:
    """All of it on every device. Build it with `by_each_device`."""

    grouping: ClassVar[Grouping] = Grouping.USERS_ALONE

    def on_device(self, noise_multiplier: float) -> float:
        """σ: an update is private before it leaves the device."""
        return noise_multiplier

    def topped_up(self, noise_multiplier: float, answers: int) -> float:  # noqa: ARG002
        """Nothing."""
        return 0.0

    def least_answers(self) -> int:
        """None."""
        return 0

    def __str__(self) -> str:
        return ", noise by each device"


def by_server() -> ByServer:
    """Noise once, on the sum: the most accurate, for a server that is trusted with updates."""
    return ByServer()


def in_shares(*, minimum: int, share: float | None = None) -> InShares:
    """Every device adds its share of the noise; the server tops up what is missing to σC.

    ``share`` is in units of C; by default σ/√minimum, so that ``minimum`` answers have all of the
    noise without the server. A round with fewer answers is discarded. The text of the paper's
    Algorithm 3, where every device adds N(0, σ²C²), is ``in_shares(minimum=1)``.

    >>> in_shares(minimum=4).on_device(1.0)
    0.5
    """
    whole = isinstance(minimum, int) and not isinstance(minimum, bool) and minimum >= 1
    require(whole, "a whole number of answers, minimum >= 1", minimum, "Declare the least number.")
    if share is not None:
        require_positive("share", share)
    return InShares(minimum, share)


def by_each_device() -> ByEachDevice:
    """All of the noise on every device: nobody has to be trusted, and it costs accuracy."""
    return ByEachDevice()


def deviation(place: NoisePlace, noise_multiplier: float, answers: int) -> float:
    """Of a sum of so many answers, in units of C.

    >>> deviation(by_each_device(), 1.0, answers=100)
    10.0
    """
    devices = answers * place.on_device(noise_multiplier) ** 2
    return math.sqrt(devices + place.topped_up(noise_multiplier, answers) ** 2)
