"""Methods by name, as people choose them, and the constants of their side information.

Shapes of A and the rate of Adam are those that were best in the demo; where the weights of the
features come from, and all other settings: `adadps.defaults`.
"""

from __future__ import annotations

import math
from enum import StrEnum

from adadps.defaults import WORDS_PER_TEXT
from adadps.side import Frequencies, frequency, idf
from adadps.side.fixed import Fixed

IDF_POWER = 1.0
FLOOR, POWER_BEFORE, POWER_ON_BOTH_SIDES = 0.01, 1.0, 0.5
"""A = max(f / max f, floor)^power before the clip, and on both sides of the noise."""
ADAM_OUTPUT_NOISE = 1.2
"""lr √T ‖x‖ of Adam, whose steps have one length whatever the noise."""


class Method(StrEnum):
    """What can be trained by name."""

    AUTO = "auto"
    ADADPS = "adadps"
    ADADPS_TWO_SIDED = "adadps-two-sided"
    DP_SGD_WEIGHTED = "dp-sgd-weighted"
    DP_SGD = "dp-sgd"
    DP_ADAM = "dp-adam"

    @property
    def takes_side_information(self) -> bool:
        """Does it read word frequencies?"""
        return self in (Method.ADADPS, Method.ADADPS_TWO_SIDED, Method.DP_SGD_WEIGHTED)


def shaped(frequencies: Frequencies, method: Method, *, at: str = "weight") -> Fixed:
    """What a method makes of frequencies: weights IDF of the features, or A by a power.

    >>> from adadps.side import given_frequencies
    >>> known = given_frequencies([0.5, 0.1], source="a list", public_because="published")
    >>> shaped(known, Method.ADADPS).provenance.source
    'a list; A = max(f/f_max, 0.01)^1'
    """
    if method is Method.DP_SGD_WEIGHTED:
        return idf(frequencies, words_per_text=WORDS_PER_TEXT, power=IDF_POWER, at=at)
    power = POWER_BEFORE if method is Method.ADADPS else POWER_ON_BOTH_SIDES
    return frequency(frequencies, floor=FLOOR, power=power, at=at)


def adam_rate(steps: int, norm: float = 1.0) -> float:
    """Learning rate of Adam on noisy gradients for rows of a typical norm.

    >>> adam_rate(400)
    0.06
    """
    return ADAM_OUTPUT_NOISE / math.sqrt(steps) / norm
