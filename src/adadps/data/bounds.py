"""Columns of numbers between declared bounds, scaled to [-1, 1] and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from adadps.data.provenance import DeclaredRead, declared_read
from adadps.errors import SettingError

Numbers = npt.NDArray[np.float64]
Matrix = Any
"""A dense array of float64, or a scipy CSR matrix."""


def is_sparse(table: Any) -> bool:
    """Is it a scipy sparse matrix?"""
    return bool(sparse.issparse(table))


@dataclass(frozen=True)
class Bounds:
    """The range of each column; values outside are clipped to it.

    >>> Bounds.given((0, 10), 2, "feature_bounds").to_unit(np.array([[0.0, 20.0]])).tolist()
    [[-1.0, 1.0]]
    """

    low: Numbers
    high: Numbers

    @classmethod
    def given(cls, pair: Any, columns: int, what: str) -> Bounds:
        """Return the bounds given by a pair of numbers, or of lists with one per column."""
        expected = f"{what}=(low, high), each a number or a list of {columns}, one per column"
        if _is_list_of_pairs(pair):
            raise SettingError(
                f"Expected {expected}, found a list of pairs. If you gave one pair per column, "
                "give all lows first and then all highs: (lows, highs)."
            )
        try:
            low, high = (
                np.broadcast_to(np.asarray(side, dtype=np.float64), columns).copy() for side in pair
            )
        except (TypeError, ValueError) as error:
            raise SettingError(
                f"Expected {expected}, found {_described(pair)}. Declare the range that is known "
                "without looking at the data."
            ) from error
        if not (np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all()):
            raise SettingError(
                f"Expected {expected}, finite and with low <= high in every column, found others. "
                "Declare all lows first, and then all highs."
            )
        return cls(low, high)

    @classmethod
    @declared_read(DeclaredRead.ASSUMED_PUBLIC)
    def of(cls, table: Matrix) -> Bounds:
        """Return the smallest and largest value per column: two records, assumed to be public."""
        low, high = table.min(axis=0), table.max(axis=0)
        if is_sparse(low):
            low, high = low.toarray(), high.toarray()
        return cls(*(np.asarray(side, dtype=np.float64).ravel() for side in (low, high)))

    def around_zero(self) -> Bounds:
        """Return bounds with zero in the middle, wide enough for these: zeros then stay zeros."""
        largest = np.maximum(np.abs(self.low), np.abs(self.high))
        return Bounds(-largest, largest)

    @property
    def middle(self) -> Numbers:
        """The value that becomes 0, per column."""
        return self.low / 2 + self.high / 2

    @property
    def half(self) -> Numbers:
        """Half the width of each column; both ends are halved first, so that nothing overflows."""
        return self.high / 2 - self.low / 2

    @property
    def slope(self) -> Numbers:
        """1 / half the width; 0 for a column that cannot vary."""
        half = self.half
        return np.divide(1.0, half, out=np.zeros_like(half), where=half > 0)

    @declared_read(DeclaredRead.ENCODING)
    def to_unit(self, table: Matrix) -> Matrix:
        """Clip, and scale every column to [-1, 1]."""
        if is_sparse(table) and not self.middle.any():
            columns = table.indices
            kept = np.clip(table.data, self.low[columns], self.high[columns])
            held = (_over(kept, self.half[columns]), columns, table.indptr)
            return sparse.csr_matrix(held, shape=table.shape)
        dense = table.toarray() if is_sparse(table) else table
        return _over(np.clip(dense, self.low, self.high) - self.middle, self.half)

    def from_unit(self, values: Numbers) -> Numbers:
        """Scale values back from [-1, 1], clipped."""
        return np.clip(self.middle + self.half * values, self.low, self.high)

    def in_words(self, name: str) -> str:
        """Describe the bounds for the list of facts that are assumed to be public."""
        if len(set(self.low)) == len(set(self.high)) == 1:
            return f"{name} from {self.low[0]:g} to {self.high[0]:g}"
        return f"{name} by column"


def _is_list_of_pairs(given: Any) -> bool:
    """Is it a list of pairs, as one would write one pair per column?"""
    return isinstance(given, list) and all(
        isinstance(pair, tuple) and len(pair) == 2 for pair in given
    )


def _described(given: Any) -> str:
    """Describe an argument in a few words: it was declared, and is no private value."""
    if isinstance(given, str):
        return repr(given)
    if isinstance(given, list | tuple):
        sizes = ", ".join(str(np.size(side)) for side in given[:4])
        return f"{len(given)} parts of {sizes} values"
    return type(given).__name__


def _over(values: Numbers, half: Numbers) -> Numbers:
    """values / half, at most 1 whatever the rounding; 0 where a column cannot vary."""
    found = np.divide(values, half, out=np.zeros_like(values), where=half > 0)
    return np.clip(found, -1, 1, out=found)
