"""Candidates: side information, and the method by which it enters a private run.

=======================  ==================  ==================================================
side information enters  method              chain
=======================  ==================  ==================================================
nowhere                  DP-SGD              ``privatize > sgd``
before the clip          AdaDPS              ``precondition(side) > privatize > sgd``
both sides of the noise  two-sided AdaDPS    ``precondition(side) > privatize >
                                             precondition(side) > sgd``
features                 DP-SGD on weighted  ``reparametrise(side) > privatize > sgd``
                         features
=======================  ==================  ==================================================
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy import sparse
from sklearn.preprocessing import normalize

from adadps.accounting.events import is_free
from adadps.errors import SideInformationError, require, require_positive
from adadps.estimators.doctor.case import Array, Case, Matrix
from adadps.estimators.planner.methods import FLOOR, POWER_BEFORE, POWER_ON_BOTH_SIDES
from adadps.methods.side import Frequencies, frequency, idf
from adadps.methods.side.source import Fixed
from adadps.types import Method

DP_SGD = "DP-SGD"
FEATURE_POWER = 1.0
"""Power of A = max(f/f_max, floor)^power for weighted features, as recorded for the demo."""
_DOORS = {
    Method.DP_SGD: "none",
    Method.ADADPS: "before the clip",
    Method.ADADPS_TWO_SIDED: "both sides of the noise",
    Method.DP_SGD_WEIGHTED: "features",
}


@dataclass(frozen=True)
class PublicGradients:
    """RMSProp statistics of gradients on public examples: A = √v + ``floor`` typical row norms."""

    floor: float = 3e-3
    decay: float = 0.9


@dataclass(frozen=True)
class Candidate:
    """One kind of side information by one method. Build it with the functions of this module."""

    name: str
    method: Method
    side: Fixed | PublicGradients | None = None

    @property
    def is_plain(self) -> bool:
        """Return whether this is DP-SGD without side information."""
        return self.method is Method.DP_SGD

    @property
    def door(self) -> str:
        """Return where the side information enters the chain."""
        return _DOORS[self.method]

    @property
    def source(self) -> str:
        """Return where the side information comes from."""
        if self.side is None:
            return "none"
        if isinstance(self.side, PublicGradients):
            return "gradients of public examples"
        return self.side.provenance.source


def no_side_information() -> Candidate:
    """Return DP-SGD, with which all others are compared."""
    return Candidate(DP_SGD, Method.DP_SGD)


def before_the_clip(name: str, side: Fixed) -> Candidate:
    """Return the paper's AdaDPS: g ↦ g/A for each example, then clip and noise."""
    return Candidate(name, Method.ADADPS, _free(side))


def both_sides(name: str, side: Fixed) -> Candidate:
    """Return two-sided AdaDPS: before the clip and after the noise, which A then shapes too."""
    return Candidate(name, Method.ADADPS_TWO_SIDED, _free(side))


def into_the_features(name: str, side: Fixed) -> Candidate:
    """Return DP-SGD on features weighted by 1/A, each row normalised again."""
    return Candidate(name, Method.DP_SGD_WEIGHTED, _free(side))


def public_gradients(
    name: str = "public gradients, before the clip", *, floor: float = 3e-3, decay: float = 0.9
) -> Candidate:
    """Return AdaDPS with RMSProp statistics of the public examples: option 1 of the paper."""
    require_positive("floor", floor)
    require(0 <= decay < 1, "0 <= decay < 1", decay, "It is the decay of a moving average.")
    return Candidate(name, Method.ADADPS, PublicGradients(floor, decay))


def candidates_for_words(
    frequencies: Frequencies, *, words_per_text: float, called: str = "frequencies"
) -> list[Candidate]:
    """Return the usual candidates that word frequencies allow, one or two per method.

    >>> from adadps.methods.side import given_frequencies
    >>> known = given_frequencies([0.1, 0.01], source="a list", public_because="published")
    >>> for candidate in candidates_for_words(known, words_per_text=50): print(candidate.name)
    frequencies, before the clip
    frequencies, two-sided
    frequencies, weighted features
    frequencies as IDF, weighted features
    """

    def shaped(power: float) -> Fixed:
        return frequency(frequencies, floor=FLOOR, power=power)

    rarity = idf(frequencies, words_per_text=words_per_text)
    return [
        before_the_clip(f"{called}, before the clip", shaped(POWER_BEFORE)),
        both_sides(f"{called}, two-sided", shaped(POWER_ON_BOTH_SIDES)),
        into_the_features(f"{called}, weighted features", shaped(FEATURE_POWER)),
        into_the_features(f"{called} as IDF, weighted features", rarity),
    ]


def _free(side: Fixed) -> Fixed:
    if not isinstance(side, Fixed) or not is_free(side.event):
        raise SideInformationError(
            "Expected public side information that is fixed before training, found another kind. "
            "Build it with `adadps.side.frequency`, `idf`, `tfidf` or `fixed`; the doctor does not "
            "compare side information that costs privacy."
        )
    return side


def inverse_of(candidate: Candidate, case: Case) -> Array:
    """Return D = 1/A of fixed side information, of shape (classes or 1, features)."""
    if not isinstance(candidate.side, Fixed):
        return np.ones((1, case.features))
    params = {"weight": torch.zeros(case.classes, case.features)}
    return np.asarray(candidate.side.init(params).scale["weight"].double().numpy())


def weighted_rows(case: Case, candidate: Candidate) -> Matrix:
    """Return the rows on which plain DP-SGD does what this candidate's method does.

    If side information enters on both sides of the noise, they are x/A. If it enters in the
    features, they are x/A divided by its norm. Otherwise they are x.
    """
    if candidate.method not in (Method.ADADPS_TWO_SIDED, Method.DP_SGD_WEIGHTED):
        return case.rows
    weights = inverse_of(candidate, case).mean(axis=0)
    if candidate.method is Method.DP_SGD_WEIGHTED:
        unit: Matrix = normalize(_scaled(case.rows, weights))
        return unit
    return _scaled(case.rows, weights)


def of_typical_norm_one(rows: Matrix) -> Matrix:
    """Return the rows divided by their median norm."""
    return _scaled(rows, np.full(rows.shape[1], 1 / median_row_norm(rows)))


def median_row_norm(rows: Matrix) -> float:
    """Return the median L2 norm of the rows that are not empty; 1 where all are."""
    squares = rows.multiply(rows) if sparse.issparse(rows) else rows**2
    norms = np.sqrt(np.asarray(squares.sum(axis=1)).ravel())
    return float(np.median(norms[norms > 0])) if bool((norms > 0).any()) else 1.0


def _scaled(rows: Matrix, weights: Array) -> Matrix:
    """Multiply every feature by its weight."""
    if sparse.issparse(rows):
        return sparse.csr_matrix(rows @ sparse.diags(weights))
    return np.asarray(rows * weights)
