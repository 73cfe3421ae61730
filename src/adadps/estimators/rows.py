"""Rows of a table, scaled for a clip norm, as private examples.

Everything here is declared, or looks at one row alone, so that it costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.preprocessing import normalize

from adadps.data.bounds import Bounds, is_sparse
from adadps.data.examples import Examples, as_features, examples
from adadps.data.identity import PublicRows, identities_of_rows
from adadps.data.provenance import DeclaredRead, declared_read
from adadps.data.row_kind import without_rows
from adadps.errors import SideInformationError

Table = Any
"""A dense array of float64, or a scipy CSR matrix."""


@dataclass(frozen=True)
class RowScaling:
    """x ↦ (x̂, c) / √(1 + c²) with ‖x̂‖ <= 1, where ``constant`` c replaces an intercept.

    Columns are brought to [-1, 1] by ``bounds``, if there are any. Then rows are L2-normalised, or
    divided by √columns where there are bounds. A constant feature of size c takes the share
    c² / (1 + c²) of a squared gradient, where a bias would take a half.

    >>> RowScaling(None, normalised=True, constant=0.5)(np.array([[3.0, 4.0]])).round(3).tolist()
    [[0.537, 0.716, 0.447]]
    """

    bounds: Bounds | None
    normalised: bool
    constant: float = 0.0

    @declared_read(DeclaredRead.ENCODING)
    def __call__(self, table: Table) -> Table:
        """Return the scaled rows, with the constant feature at the end."""
        scaled = self._scaled(table)
        if not self.constant:
            return scaled
        column = np.full((scaled.shape[0], 1), self.constant)
        if is_sparse(scaled):
            joined = sparse.hstack([scaled, sparse.csr_matrix(column)])
            return sparse.csr_matrix(joined) * self.shrink
        return np.hstack([scaled, column]) * self.shrink

    def _scaled(self, table: Table) -> Table:
        """Return x̂, in the kind of table that was given (dense where bounds move zero)."""
        if self.bounds is not None:
            table = self.bounds.to_unit(table)
            if not self.normalised:
                table = table / math.sqrt(max(1, table.shape[1]))
        return normalize(table, norm="l2") if self.normalised else table

    @property
    def shrink(self) -> float:
        """Return 1 / √(1 + c²)."""
        return 1 / math.sqrt(1 + self.constant**2)


def private_examples(
    table: Table,
    targets: npt.NDArray[np.generic],
    scaling: RowScaling,
    public: Sequence[PublicRows],
    words: int | None = None,
) -> Examples:
    """Return all rows as they are trained on, identified as they are given.

    Texts are identified by their first ``words`` columns: vectors beside them may differ in their
    last digits, or with the spelling.

    Training leaves out rows that are ``public``, such as those of a corpus behind side information;
    after scaling they would not be recognised. How many there are is neither stated nor refused.

    >>> from adadps.data.examples import private_rows
    >>> from adadps.data.identity import public_rows
    >>> import torch
    >>> table, scaling = np.array([[3.0, 4.0], [0.0, 2.0]]), RowScaling(None, normalised=True)
    >>> corpus = [public_rows(torch.tensor([[3.0, 4.0]]), None)]
    >>> private_rows(private_examples(table, np.array([0, 1]), scaling, corpus), corpus).tolist()
    [False, True]
    """
    if any(held.texts is not None for held in public):
        raise SideInformationError(
            "Expected side information without texts of its corpus, found some: an estimator sees "
            "no texts, so that equal texts would not be found. Train by `adadps.fit` with "
            "`examples(..., texts=...)`, or give frequencies without texts."
        )
    held = examples(scaling(table), targets)
    if not public:
        return held
    with declared_read(DeclaredRead.PUBLIC_TOO):
        return replace(held, before=identities_of_rows(as_features(table[:, :words])))


def no_examples_like(
    table: Table, targets: npt.NDArray[np.generic], scaling: RowScaling
) -> Examples:
    """Return no examples, of the kind of these as they are trained on; no value is read.

    >>> scaling = RowScaling(None, normalised=True)
    >>> no_examples_like(np.ones((5, 3)), np.zeros(5, np.int64), scaling).features.shape
    torch.Size([0, 3])
    """
    shape = (1, table.shape[1])
    made_up = sparse.csr_matrix(shape) if sparse.issparse(table) else np.zeros(shape)
    target = np.zeros((1, *targets.shape[1:]), targets.dtype)
    return without_rows(examples(scaling(made_up), target))
