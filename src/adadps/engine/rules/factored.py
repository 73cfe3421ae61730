"""Sums of outer products that are multiplied out where they are needed, and only there."""

from __future__ import annotations

from typing import Self

from torch import Tensor

from adadps.data.sparse_rows import Columns
from adadps.tensors.row_sparse import Factors, RowSparse


class FactoredRows(RowSparse):
    """D_k ∘ Σ_i w_i a_ik b_i for the words k that occur, in float64.

    The sum over the batch is as large as the rows it touches; a, w, b and D are there already. So
    rows that wait for their noise wait as factors.
    """

    def __init__(
        self, columns: Columns, weights: Tensor, matrix: Tensor, shape: tuple[int, ...], axis: int
    ) -> None:
        self.rows, self.shape, self.axis = columns.columns, shape, axis
        self._columns, self._weights, self._matrix = columns, weights.double(), matrix.detach()
        self._diagonals: tuple[Tensor, ...] = ()
        self._values = None

    @property
    def values(self) -> Tensor:
        """One row for each word, multiplied out once."""
        if self._values is None:
            self._values = self._columns.times(self._matrix.double() * self._weights.unsqueeze(1))
            for diagonal in self._diagonals:
                super().times_(diagonal)
        return self._values

    def times_(self, diagonal: Tensor) -> Self:
        """Remember D."""
        if self._values is not None:
            return super().times_(diagonal)
        self._diagonals = (*self._diagonals, diagonal)
        return self

    def factors(self) -> Factors:
        """As they are, if nobody has multiplied them out."""
        if self._values is not None:
            return super().factors()
        columns = self._columns
        shares = columns.values.double() * self._weights[columns.rows]
        return Factors(
            columns.offsets.numpy(), columns.rows.numpy(), shares.numpy(), self._matrix,
            self._diagonals,
        )  # fmt: skip
