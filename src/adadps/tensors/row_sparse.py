"""Tensors that are zero but for some rows: what a batch of words does to a table of weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


@dataclass(frozen=True)
class Factors:
    """Row i is D_i ∘ Σ_e shares[e] · matrix[lines[e]] over the entries e from ends[i] to ends[i+1].

    All of it in main memory, the matrix contiguous in float32 or float64; D is the product of
    ``diagonals``, which broadcast against the whole tensor.
    """

    ends: npt.NDArray[np.int64]
    lines: npt.NDArray[np.int64]
    shares: npt.NDArray[np.float64]
    matrix: Tensor
    diagonals: tuple[Tensor, ...] = ()


class RowSparse:
    """``values[i]`` is the slice at ``rows[i]`` along ``axis``; all other slices are zero.

    Rows are distinct. A weight of shape (outputs, features) that a few features touch has
    ``axis`` 1 and values of shape (touched features, outputs).
    """

    def __init__(self, rows: Tensor, values: Tensor, shape: tuple[int, ...], axis: int = 0) -> None:
        self.rows, self.shape, self.axis = rows, shape, axis
        self._values: Tensor | None = values

    @property
    def values(self) -> Tensor:
        """One slice for each of the rows."""
        assert self._values is not None
        return self._values

    def __add__(self, other: RowSparse) -> RowSparse:
        rows, place = torch.unique(torch.cat([self.rows, other.rows]), return_inverse=True)
        values = self.values.new_zeros(len(rows), *self.values.shape[1:])
        values.index_add_(0, place, torch.cat([self.values, other.values]))
        return RowSparse(rows, values, self.shape, self.axis)

    def __mul__(self, factor: float) -> RowSparse:
        return RowSparse(self.rows, self.values * factor, self.shape, self.axis)

    __rmul__ = __mul__

    def __truediv__(self, divisor: float) -> RowSparse:
        return RowSparse(self.rows, self.values / divisor, self.shape, self.axis)

    def times_(self, diagonal: Tensor) -> Self:
        """Multiply in place by a tensor that broadcasts against ``shape``."""
        values = self.values
        if diagonal.movedim(self.axis, 0).shape[0] == 1:
            values.mul_(diagonal.movedim(self.axis, 0))
            return self
        for part in _parts(values):
            chosen = rows_of(diagonal, self.rows[part], self.axis)
            values[part].mul_(chosen.to(values.dtype))
        return self

    def factors(self) -> Factors:
        """The values as sums of multiples of lines: here, each row has a line of its own."""
        count = len(self.rows)
        ends, own = np.arange(count + 1), np.arange(count)
        return Factors(ends, own, np.ones(count), self.values.detach().cpu().double().contiguous())

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


def in_main_memory(tensor: Tensor) -> bool:
    """Can compiled loops read and write it where it lies?"""
    known = tensor.dtype in (torch.float32, torch.float64)
    return tensor.device.type == "cpu" and known and tensor.is_contiguous()
