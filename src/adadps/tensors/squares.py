"""Sums of squares, for norms that must not come out too small.

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
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from adadps.tensors.loops import compiled, compiled_in_any_order, in_main_memory, run_in_parts

Answer = TypeVar("Answer")

SINGLE = 2.0**-23
"""Twice the rounding error of one operation in float32."""

DOUBLE = 2.0**-52
"""Twice the rounding error of one operation in float64."""

TINY = 1e-37
"""More than underflow can take from one term in float32."""

COLUMNS = 2**11
"""This many columns are added up at once, so that their sums stay in the cache."""

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

_NO_FACTORS = np.empty(0)


def sums_of_squares(rows: Tensor, factors: Tensor | None) -> Tensor:
    """Return Σ_j (f_j x_ij)² in float64 for every row; ``factors`` has shape (1, columns)."""
    if not in_main_memory(rows):
        scaled = rows.double() if factors is None else rows.double() * factors
        return scaled.square().sum(1)
    found = torch.empty(len(rows), dtype=torch.float64)
    lines, scales, out = rows.detach().numpy(), _line(factors, rows), found.numpy()
    run_in_parts(
        len(rows),
        lambda part: _sums_of_squares(lines[part], scales, out[part]),
        work=rows.numel(),
    )
    return found


def unit_squares(rows: Tensor, factors: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the squares of scaled rows, each divided by its largest entry, and that entry."""
    if in_main_memory(rows):
        squares = torch.empty(rows.shape, dtype=dtype)
        sizes = torch.empty(len(rows), dtype=torch.float64)
        lines, scales = rows.detach().numpy(), _line(factors, rows)
        out, largest = squares.numpy(), sizes.numpy()
        run_in_parts(
            len(rows),
            lambda part: _unit_squares(lines[part], scales, largest[part], out[part]),
            work=rows.numel(),
        )
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
    left, right, out = one.detach().numpy(), other.detach().numpy(), found.numpy()
    run_in_parts(
        len(one),
        lambda part: _inner_products(left[part], right[part], out[part]),
        work=one.numel(),
    )
    return found


def largest_of_rows(rows: Tensor) -> Tensor:
    """Return the largest |x| of every row in float64; infinity where one is not finite."""
    flat = rows.detach().reshape(len(rows), -1)
    if not in_main_memory(flat):
        return torch.nan_to_num(flat.abs(), nan=torch.inf).amax(1).double()
    bits = flat.view(torch.int32 if flat.dtype == torch.float32 else torch.int64)
    found = torch.empty(len(flat), dtype=bits.dtype)
    lines, out = bits.numpy(), found.numpy()
    mask = lines.dtype.type(np.iinfo(lines.dtype).max)  # all bits but the sign
    run_in_parts(
        len(flat), lambda part: _largest_bits(lines[part], mask, out[part]), work=flat.numel()
    )
    return torch.nan_to_num(found.view(flat.dtype).double(), nan=torch.inf, posinf=torch.inf)


def weighted_rows(rows: Tensor, weights: Tensor) -> Tensor:
    """Return Σ_i w_i x_i in float64, without rows of weight 0, whose entries may be anything."""
    flat = rows.detach().reshape(len(rows), -1)
    if not in_main_memory(flat):
        chosen = torch.where((weights == 0).unsqueeze(1), 0, flat.double())
        total: Tensor = weights.double() @ chosen
        return total.view(rows.shape[1:])
    found = torch.zeros(flat.shape[1], dtype=torch.float64)
    lines, shares, out = flat.numpy(), weights.double().numpy(), found.numpy()
    run_in_parts(
        flat.shape[1],
        lambda part: _weighted_rows((part.start, part.stop), lines, shares, out),
        work=flat.numel(),
    )
    return found.view(rows.shape[1:])


def _line(factors: Tensor | None, rows: Tensor) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    if factors is None:
        return _NO_FACTORS
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
def _largest_bits(rows: Any, mask: Any, out: Any) -> None:
    """out_i = the bits of the largest |x_ij|; ``mask`` takes the sign away.

    As integers, numbers without their sign are in the same order, with infinity and NaN above all.
    """
    for i in range(len(rows)):
        line, largest = rows[i], mask & 0
        for j in range(len(line)):
            largest = max(largest, line[j] & mask)
        out[i] = largest


@compiled
def _weighted_rows(part: Any, rows: Any, weights: Any, out: Any) -> None:
    """out_j += Σ_i w_i x_ij for the columns from part[0] to part[1], a few at a time."""
    for first in range(part[0], part[1], COLUMNS):
        last = min(first + COLUMNS, part[1])
        target = out[first:last]
        for i in range(len(rows)):
            weight = weights[i]
            if weight != 0:
                line = rows[i, first:last]
                for j in range(len(line)):
                    target[j] += weight * line[j]


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
    large = diagonal.numel() >= LARGE
    return torch.float32 if large and multiplies_all_digits(diagonal.device) else torch.float64


def multiplies_all_digits(device: torch.device) -> bool:
    """Does torch multiply matrices of float32 there without dropping digits (bfloat16, TF32)?

    Where a precision was set for one backend alone (``torch.backends....fp32_precision``), torch
    refuses to say; then the answer is no.
    """
    try:
        exact = torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:
        return False
    return exact and not torch.is_autocast_enabled(device.type)
