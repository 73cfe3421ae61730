"""Methods by name, as people choose them: their chains, and the constants of side information.

Shapes of A and the rate of Adam are those that were best in the demo; where the weights of the
features come from, and all other settings: `adadps.estimators.planner.defaults`.
"""

from __future__ import annotations

import math
from enum import StrEnum

from adadps.errors import SideInformationError
from adadps.estimators.planner.defaults import WORDS_PER_TEXT
from adadps.methods.paper import adadps, adadps_two_sided, dp_adam, dp_sgd, dp_sgd_weighted
from adadps.methods.side import Frequencies, frequency, idf
from adadps.methods.side.source import Fixed
from adadps.methods.stages import Chain
from adadps.methods.stages.gradients import Privatize

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

    >>> from adadps.methods.side import given_frequencies
    >>> known = given_frequencies([0.5, 0.1], source="a list", public_because="published")
    >>> shaped(known, Method.ADADPS).provenance.source
    'a list; A = max(f/f_max, 0.01)^1'
    """
    if method is Method.DP_SGD_WEIGHTED:
        return idf(frequencies, words_per_text=WORDS_PER_TEXT, power=IDF_POWER, at=at)
    power = POWER_BEFORE if method is Method.ADADPS else POWER_ON_BOTH_SIDES
    return frequency(frequencies.per_word(WORDS_PER_TEXT), floor=FLOOR, power=power, at=at)


def chain_for(
    method: Method, side: Fixed | None, privacy: Privatize, lr: float, *, at: str = "weight"
) -> Chain:
    """The stages behind a name; ``at`` is where side information that weighs features is read.

    >>> from adadps.methods.stages import privatize
    >>> str(chain_for(Method.DP_SGD, None, privatize(clip_norm=1.0, noise_multiplier=2.0), 0.1))
    'privatize(C=1, σ=2) > sgd(0.1)'
    """
    if method in (Method.DP_SGD, Method.DP_ADAM):
        return dp_adam(privacy, lr=lr) if method is Method.DP_ADAM else dp_sgd(privacy, lr=lr)
    if side is None or not method.takes_side_information:
        raise SideInformationError(
            f"Expected side information for {method.value}, found none, or a method without a "
            "chain of its own. Give it, or use dp-sgd."
        )
    if method is Method.ADADPS:
        return adadps(side, privacy, lr=lr)
    if method is Method.ADADPS_TWO_SIDED:
        return adadps_two_sided(side, side, privacy, lr=lr)
    return dp_sgd_weighted(side, privacy, lr=lr, at=at)


def norms_for(method: Method, *, plain: float = 1.0, scaled: float = 1.0) -> tuple[float, float]:
    """Norms of a typical row where the clip meets it, and where the noise does.

    ``plain`` is that of the row as it is, ``scaled`` that of x / A.

    >>> norms_for(Method.ADADPS, scaled=7.0), norms_for(Method.ADADPS_TWO_SIDED, scaled=7.0)
    ((7.0, 1.0), (7.0, 7.0))
    """
    if method is Method.DP_SGD_WEIGHTED:
        return 1.0, 1.0  # every row is normalised again
    if method is Method.ADADPS:
        return scaled, plain
    return (scaled, scaled) if method is Method.ADADPS_TWO_SIDED else (plain, plain)


def adam_rate(steps: int, norm: float = 1.0) -> float:
    """Learning rate of Adam on noisy gradients for rows of a typical norm.

    >>> adam_rate(400)
    0.06
    """
    return ADAM_OUTPUT_NOISE / math.sqrt(steps) / norm
