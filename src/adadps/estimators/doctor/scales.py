"""Public scales: how long rows are before and after side information."""

from __future__ import annotations

import numpy as np
import torch
from scipy import sparse
from sklearn.preprocessing import normalize

from adadps.estimators.doctor.candidates import Candidate, Door
from adadps.estimators.doctor.case import Array, Case, Matrix
from adadps.methods.side.source import Fixed


def inverse_of(candidate: Candidate, case: Case) -> Array:
    """D = 1/A of fixed side information, of shape (classes or 1, features)."""
    if not isinstance(candidate.side, Fixed):
        return np.ones((1, case.features))
    params = {"weight": torch.zeros(case.classes, case.features)}
    return np.asarray(candidate.side.init(params).scale["weight"].double().numpy())


def weighted_rows(case: Case, candidate: Candidate) -> Matrix:
    """Rows as plain DP-SGD would have to have them, to do what this candidate's door does.

    On both sides of the noise they are x/A, in the features x/A divided by its norm, else x.
    """
    if candidate.door not in (Door.BOTH, Door.FEATURES):
        return case.rows
    weights = inverse_of(candidate, case).mean(axis=0)
    if candidate.door is Door.FEATURES:
        unit: Matrix = normalize(times(case.rows, weights))
        return unit
    return times(case.rows, weights)


def times(rows: Matrix, weights: Array) -> Matrix:
    """Every feature multiplied by its weight."""
    if sparse.issparse(rows):
        return sparse.csr_matrix(rows @ sparse.diags(weights))
    return np.asarray(rows * weights)


def of_typical_norm_one(rows: Matrix) -> Matrix:
    """The rows divided by their median norm."""
    return times(rows, np.full(rows.shape[1], 1 / float(np.median(norms(rows)))))


def norms(rows: Matrix) -> Array:
    """L2 norm of every row that is not empty; 1 where all are."""
    squares = rows.multiply(rows) if sparse.issparse(rows) else rows**2
    found = np.sqrt(np.asarray(squares.sum(axis=1)).ravel())
    return found[found > 0] if bool((found > 0).any()) else np.ones(1)
