"""Candidates: side information, and the door by which it enters.

=======================  ======================================================================
door                     chain
=======================  ======================================================================
none                     ``privatize > sgd``: DP-SGD
before the clip          ``precondition(side) > privatize > sgd``: the paper's AdaDPS
both sides of the noise  ``precondition(side) > privatize > precondition(side) > sgd``
features                 ``reparametrise(side) > privatize > sgd``
=======================  ======================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from adadps.accounting.events import is_free
from adadps.errors import SideInformationError, require, require_positive
from adadps.methods.side import Frequencies, frequency, idf
from adadps.methods.side.source import Fixed

DP_SGD = "DP-SGD"
PAPER_SHAPE, FEATURE_SHAPE, TWO_SIDED_SHAPE = (0.01, 1.0), (0.01, 1.0), (0.01, 0.5)
"""Floor and power of A = max(f/f_max, floor)^power by door, as they were recorded for the demo."""


class Door(StrEnum):
    """Where side information enters the chain."""

    NONE = "none"
    BEFORE = "before the clip"
    BOTH = "both sides of the noise"
    FEATURES = "features"


@dataclass(frozen=True)
class PublicGradients:
    """RMSProp statistics of gradients on public examples: A = √v + ``floor`` typical row norms."""

    floor: float = 3e-3
    decay: float = 0.9


@dataclass(frozen=True)
class Candidate:
    """One kind of side information by one door. Build it with the functions of this module."""

    name: str
    door: Door
    side: Fixed | PublicGradients | None = None

    @property
    def source(self) -> str:
        """Where the side information comes from."""
        if self.side is None:
            return "none"
        if isinstance(self.side, PublicGradients):
            return "gradients of public examples"
        return self.side.provenance.source


def nothing() -> Candidate:
    """DP-SGD, to which all others are compared."""
    return Candidate(DP_SGD, Door.NONE)


def before_the_clip(name: str, side: Fixed) -> Candidate:
    """The paper's door: g ↦ g/A for each example, then clip and noise."""
    return Candidate(name, Door.BEFORE, _free(side))


def both_sides(name: str, side: Fixed) -> Candidate:
    """Before the clip and after the noise, which A then shapes as well."""
    return Candidate(name, Door.BOTH, _free(side))


def into_the_features(name: str, side: Fixed) -> Candidate:
    """DP-SGD on features weighted by 1/A, each row re-normalised."""
    return Candidate(name, Door.FEATURES, _free(side))


def public_gradients(
    name: str = "public gradients, before the clip", *, floor: float = 3e-3, decay: float = 0.9
) -> Candidate:
    """RMSProp statistics of the public examples before the clip: option 1 of the paper."""
    require_positive("floor", floor)
    require(0 <= decay < 1, "0 <= decay < 1", decay, "It is that of a moving average.")
    return Candidate(name, Door.BEFORE, PublicGradients(floor, decay))


def candidates_for_words(
    frequencies: Frequencies, *, words_per_text: float, called: str = "frequencies"
) -> list[Candidate]:
    """The usual candidates that can be made of word frequencies, one or two a door.

    >>> from adadps.methods.side import given_frequencies
    >>> known = given_frequencies([0.1, 0.01], source="a list", public_because="published")
    >>> for candidate in candidates_for_words(known, words_per_text=50): print(candidate.name)
    frequencies, before the clip
    frequencies, two-sided
    frequencies, weighted features
    frequencies as IDF, weighted features
    """

    def shaped(floor_and_power: tuple[float, float]) -> Fixed:
        floor, power = floor_and_power
        return frequency(frequencies, floor=floor, power=power)

    rarity = idf(frequencies, words_per_text=words_per_text)
    return [
        before_the_clip(f"{called}, before the clip", shaped(PAPER_SHAPE)),
        both_sides(f"{called}, two-sided", shaped(TWO_SIDED_SHAPE)),
        into_the_features(f"{called}, weighted features", shaped(FEATURE_SHAPE)),
        into_the_features(f"{called} as IDF, weighted features", rarity),
    ]


def _free(side: Fixed) -> Fixed:
    if not isinstance(side, Fixed) or not is_free(side.event):
        raise SideInformationError(
            "Expected public side information that is fixed before training, found another kind. "
            "Build it with `adadps.side.frequency`, `idf`, `tfidf` or `fixed`; the doctor weighs "
            "nothing that costs privacy."
        )
    return side
