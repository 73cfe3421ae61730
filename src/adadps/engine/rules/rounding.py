"""How far rounding can reach, and squares of D that single precision can hold.

A norm that is computed too small would let a clipped gradient exceed C. So every computed square is
raised by a bound on its own rounding. The widest sums run in single precision on numbers that were
divided by their largest: then nothing overflows, a term that underflows is below `TINY`, and n
positive terms are off by at most about n roundings.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adadps.tensors.tensor_cache import Known

SINGLE = 2.0**-23
"""Twice the rounding of one operation in float32."""

DOUBLE = 2.0**-52
"""Twice the rounding of one operation in float64."""

TINY = 1e-37
"""More than what underflow can take from one term in float32."""

LARGE = 2**16
"""Entries of D from which on speed matters more than the last digits of a norm."""

CANCELLED = 2.0**-26
"""What is left of terms that cancel, at least, in multiples of the terms.

Then a clipped gradient has terms of at most 2²⁶ C, whose rounding in a sum is about 1e-8 C.
"""

_squares = Known[tuple[Tensor, float]]()
_largest = Known[float]()


def normalised_square(diagonal: Tensor) -> tuple[Tensor, float]:
    """(D / max D)² and max D, computed once for each tensor D, in the memory layout of D.

    In float32 where it pays, see `sum_dtype`.
    """
    known = _squares.of(diagonal)
    dtype = sum_dtype(diagonal)
    if known is not None and known[0].dtype == dtype:
        return known
    largest = largest_of(diagonal)
    squared = torch.empty_like(diagonal, dtype=dtype)
    if dtype in (diagonal.dtype, torch.float64):
        squared.copy_(diagonal).div_(largest).square_()
    else:  # D may lie outside the range of float32
        torch.div(diagonal, largest, out=squared).square_()
    return _squares.keep(diagonal, (squared, largest))


def largest_of(diagonal: Tensor) -> float:
    """max |D|, computed once for each tensor D."""
    known = _largest.of(diagonal)
    if known is not None:
        return known
    return _largest.keep(diagonal, max(abs(float(end)) for end in torch.aminmax(diagonal)))


def sum_dtype(diagonal: Tensor) -> torch.dtype:
    """float32 for a large D, where products of float32 matrices are exact to float32.

    Otherwise float64, which costs little on a small D.
    """
    exact = torch.get_float32_matmul_precision() == "highest"
    if exact and diagonal.numel() >= LARGE and not torch.is_autocast_enabled(diagonal.device.type):
        return torch.float32
    return torch.float64


def rounding_of(dtype: torch.dtype) -> float:
    """Twice the rounding of one operation."""
    return SINGLE if dtype == torch.float32 else DOUBLE
