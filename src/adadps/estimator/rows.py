"""A table becomes rows that a clip norm fits.

Everything here is declared, or looks at one row alone, so that it costs no privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.preprocessing import normalize

from adadps.errors import SettingError

Numbers = npt.NDArray[np.float64]
Table = Any
"""A dense array of float64, or a scipy CSR matrix."""


def is_sparse(table: Any) -> bool:
    """Is it a scipy sparse matrix?"""
    return bool(sparse.issparse(table))


@dataclass(frozen=True)
class Bounds:
    """The range of each column; what lies outside is clipped to it.

    >>> Bounds.given((0, 10), 2, "feature_bounds").to_unit(np.array([[0.0, 20.0]])).tolist()
    [[-1.0, 1.0]]
    """

    low: Numbers
    high: Numbers

    @classmethod
    def given(cls, pair: Any, columns: int, what: str) -> Bounds:
        """A pair of numbers, or of one number a column."""
        try:
            low, high = (
                np.broadcast_to(np.asarray(side, dtype=np.float64), columns).copy() for side in pair
            )
        except (TypeError, ValueError) as error:
            raise SettingError(
                f"Expected {what}=(low, high), each a number or {columns} of them, found something "
                "else. Declare the range that is known without looking at the data."
            ) from error
        if not (np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all()):
            raise SettingError(
                f"Expected finite {what} with low <= high, found others. Declare them in order."
            )
        return cls(low, high)

    @classmethod
    def of(cls, table: Table) -> Bounds:
        """The smallest and largest number of each column: two records, assumed to be public."""
        low, high = table.min(axis=0), table.max(axis=0)
        if is_sparse(low):
            low, high = low.toarray(), high.toarray()
        return cls(*(np.asarray(side, dtype=np.float64).ravel() for side in (low, high)))

    def around_zero(self) -> Bounds:
        """Wide enough that zero is in the middle, so that zeros stay zeros."""
        largest = np.maximum(np.abs(self.low), np.abs(self.high))
        return Bounds(-largest, largest)

    @property
    def middle(self) -> Numbers:
        """Where a column becomes 0."""
        return self.low / 2 + self.high / 2

    @property
    def slope(self) -> Numbers:
        """1 / half the width; 0 for a column that cannot vary."""
        half = self.high / 2 - self.low / 2
        return np.divide(1.0, half, out=np.zeros_like(half), where=half > 0)

    def to_unit(self, table: Table) -> Table:
        """Clip, and bring every column to [-1, 1]."""
        if is_sparse(table) and not self.middle.any():
            columns = table.indices
            kept = np.clip(table.data, self.low[columns], self.high[columns])
            held = (kept * self.slope[columns], columns, table.indptr)
            return sparse.csr_matrix(held, shape=table.shape)
        dense = table.toarray() if is_sparse(table) else table
        return (np.clip(dense, self.low, self.high) - self.middle) * self.slope

    def from_unit(self, values: Numbers) -> Numbers:
        """Back from [-1, 1], clipped."""
        half = self.high / 2 - self.low / 2
        return np.clip(self.middle + half * values, self.low, self.high)

    def in_words(self, name: str) -> str:
        """For the list of what is assumed to be public."""
        if len(set(self.low)) == len(set(self.high)) == 1:
            return f"{name} from {self.low[0]:g} to {self.high[0]:g}"
        return f"{name} by column"


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
