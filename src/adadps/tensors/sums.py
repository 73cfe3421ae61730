"""Sums of gradients: whole tensors, some rows of one, or outer products not multiplied out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from adadps.tensors.loops import LINE_TYPES, in_main_memory
from adadps.tensors.products import product
from adadps.tensors.squares import largest_of, multiplies_all_digits

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
    """D ∘ Σ_i w_i left_i right_iᵀ in float64: the gradient of a linear layer's weight.

    ``left`` (terms × rows) and ``right`` (terms × columns) are small next to the sum; without
    ``weights``, w is 1. The code that
    adds the sum to the weights builds a few rows at a time, which stay in cache. With
    ``terms_in_single``, that many terms at a time are added up in float32 (`SinglePrecision`).
    """

    def __init__(self, left: Tensor, right: Tensor, weights: Tensor | None = None) -> None:
        self._left, self._right, self._weights = left, right, weights
        self._held: tuple[Tensor, Tensor] | None = None
        self.terms_in_single: int | None = None
        self.full: Tensor | None = None
        """The part of D that is not itself an outer product."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self._left.shape[1], self._right.shape[1]

    def times_(self, diagonal: Tensor) -> Self | Tensor:
        """Multiply by D: in the factors if possible, else when the sum is multiplied out."""
        self._held = None
        if diagonal.shape[1] == 1:
            self._left = self._weighted_left(torch.float64) * diagonal.T
            self._weights = None
        elif diagonal.shape[0] == 1:
            self._right = self._right.double() * diagonal
        elif self.full is None:
            self.full = diagonal
        else:
            total = self.to_dense()
            times_(total, diagonal)
            return total
        return self

    def rows(self, first: int, last: int) -> Tensor:
        """Return the rows from ``first`` to before ``last``, without ``full``.

        They are in the precision in which they were added up.
        """
        left, right = self._factors()
        return _products(left[:, first:last], right, self.terms_in_single)

    def entries(self, start: int, stop: int) -> Tensor:
        """Return the entries from ``start`` to before ``stop``, row by row, without ``full``."""
        width = self.shape[1]
        first, last = start // width, -(-stop // width)
        if (last - first) * width <= 2 * (stop - start):  # whole rows waste little
            return self.rows(first, last).view(-1)[start - first * width : stop - first * width]
        parts = []
        left, right = self._factors()
        for row in range(first, last):
            begin, end = max(start, row * width), min(stop, (row + 1) * width)
            columns = slice(begin - row * width, end - row * width)
            part = _products(left[:, row : row + 1], right[:, columns], self.terms_in_single)
            parts.append(part.view(-1))
        return torch.cat(parts)

    def to_dense(self) -> Tensor:
        """Return the whole matrix.

        >>> import torch
        >>> OuterSum(torch.ones(1, 2), torch.tensor([[1.0, 2.0]])).to_dense()
        tensor([[1., 2.],
                [1., 2.]], dtype=torch.float64)
        """
        total = self.rows(0, self.shape[0]).double()
        if self.full is not None:
            times_(total, self.full)
        return total

    def _factors(self) -> tuple[Tensor, Tensor]:
        """Both factors in the precision in which they are multiplied."""
        if self._held is None:
            held = None if self.terms_in_single is None else self._in(torch.float32)
            fits = held is not None and self._fits_single(held)
            self._held = held if fits else self._in(torch.float64)
        assert self._held is not None
        return self._held

    def _in(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return self._weighted_left(dtype), self._right.to(dtype)

    def _weighted_left(self, dtype: torch.dtype) -> Tensor:
        """w_i left_i, computed in float64 and rounded once, without a copy in float64."""
        if self._weights is None:
            return self._left.to(dtype)
        found = torch.empty_like(self._left, dtype=dtype)
        return torch.mul(self._left, self._weights.double().unsqueeze(1), out=found)

    def _fits_single(self, factors: tuple[Tensor, Tensor]) -> bool:
        """Are all entries numbers, and so small that underflow beside them is nothing?

        D multiplies what underflow has taken away.
        """
        most = MOST_IN_SINGLE / max(1.0, 1.0 if self.full is None else largest_of(self.full))
        ends = (end for factor in factors for end in torch.aminmax(factor))
        return all(-most <= float(end) <= most for end in ends)

    def lies_like(self, weights: Tensor) -> bool:
        """Can compiled loops add it to ``weights`` row by row?"""
        aligned = in_main_memory(weights) and self._left.device.type == "cpu"
        return aligned and (self.full is None or in_main_memory(self.full))


def _products(left: Tensor, right: Tensor, terms: int | None) -> Tensor:
    """Σ_i left_i right_iᵀ; in float32, first within parts of ``terms`` terms.

    Padding comes last and is zero: adding it rounds nothing.
    """
    if terms is None or left.dtype == torch.float64 or len(left) <= terms:
        return product(left.T, right.T)
    parts = zip(torch.split(left, terms), torch.split(right, terms), strict=True)
    total, *others = (product(part.T, beside.T) for part, beside in parts)
    for other in others:
        total += other
    return total


# --- sums in float32 ---

MOST_IN_SINGLE = 1e15
"""Factors with larger entries, or with larger ones than this divided by the largest entry of D, are
multiplied in float64. Then float32 does not overflow, and loses at most 1e-20 to underflow."""

LEAST_CLIP_NORM = 1e-9
"""Beside smaller clip norms, underflow would matter."""

MOST_CHARGED = 0.005
"""The largest share of the clip norm that is given up for the rounding of sums in float32."""

WIDE = 2**16
"""Sums of fewer entries take little time in float64."""

FEWEST_TERMS = 32
"""Fewer terms at a time are not worth it."""

UNIT = 2.0**-24
"""The rounding error of one operation in float32."""


def is_wide(weights: Tensor) -> bool:
    """Are these weights in float32, and so many that their sums take time?"""
    return weights.dtype == torch.float32 and weights.ndim > 1 and weights.numel() >= WIDE


@dataclass(frozen=True)
class SinglePrecision:
    """Sums of B ≤ ``most_rows`` clipped gradients in float32, in parts of ``terms`` terms.

    With k parts of at most m terms, every gradient goes through at most r = m + k + 4 roundings:
    of its two factors, their product, the additions within and between parts, and D. So rounding
    moves the sum by at most γ B C, where γ = r u / (1 - r u) and u = 2⁻²⁴, and two sums that differ
    by one gradient are up to C + 2 γ B C apart. Therefore every norm is raised by the public
    ``charge`` 2 γ B_max, *whatever was drawn*: clipped gradients have at most C / (1 + charge),
    and the sums are within C of each other. A batch of more than ``most_rows`` (B_max) is added up
    in float64. How many were drawn is private; either way the sum is within the same bound.

    >>> held = SinglePrecision.for_batches(256, clip_norm=1.0)
    >>> held.terms, held.most_rows, round(held.charge, 4)
    (137, 288, 0.0049)
    >>> SinglePrecision.for_batches(10_000, clip_norm=1.0) is None
    True
    """

    terms: int
    most_rows: int
    charge: float

    @classmethod
    def for_batches(cls, expected_size: float, clip_norm: float) -> SinglePrecision | None:
        """Return how batches of this public, expected size are summed; None: in float64."""
        if not LEAST_CLIP_NORM <= clip_norm < math.inf:
            return None
        most_rows = math.ceil(expected_size + 2 * math.sqrt(expected_size))
        roundings = int(MOST_CHARGED / (2 * UNIT * most_rows * (1 + MOST_CHARGED)))
        fitting = (
            terms
            for terms in range(min(roundings, most_rows), min(FEWEST_TERMS, most_rows) - 1, -1)
            if terms - (-most_rows // terms) + 4 <= roundings
        )
        terms = next(fitting, None)
        if terms is None:
            return None
        error = (terms - (-most_rows // terms) + 4) * UNIT
        return cls(terms, most_rows, 2 * error / (1 - error) * most_rows)

    def shared_by(self, parts: int) -> SinglePrecision:
        """Return the same for a batch that is drawn in parts, none of which knows the others.

        >>> SinglePrecision.for_batches(256, clip_norm=1.0).shared_by(2).most_rows
        144
        """
        return replace(self, most_rows=self.most_rows // parts)

    def terms_for(self, rows: int, device: torch.device) -> int | None:
        """Return how many terms of a batch of this many rows are added up in float32 at a time.

        None stands for float64, also where torch would multiply float32 with fewer digits.
        """
        exact = multiplies_all_digits(device)
        return self.terms if exact and rows <= self.most_rows else None


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
