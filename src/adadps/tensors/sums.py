"""Sums of gradients, and sums of squares for their norms.

A sum is a whole tensor, some rows of one, or outer products that are not multiplied out.

Squares may come out too large by rounding, but never too small. A norm that is computed too small
would let a clipped gradient exceed C. So every computed square is raised by a bound on its own
rounding. The widest sums run in single precision, on values divided by their largest: then nothing
overflows, a term that underflows is below `TINY`, and a sum of n positive terms is off by at most
about n roundings.

Rows in main memory are measured by compiled loops, without a copy in float64; rows on other devices
by torch.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from adadps.tensors.loops import compiled, compiled_in_any_order

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

_LINE_TYPES = (torch.float32, torch.float64)


def in_main_memory(tensor: Tensor) -> bool:
    """Can compiled loops read and write it where it lies?"""
    return tensor.device.type == "cpu" and tensor.dtype in _LINE_TYPES and tensor.is_contiguous()


def on_cpu(total: Tensor, *, in_order: bool = False) -> Tensor:
    """Return ``total`` on the CPU, in float32 or float64, in one piece of memory.

    With ``in_order`` it lies there row by row.
    """
    total = total.detach().cpu()
    if total.dtype not in _LINE_TYPES:
        total = total.double()
    if not total.is_contiguous() and (in_order or as_lines(total, total) is None):
        total = total.contiguous()
    return total


def as_lines(source: Tensor, target: Tensor) -> tuple[Line, Line] | None:
    """Return both as they lie in memory, if each is in one piece and in the same order of axes."""
    target = target.detach()
    if target.device.type != "cpu" or target.dtype not in _LINE_TYPES:
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


Answer = TypeVar("Answer")

SINGLE = 2.0**-23
"""Twice the rounding error of one operation in float32."""

DOUBLE = 2.0**-52
"""Twice the rounding error of one operation in float64."""

TINY = 1e-37
"""More than underflow can take from one term in float32."""

LARGE = 2**16
"""From this many entries of D, speed matters more than the last digits of a norm."""

CANCELLED = 2.0**-26
"""The least that is assumed to remain of terms that cancel, as a multiple of the terms.

Then a clipped gradient has terms of at most 2²⁶ C, whose rounding in a sum is about 1e-8 C.
"""


def rounding_of(dtype: torch.dtype) -> float:
    """Return twice the rounding error of one operation in ``dtype``."""
    return SINGLE if dtype == torch.float32 else DOUBLE


# --- rows ---


def sums_of_squares(rows: Tensor, factors: Tensor | None) -> Tensor:
    """Return Σ_j (f_j x_ij)² in float64 for every row; ``factors`` has shape (1, columns)."""
    if not in_main_memory(rows):
        scaled = rows.double() if factors is None else rows.double() * factors
        return scaled.square().sum(1)
    found = torch.empty(len(rows), dtype=torch.float64)
    _sums_of_squares(rows.detach().numpy(), _line(factors, rows), found.numpy())
    return found


def unit_squares(rows: Tensor, factors: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the squares of scaled rows, each divided by its largest entry, and that entry."""
    if in_main_memory(rows):
        squares, sizes = torch.empty(rows.shape, dtype=dtype), torch.empty(len(rows)).double()
        _unit_squares(rows.detach().numpy(), _line(factors, rows), sizes.numpy(), squares.numpy())
        return squares, sizes
    scaled = rows.double() if factors is None else rows.double() * factors
    size = scaled.abs().amax(1) if rows.shape[1] else scaled.new_zeros(len(rows))
    scale = size.clamp_min(torch.finfo(torch.float64).tiny).unsqueeze(1)
    return (scaled / scale).square().to(dtype), size


def inner_products(one: Tensor, other: Tensor) -> Tensor:
    """Return Σ_j one_ij other_ij in float64."""
    if not (in_main_memory(one) and in_main_memory(other)):
        return (one.double() * other).sum(1)
    found = torch.empty(len(one), dtype=torch.float64)
    _inner_products(one.detach().numpy(), other.detach().numpy(), found.numpy())
    return found


def _line(factors: Tensor | None, rows: Tensor) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    if factors is None:
        return _NO_DIAGONAL
    wide = factors.detach().double().expand(1, rows.shape[1])
    return np.ascontiguousarray(wide.view(-1).numpy() if wide.is_contiguous() else wide[0].numpy())


@compiled_in_any_order
def _sums_of_squares(rows: Any, factors: Any, out: Any) -> None:
    """out_i = Σ_j (f_j x_ij)² in float64; without entries, f is 1."""
    width = rows.shape[1]
    for i in range(len(rows)):
        line, total = rows[i], 0.0
        if len(factors):
            for j in range(width):
                scaled = factors[j] * line[j]
                total += scaled * scaled
        else:
            for j in range(width):
                number = np.float64(line[j])
                total += number * number
        out[i] = total


@compiled
def _unit_squares(rows: Any, factors: Any, sizes: Any, out: Any) -> None:
    """out_ij = (f_j x_ij / size_i)², where size_i is the largest of |f_j x_ij|."""
    width = rows.shape[1]
    scaled = np.empty(width)
    for i in range(len(rows)):
        line, target = rows[i], out[i]
        for j in range(width):
            scaled[j] = line[j]
        if len(factors):
            for j in range(width):
                scaled[j] *= factors[j]
        largest = 0.0
        for j in range(width):
            largest = max(largest, abs(scaled[j]))
        sizes[i] = largest
        inverse = 1.0 / largest if largest > 0 else 0.0
        for j in range(width):
            unit = scaled[j] * inverse
            target[j] = unit * unit


@compiled_in_any_order
def _inner_products(one: Any, other: Any, out: Any) -> None:
    """out_i = Σ_j one_ij other_ij in float64."""
    for i in range(len(one)):
        total, left, right = 0.0, one[i], other[i]
        for j in range(one.shape[1]):
            total += np.float64(left[j]) * right[j]
        out[i] = total


# --- squares of D, computed once per tensor ---


class TensorCache(Generic[Answer]):
    """One cached result per tensor, dropped when the tensor is written to or freed.

    >>> import torch
    >>> cache, tensor = TensorCache[str](), torch.ones(2)
    >>> cache.put(tensor, "all ones")
    'all ones'
    >>> cache.get(tensor), cache.get(tensor.mul_(2))
    ('all ones', None)
    """

    def __init__(self) -> None:
        self._held: dict[int, tuple[weakref.ref[Tensor], int, Answer]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def get(self, tensor: Tensor) -> Answer | None:
        """Return the result cached for ``tensor`` as it is now, or None."""
        held = self._held.get(id(tensor))
        if held is None or held[0]() is not tensor or held[1] != tensor._version:
            return None
        return held[2]

    def put(self, tensor: Tensor, answer: Answer) -> Answer:
        """Cache ``answer`` for ``tensor``, and return it."""
        key = id(tensor)
        forget = weakref.ref(tensor, lambda _: self._held.pop(key, None))
        self._held[key] = (forget, tensor._version, answer)
        return answer


_squares = TensorCache[tuple[Tensor, float]]()
_largest = TensorCache[float]()


def normalised_square(diagonal: Tensor) -> tuple[Tensor, float]:
    """Return (D / max D)², in the memory layout of D, and max D; computed once per tensor D.

    It is in float32 where that pays, see `sum_dtype`.
    """
    cached = _squares.get(diagonal)
    dtype = sum_dtype(diagonal)
    if cached is not None and cached[0].dtype == dtype:
        return cached
    largest = largest_of(diagonal)
    squared = torch.empty_like(diagonal, dtype=dtype)
    if dtype in (diagonal.dtype, torch.float64):
        squared.copy_(diagonal).div_(largest).square_()
    else:  # D may lie outside the range of float32
        torch.div(diagonal, largest, out=squared).square_()
    return _squares.put(diagonal, (squared, largest))


def largest_of(diagonal: Tensor) -> float:
    """Return max |D|, computed once per tensor D."""
    cached = _largest.get(diagonal)
    if cached is not None:
        return cached
    return _largest.put(diagonal, max(abs(float(end)) for end in torch.aminmax(diagonal)))


def sum_dtype(diagonal: Tensor) -> torch.dtype:
    """Return float32 for a large D, if products of float32 matrices are exact to float32.

    Otherwise return float64, which costs little on a small D.
    """
    exact = torch.get_float32_matmul_precision() == "highest"
    if exact and diagonal.numel() >= LARGE and not torch.is_autocast_enabled(diagonal.device.type):
        return torch.float32
    return torch.float64
