"""Sums of outer products, multiplied out row by row where they are needed."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from adadps.tensors.row_sparse import RowSparse, in_main_memory, times_


class OuterSum:
    """D ∘ Σ_i left_i right_iᵀ in float64: the gradient of a linear layer's weight.

    ``left`` (terms × rows) and ``right`` (terms × columns) are small next to the sum. Whoever adds
    it to the weights builds a few rows at a time, which stay in cache.
    """

    def __init__(self, left: Tensor, right: Tensor) -> None:
        self._left, self._right = left.double(), right.double()
        self.full: Tensor | None = None
        """The part of D that is no outer product itself."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self._left.shape[1], self._right.shape[1]

    def times_(self, diagonal: Tensor) -> Self | Tensor:
        """Multiply by D: in the factors where it can be, else when it is multiplied out."""
        if diagonal.shape[1] == 1:
            self._left = self._left * diagonal.T
        elif diagonal.shape[0] == 1:
            self._right = self._right * diagonal
        elif self.full is None:
            self.full = diagonal
        else:
            total = self.to_dense()
            times_(total, diagonal)
            return total
        return self

    def rows(self, first: int, last: int) -> Tensor:
        """The rows from ``first`` to before ``last``, without ``full``."""
        return self._left[:, first:last].T @ self._right

    def entries(self, start: int, stop: int) -> Tensor:
        """Some of its entries, row after row, without ``full``."""
        width = self.shape[1]
        first, last = start // width, -(-stop // width)
        if (last - first) * width <= 2 * (stop - start):  # what is too much is not much
            return self.rows(first, last).view(-1)[start - first * width : stop - first * width]
        parts = []
        for row in range(first, last):
            begin, end = max(start, row * width), min(stop, (row + 1) * width)
            columns = slice(begin - row * width, end - row * width)
            parts.append(self._left[:, row] @ self._right[:, columns])
        return torch.cat(parts)

    def to_dense(self) -> Tensor:
        """The whole matrix.

        >>> import torch
        >>> OuterSum(torch.ones(1, 2), torch.tensor([[1.0, 2.0]])).to_dense()
        tensor([[1., 2.],
                [1., 2.]], dtype=torch.float64)
        """
        total = self.rows(0, self.shape[0])
        if self.full is not None:
            times_(total, self.full)
        return total

    def lies_like(self, weights: Tensor) -> bool:
        """Can it be added to ``weights`` row by row, by compiled loops?"""
        aligned = in_main_memory(weights) and self._left.device.type == "cpu"
        return aligned and (self.full is None or in_main_memory(self.full))


def dense(leaf: Tensor | RowSparse | OuterSum) -> Tensor:
    """The leaf as a plain tensor."""
    return leaf if isinstance(leaf, Tensor) else leaf.to_dense()
