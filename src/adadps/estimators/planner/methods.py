"""The methods by name: their chains, and how side information scales a typical row.

The shapes of A and the learning rate of Adam were the best ones in the demo.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from adadps.errors import SideInformationError
from adadps.estimators.planner.typical_texts import WORDS_PER_TEXT, typical_norm
from adadps.methods.paper import adadps, adadps_two_sided, dp_adam, dp_sgd, dp_sgd_weighted
from adadps.methods.side import Frequencies, frequency, idf
from adadps.methods.side.source import Fixed
from adadps.methods.stages import Chain
from adadps.methods.stages.gradients import Privatize

IDF_POWER = 1.0
FLOOR, POWER_BEFORE, POWER_ON_BOTH_SIDES = 0.01, 1.0, 0.5
"""A = max(f / max f, floor)^power before the clip, and on both sides of the noise."""
ADAM_OUTPUT_NOISE = 1.2
"""lr √T ‖x‖ of Adam, whose steps have the same length whatever the noise."""


class Method(StrEnum):
    """Methods that can be trained by name."""

    AUTO = "auto"
    ADADPS = "adadps"
    ADADPS_TWO_SIDED = "adadps-two-sided"
    DP_SGD_WEIGHTED = "dp-sgd-weighted"
    DP_SGD = "dp-sgd"
    DP_ADAM = "dp-adam"

    @property
    def takes_side_information(self) -> bool:
        """Return whether the method reads side information."""
        return self in (Method.ADADPS, Method.ADADPS_TWO_SIDED, Method.DP_SGD_WEIGHTED)

    def resolved(self, *, informed: bool, linear: bool = True, on_devices: bool = False) -> Method:
        """Return the method itself, or the one that ``auto`` stands for.

        Without side information (``informed``) that is DP-SGD. With it, a linear model gets
        weighted features, and any other model AdaDPS, which works on every layer. Devices of a
        federation are sent weights and D but no features, so they get two-sided AdaDPS.

        >>> Method.AUTO.resolved(informed=True).value
        'dp-sgd-weighted'
        >>> Method.AUTO.resolved(informed=True, on_devices=True).value
        'adadps-two-sided'
        """
        if self is not Method.AUTO:
            return self
        if not informed:
            return Method.DP_SGD
        if on_devices:
            return Method.ADADPS_TWO_SIDED
        return Method.DP_SGD_WEIGHTED if linear else Method.ADADPS


@dataclass(frozen=True)
class Norms:
    """Typical norms of a row: ``clipped`` is after D, ``noised`` after E in a two-sided chain.

    Both are 1 for rows of norm 1 and plain DP-SGD.
    """

    clipped: float = 1.0
    noised: float = 1.0


@dataclass(frozen=True)
class PreparedMethod:
    """A method with its side information, and the norms of typical rows under it.

    ``at`` names the parameter by which side information that weighs features is read.
    """

    method: Method
    side: Fixed | None = None
    norms: Norms = Norms()
    at: str = "weight"

    def chain(self, privacy: Privatize, lr: float) -> Chain:
        """Return the stages behind the method's name.

        >>> from adadps.methods.stages import privatize
        >>> privacy = privatize(clip_norm=1.0, noise_multiplier=2.0)
        >>> str(PreparedMethod(Method.DP_SGD).chain(privacy, 0.1))
        'privatize(C=1, σ=2) > sgd(0.1)'
        """
        method, side = self.method, self.side
        if method in (Method.DP_SGD, Method.DP_ADAM):
            return dp_adam(privacy, lr=lr) if method is Method.DP_ADAM else dp_sgd(privacy, lr=lr)
        if side is None or not method.takes_side_information:
            raise SideInformationError(
                f"Expected side information for {method.value}, found none, or a method without a "
                "chain. Give it, or use dp-sgd."
            )
        if method is Method.ADADPS:
            return adadps(side, privacy, lr=lr)
        if method is Method.ADADPS_TWO_SIDED:
            return adadps_two_sided(side, side, privacy, lr=lr)
        return dp_sgd_weighted(side, privacy, lr=lr, at=self.at)


def prepare_method(
    method: Method,
    side: Frequencies | Fixed | None,
    *,
    width: int,
    at: str | None = "weight",
) -> PreparedMethod:
    """Return a method on rows of norm 1 with ``width`` features.

    ``side`` are frequencies of the features, of which the method makes A or weights, or a fixed
    source. ``at`` is the parameter that reads the features, None if the model has none.

    >>> prepare_method(Method.DP_SGD, None, width=2).norms
    Norms(clipped=1.0, noised=1.0)
    """
    if not method.takes_side_information:
        return PreparedMethod(method)
    if at is None:
        raise SideInformationError(
            f"Expected a layer of the module that reads the {width} features, found none. Give a "
            "source that names a parameter: `adadps.side.fixed({name: (vector, axis)}, ...)`."
        )
    known = side if isinstance(side, Frequencies) else None
    if known is not None and len(known.values) != width:
        raise SideInformationError(
            f"Expected side information for the {width} features, found {len(known.values)} "
            "frequencies. Give the vectorizer that makes the features, or one frequency per "
            "feature."
        )
    source = shaped(side, method, at=at) if isinstance(side, Frequencies) else side
    if source is None or method is Method.DP_SGD_WEIGHTED:
        return PreparedMethod(method, source, at=at)
    scaled = typical_norm(source, width, known, at=at)
    return PreparedMethod(method, source, norms_for(method, scaled=scaled), at)


def shaped(frequencies: Frequencies, method: Method, *, at: str = "weight") -> Fixed:
    """Return what a method makes of frequencies: IDF weights of the features, or A by a power.

    >>> from adadps.methods.side import given_frequencies
    >>> known = given_frequencies([0.5, 0.1], source="a list", public_because="published")
    >>> shaped(known, Method.ADADPS).provenance.source
    'a list; A = max(f/f_max, 0.01)^1'
    """
    if method is Method.DP_SGD_WEIGHTED:
        return idf(frequencies, words_per_text=WORDS_PER_TEXT, power=IDF_POWER, at=at)
    power = POWER_BEFORE if method is Method.ADADPS else POWER_ON_BOTH_SIDES
    return frequency(frequencies.per_word(WORDS_PER_TEXT), floor=FLOOR, power=power, at=at)


def norms_for(
    method: Method, *, plain: float = 1.0, scaled: float = 1.0, weighted: float = 1.0
) -> Norms:
    """Return the norms of a typical row where the clip meets it, and where the noise does.

    ``plain`` is the norm of the row as it is, ``scaled`` that of x / A, and ``weighted`` that of
    x / A after it was normalised again.

    >>> norms_for(Method.ADADPS, scaled=7.0)
    Norms(clipped=7.0, noised=1.0)
    """
    if method is Method.DP_SGD_WEIGHTED:
        return Norms(weighted, weighted)
    if method is Method.ADADPS:
        return Norms(scaled, plain)
    return Norms(scaled, scaled) if method is Method.ADADPS_TWO_SIDED else Norms(plain, plain)


def adam_rate(steps: int, norm: float = 1.0) -> float:
    """Return the learning rate of Adam on noisy gradients, for rows of a typical norm.

    >>> adam_rate(400)
    0.06
    """
    return ADAM_OUTPUT_NOISE / math.sqrt(steps) / norm
