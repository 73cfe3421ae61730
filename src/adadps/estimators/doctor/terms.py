"""The terms of the paper's convex bounds, on public data.

For a fixed A and learning rates α/√t, Theorem 2 of the paper (and Theorem 1 for A^t = √E[ĝ²] + ε of
public gradients ĝ) bounds min_t E[F(w^t)] - F* after T steps, up to a constant, by

    (1/√T) [ (D²/(2α) + α R) Σ_j A_j + α E‖N‖²_A ],      N ~ (1/b) 𝒩(0, σ²C²),

- D: ‖w^t - w*‖₂ ≤ D (Assumption 1);
- C: ‖g^{i,t}/A‖₂ ≤ C (Assumption 2), so that E‖N‖²_A = (σC/b)² Σ_j A_j;
- R := max_{j,t} E[(g_j^t)²] / A_j², where g^t is the mean gradient of a batch of b.

With the best α it is √2 D √(ΣA (R ΣA + E‖N‖²_A)) / √T, which does not change when A is multiplied
by a constant. `BoundTerms.bound` is this without 1/√T. The proof passes through a sharper line,

    (1/√T) [ ‖w^1 - w*‖²_A/(2α) + α (max_t E⟨g^t, A⁻¹g^t⟩ + E‖N‖²_A) ],

whose value at the best α, without 1/√T, is `BoundTerms.sharper`. The terms are computed with
w^1 = 0, w* a regularised solution on the public rows, and t over points between the two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from adadps.estimators.doctor.candidates import (
    Candidate,
    PublicGradients,
    inverse_of,
    of_typical_norm_one,
    weighted_rows,
)
from adadps.estimators.doctor.case import Array, Case, Matrix
from adadps.types import Method

POINTS = (0.0, 0.5, 1.0)
"""Shares of the way from w^1 = 0 to w*."""


@dataclass(frozen=True)
class BoundTerms:
    """The terms, named as in the paper. A is scaled to a mean of 1, rows to a median norm of 1."""

    diameter: float
    """D = ‖w^1 - w*‖₂."""
    ratio: float
    """R = max_{j,t} E[(g_j^t)²] / A_j²."""
    total: float
    """Σ_j A_j."""
    noise: float
    """E‖N‖²_A."""
    weighted_diameter: float
    """‖w^1 - w*‖²_A, from the proof."""
    weighted_gradient: float
    """max_t E⟨g^t, A⁻¹g^t⟩, from the proof."""

    @property
    def bound(self) -> float:
        """Return √2 D √(ΣA (R ΣA + E‖N‖²_A)): the theorem's bound at the best α, times √T."""
        return self.diameter * math.sqrt(2 * self.total * (self.ratio * self.total + self.noise))

    @property
    def sharper(self) -> float:
        """Return √(2 ‖w^1 - w*‖²_A (max_t E⟨g^t, A⁻¹g^t⟩ + E‖N‖²_A)), before it is relaxed."""
        return math.sqrt(2 * self.weighted_diameter * (self.weighted_gradient + self.noise))

    def relative_to(self, other: BoundTerms) -> dict[str, float]:
        """Return each term divided by that of ``other``."""
        return {
            name: getattr(self, name) / max(getattr(other, name), 1e-300)
            for name in ("diameter", "ratio", "total", "noise", "bound", "sharper")
        }


@dataclass(frozen=True)
class MomentsAtPoint:
    """First and second moment of the rows' gradients at one point, and the residuals p - y."""

    mean: Array
    square: Array
    residuals: Array

    def of_batches(self, size: float) -> Array:
        """Return E[(g_j)²] for the mean g of a batch of ``size`` rows."""
        return np.asarray(self.mean**2 + (self.square - self.mean**2) / size)


def terms_of(
    case: Case, candidate: Candidate, *, noise_multiplier: float, expected_size: float
) -> BoundTerms:
    """Return the terms of one candidate.

    Side information on both sides of the noise, or in the features, is DP-SGD on other rows: on
    x/A, or on x/A normalised again. So A = 1 there, and the rows change.
    """
    rows = of_typical_norm_one(weighted_rows(case, candidate))
    optimum = solution(rows, case.labels, case.classes)
    trained, given = _parts(len(case), candidate)
    moments = [moments_at(share * optimum, rows[trained], case.labels[trained]) for share in POINTS]
    if isinstance(candidate.side, PublicGradients):
        theirs = [moments_at(share * optimum, rows[given], case.labels[given]) for share in POINTS]
        batch = min(256, len(given))
        diagonals = [np.sqrt(one.of_batches(batch)) + candidate.side.floor for one in theirs]
    elif candidate.method is Method.ADADPS:
        diagonals = [1 / inverse_of(candidate, case)] * len(POINTS)
    else:
        diagonals = [np.ones((1, 1))] * len(POINTS)
    return combined(
        optimum,
        moments,
        [np.broadcast_to(one, optimum.shape) for one in diagonals],
        rows[trained],
        noise_per_step=noise_multiplier / expected_size,
        expected_size=expected_size,
    )


def combined(
    optimum: Array,
    moments: list[MomentsAtPoint],
    diagonals: list[Array],
    rows: Matrix,
    *,
    noise_per_step: float,
    expected_size: float,
) -> BoundTerms:
    """Return the terms from gradients and A at each point; ``noise_per_step`` is σ/b."""
    mean = max(float(one.mean()) for one in diagonals)
    scaled = [one / mean for one in diagonals]
    second = [one.of_batches(expected_size) for one in moments]
    pairs = list(zip(second, scaled, strict=True))
    clip = max(
        float(gradient_norms(one.residuals, rows, 1 / A).max())
        for one, A in zip(moments, scaled, strict=True)
    )
    total = max(float(A.sum()) for A in scaled)
    return BoundTerms(
        diameter=float(np.linalg.norm(optimum)),
        ratio=max(float((square / A**2).max()) for square, A in pairs),
        total=total,
        noise=(noise_per_step * clip) ** 2 * total,
        weighted_diameter=max(float((A * optimum**2).sum()) for A in scaled),
        weighted_gradient=max(float((square / A).sum()) for square, A in pairs),
    )


def moments_at(weights: Array, rows: Matrix, labels: Array) -> MomentsAtPoint:
    """Return moments of cross-entropy's gradients (p - y) xᵀ at ``weights``, one row per class."""
    residuals = softmax(rows @ weights.T, axis=1)
    residuals[np.arange(len(labels)), labels] -= 1
    count = len(labels)
    return MomentsAtPoint(
        mean=_dense(rows.T @ residuals).T / count,
        square=_dense(_squared(rows).T @ residuals**2).T / count,
        residuals=residuals,
    )


def gradient_norms(residuals: Array, rows: Matrix, inverse: Array) -> Array:
    """Return ‖D ∘ (p - y) xᵀ‖ of every row, for D = 1/A of shape (classes or 1, features)."""
    inside = _dense(_squared(rows) @ (inverse**2).T)
    return np.asarray(np.sqrt((residuals**2 * inside).sum(axis=1)))


def solution(rows: Matrix, labels: Array, classes: int) -> Array:
    """Return w*, a multinomial logistic regression with the penalty ‖w‖²/(2m) on m rows."""
    count, width = rows.shape
    truth = np.zeros((count, classes))
    truth[np.arange(count), labels] = 1

    def loss(flat: Array) -> tuple[float, Array]:
        weights = flat.reshape(classes, width)
        scores = log_softmax(rows @ weights.T, axis=1)
        slope = _dense(rows.T @ (np.exp(scores) - truth)).T / count + weights / count
        value = -(scores * truth).sum() / count + (weights**2).sum() / (2 * count)
        return float(value), np.asarray(slope.ravel())

    found = minimize(
        loss, np.zeros(classes * width), jac=True, method="L-BFGS-B", options={"maxiter": 100}
    )
    return np.asarray(found.x.reshape(classes, width))


def _parts(count: int, candidate: Candidate) -> tuple[Array, Array]:
    """Return the rows to train on, and the rows whose gradients are side information."""
    every = np.arange(count)
    if not isinstance(candidate.side, PublicGradients):
        return every, every[:0]
    return every[every % 4 != 0], every[every % 4 == 0]


def _squared(rows: Matrix) -> Matrix:
    return rows.multiply(rows) if sparse.issparse(rows) else rows**2


def _dense(values: Any) -> Array:
    return np.asarray(values)  # sparse times dense may be an np.matrix
