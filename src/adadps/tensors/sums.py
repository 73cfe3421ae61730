"""Sums of gradients: whole tensors, some rows of one, or outer products not multiplied out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from adadps.tensors.loops import LINE_TYPES, in_main_memory

Line = npt.NDArray[Any]
"""A tensor's memory as one line of float32 or float64."""


@dataclass(frozen=True)
class Factors:
    """Row i is D_i ∘ Σ_e shares[e] · matrix[lines[e]] over the entries e from ends[i] to ends[i+1].

    Everything is in main memory, the matrix contiguous in float32 or float64; D is the product of
    ``diagonals``, which broadcast against the whole tensor.
    """

    ends: npt.NDArray[np.int64]
    lines: npt.NDArray[np.int64]
    shares: npt.NDArray[np.float64]
    matrix: Tensor
    diagonals: tuple[Tensor, ...] = ()


class RowSparse:
    """``values[i]`` is the slice at ``rows[i]`` along ``axis``; all other slices are zero.

    This is what a batch of words does to a table of weights. Rows are distinct. A weight of shape
    (outputs, features) that a few features touch has ``axis`` 1 and values of shape (touched
    features, outputs).
    """

    def __init__(self, rows: Tensor, values: Tensor, shape: tuple[int, ...], axis: int = 0) -> None:
        self.rows, self.shape, self.axis = rows, shape, axis
        self._values: Tensor | None = values

    @property
    def values(self) -> Tensor:
        """One slice per row."""
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
        """Return the values as sums of multiples of lines; here each row is one line."""
        count = len(self.rows)
        ends, own = np.arange(count + 1), np.arange(count)
        return Factors(ends, own, np.ones(count), self.values.detach().cpu().double().contiguous())

    def to_dense(self) -> Tensor:
        """Return the whole tensor.

        >>> RowSparse(torch.tensor([1]), torch.tensor([[5.0]]), (1, 3), axis=1).to_dense()
        tensor([[0., 5., 0.]])
        """
        others = self.values.shape[1:]
        rows_first = self.values.new_zeros(self.shape[self.axis], *others)
        rows_first[self.rows] = self.values
        return rows_first.movedim(0, self.axis)


class OuterSum:
    """D ∘ Σ_i left_i right_iᵀ in float64: the gradient of a linear layer's weight.

    ``left`` (terms × rows) and ``right`` (terms × columns) are small next to the sum. The code that
    adds the sum to the weights builds a few rows at a time, which stay in cache.
    """

    def __init__(self, left: Tensor, right: Tensor) -> None:
        self._left, self._right = left.double(), right.double()
        self.full: Tensor | None = None
        """The part of D that is not itself an outer product."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self._left.shape[1], self._right.shape[1]

    def times_(self, diagonal: Tensor) -> Self | Tensor:
        """Multiply by D: in the factors if possible, else when the sum is multiplied out."""
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
        """Return the rows from ``first`` to before ``last``, without ``full``."""
        return self._left[:, first:last].T @ self._right

    def entries(self, start: int, stop: int) -> Tensor:
        """Return the entries from ``start`` to before ``stop``, row by row, without ``full``."""
        width = self.shape[1]
        first, last = start // width, -(-stop // width)
        if (last - first) * width <= 2 * (stop - start):  # whole rows waste little
            return self.rows(first, last).view(-1)[start - first * width : stop - first * width]
        parts = []
        for row in range(first, last):
            begin, end = max(start, row * width), min(stop, (row + 1) * width)
            columns = slice(begin - row * width, end - row * width)
            parts.append(self._left[:, row] @ self._right[:, columns])
        return torch.cat(parts)

    def to_dense(self) -> Tensor:
        """Return the whole matrix.

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
        """Can compiled loops add it to ``weights`` row by row?"""
        aligned = in_main_memory(weights) and self._left.device.type == "cpu"
        return aligned and (self.full is None or in_main_memory(self.full))


Params = dict[str, Tensor]
"""One tensor per trainable parameter, by its name in the model."""

Sum = Tensor | RowSparse | OuterSum
"""A sum of gradients: whole, only the touched rows of a table, or not multiplied out."""

Sums = dict[str, Sum]
"""One sum of gradients per trainable parameter."""


def dense(leaf: Sum) -> Tensor:
    """Return the sum as a plain tensor."""
    return leaf if isinstance(leaf, Tensor) else leaf.to_dense()


def rows_of(tensor: Tensor, rows: Tensor, axis: int) -> Tensor:
    """Return the slices at ``rows`` along ``axis``, which comes first; a broadcast axis has one."""
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
    """Slices of the first axis that fit in cache."""
    size = max(1, 2**16 * len(total) // max(1, total.numel()))
    return (slice(start, start + size) for start in range(0, len(total), size))


# --- tensors as lines of numbers, for compiled loops ---


def on_cpu(total: Tensor, *, in_order: bool = False) -> Tensor:
    """Return ``total`` on the CPU, in float32 or float64, in one piece of memory.

    With ``in_order`` it lies there row by row.
    """
    total = total.detach().cpu()
    if total.dtype not in LINE_TYPES:
        total = total.double()
    if not total.is_contiguous() and (in_order or as_lines(total, total) is None):
        total = total.contiguous()
    return total


def as_lines(source: Tensor, target: Tensor) -> tuple[Line, Line] | None:
    """Return both as they lie in memory, if each is in one piece and in the same order of axes."""
    target = target.detach()
    if target.device.type != "cpu" or target.dtype not in LINE_TYPES:
        return None
    if not (source.is_contiguous() and target.is_contiguous()):
        slowest_first = sorted(range(source.dim()), key=lambda axis: -source.stride()[axis])
        source, target = source.permute(slowest_first), target.permute(slowest_first)
        if not (source.is_contiguous() and target.is_contiguous()):
            return None
    return source.view(-1).numpy(), target.view(-1).numpy()


_NO_DIAGONAL: Line = np.empty(0)


@dataclass(frozen=True)
class AlignedSum:
    """A sum beside the weights that it changes; ``part(start, stop)`` is a slice of both and of D.

    An empty slice of D stands for ones.
    """

    size: int
    part: Callable[[int, int], tuple[Line, Line, Line]]

    @classmethod
    def of(cls, total: Tensor | OuterSum, weights: Tensor) -> AlignedSum | None:
        """Align ``total`` with ``weights``; None if they lie in memory in different ways."""
        if isinstance(total, Tensor):
            lines = as_lines(on_cpu(total), weights)
            if lines is None:
                return None
            line, target = lines

            def slices(start: int, stop: int) -> tuple[Line, Line, Line]:
                return target[start:stop], line[start:stop], _NO_DIAGONAL

            return cls(weights.numel(), slices)
        if not total.lies_like(weights.detach()):
            return None
        target = weights.detach().view(-1).numpy()
        full = _NO_DIAGONAL if total.full is None else total.full.detach().view(-1).numpy()

        def multiplied_out(start: int, stop: int) -> tuple[Line, Line, Line]:
            return target[start:stop], total.entries(start, stop).numpy(), full[start:stop]

        return cls(weights.numel(), multiplied_out)
