"""A tensor that is zero but for some rows: what a batch of words does to a table of weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class RowSparse:
    """``values[i]`` is the slice at ``rows[i]`` along ``axis``; all other slices are zero.

    Rows are distinct. A weight of shape (outputs, features) that a few features touch has
    ``axis`` 1 and values of shape (touched features, outputs).
    """

    rows: Tensor
    values: Tensor
    shape: tuple[int, ...]
    axis: int = 0

    def __add__(self, other: RowSparse) -> RowSparse:
        rows, place = torch.unique(torch.cat([self.rows, other.rows]), return_inverse=True)
        values = self.values.new_zeros(len(rows), *self.values.shape[1:])
        values.index_add_(0, place, torch.cat([self.values, other.values]))
        return replace(self, rows=rows, values=values)

    def __mul__(self, factor: float) -> RowSparse:
        return replace(self, values=self.values * factor)

    __rmul__ = __mul__

    def __truediv__(self, divisor: float) -> RowSparse:
        return replace(self, values=self.values / divisor)

    def times_(self, diagonal: Tensor) -> RowSparse:
        """Multiply in place by a tensor that broadcasts against ``shape``."""
        if diagonal.movedim(self.axis, 0).shape[0] == 1:
            self.values.mul_(diagonal.movedim(self.axis, 0))
            return self
        for part in _parts(self.values):
            chosen = rows_of(diagonal, self.rows[part], self.axis)
            self.values[part].mul_(chosen.to(self.values.dtype))
        return self

    def to_dense(self) -> Tensor:
        """The whole tensor.

        >>> RowSparse(torch.tensor([1]), torch.tensor([[5.0]]), (1, 3), axis=1).to_dense()
        tensor([[0., 5., 0.]])
        """
        others = self.values.shape[1:]
        rows_first = self.values.new_zeros(self.shape[self.axis], *others)
        rows_first[self.rows] = self.values
        return rows_first.movedim(0, self.axis)


def rows_of(tensor: Tensor, rows: Tensor, axis: int) -> Tensor:
    """The slices at ``rows`` along ``axis``, which comes first; of a broadcast axis, its one."""
    moved = tensor.movedim(axis, 0)
    return moved if moved.shape[0] == 1 else moved.index_select(0, rows)


def times_(total: Tensor, factor: Tensor) -> None:
    """``total`` *= ``factor``, in parts where the types differ: torch would copy it whole."""
    if total.dtype == factor.dtype or total.shape != factor.shape or not total.ndim:
        total.mul_(factor)
        return
    for part in _parts(total):
        total[part].mul_(factor[part].to(total.dtype))


def _parts(total: Tensor) -> Iterator[slice]:
    """Parts of the first axis that stay in cache."""
    size = max(1, 2**16 * len(total) // max(1, total.numel()))
    return (slice(start, start + size) for start in range(0, len(total), size))


def dense(leaf: Tensor | RowSparse) -> Tensor:
    """The leaf as a plain tensor."""
    return leaf.to_dense() if isinstance(leaf, RowSparse) else leaf
