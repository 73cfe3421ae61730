"""A table becomes rows that a clip norm fits.

Everything here is declared, or looks at one row alone, so that it costs no privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.preprocessing import normalize

from adadps.data.bounds import Bounds, is_sparse
from adadps.data.declared_reads import DeclaredRead, declared_read

Table = Any
"""A dense array of float64, or a scipy CSR matrix."""


@dataclass(frozen=True)
class Rows:
    """x ↦ (x̂, c) / √(1 + c²) with ‖x̂‖ <= 1, where ``constant`` c makes room for an intercept.

    Columns are brought to [-1, 1] by ``bounds``, if there are any. Then rows are L2-normalised, or
    divided by √columns where there are bounds. An intercept as a feature of its own size c takes
    the share c² / (1 + c²) of a squared gradient, where a bias would take a half.

    >>> Rows(None, normalised=True, constant=0.5)(np.array([[3.0, 4.0]])).round(3).tolist()
    [[0.537, 0.716, 0.447]]
    """

    bounds: Bounds | None
    normalised: bool
    constant: float = 0.0

    def scaled(self, table: Table) -> Table:
        """x̂, in the kind of table that was given (dense where bounds move zero)."""
        held = table
        if self.bounds is not None:
            held = self.bounds.to_unit(held)
            if not self.normalised:
                held = held / math.sqrt(max(1, held.shape[1]))
        return normalize(held, norm="l2") if self.normalised else held

    @declared_read(DeclaredRead.ENCODING)
    def __call__(self, table: Table) -> Table:
        """All of it."""
        held = self.scaled(table)
        if not self.constant:
            return held
        column = np.full((held.shape[0], 1), self.constant)
        if is_sparse(held):
            return sparse.csr_matrix(sparse.hstack([held, sparse.csr_matrix(column)])) * self.shrink
        return np.hstack([held, column]) * self.shrink

    @property
    def shrink(self) -> float:
        """1 / √(1 + c²)."""
        return 1 / math.sqrt(1 + self.constant**2)
