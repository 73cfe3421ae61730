"""Random bits to normals, and normals to noise on a grid."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from adadps.tensors.kernels.compiled import compiled, compiled_as_written, instruction

# log((1+s)/(1-s)) = 2s + s³ P(s²) for |s| ≤ 0.1716; sin x = x + x³ P(x²) and
# cos x = 1 - x²/2 + x⁴ P(x²) for |x| ≤ π/4. Chebyshev fits in 40 digits (scripts/fit_normals.py),
# off by less than 2e-17.
_L0, _L1, _L2, _L3, _L4, _L5, _L6 = (
    0.666666666666667, 0.39999999999899505, 0.28571428625975487, 0.2222221113479508,
    0.18182889125261723, 0.15331721600556042, 0.14616449685043406,
)  # fmt: skip
_S0, _S1, _S2, _S3, _S4, _S5 = (
    -0.16666666666666666, 0.008333333333330948, -0.00019841269836758574, 2.755731610255244e-06,
    -2.5051131845003624e-08, 1.5918129294866608e-10,
)  # fmt: skip
_C0, _C1, _C2, _C3, _C4, _C5 = (
    0.041666666666666664, -0.0013888888888887398, 2.480158729876569e-05, -2.7557317271729793e-07,
    2.08761462684032e-09, -1.1382632425521717e-11,
)  # fmt: skip
_LN2 = math.log(2)
_ROOT_HALF = np.uint64(0x3FE6A09E667F3BCD)  # the bits of √½
_TO_ONE = np.uint64(0x3FF0000000000000 - 0x3FE6A09E667F3BCD)
_FRACTION = np.uint64(0x000FFFFFFFFFFFFF)
_EXPONENT = np.uint64(52)
_EIGHTH = np.uint64(1 << 61)
_ONE, _TWO, _TOP = np.uint64(1), np.uint64(2), np.uint64(62)
_QUARTER_TURN = math.ldexp(math.pi, -65)


@instruction
def _as_float(_context: Any, bits: Any) -> Any:  # noqa: ARG001
    """The float64 with these bits."""
    return types.float64(types.uint64), lambda _c, b, _s, given: b.bitcast(
        given[0], ir.DoubleType()
    )


@instruction
def _as_bits(_context: Any, number: Any) -> Any:  # noqa: ARG001
    """The bits of this float64."""
    return types.uint64(types.float64), lambda _c, b, _s, given: b.bitcast(given[0], ir.IntType(64))


@compiled
def box_muller(bits: Any) -> None:
    """Turn random uint64 into standard normals in place: one of each pair in either half.

    u = |k1 + ½| · 2^-63, θ = k2 · 2π / 2^64, z = √(-2 ln u) · (sin θ, cos θ).
    """
    z = bits.view(np.float64)
    half = len(bits) // 2
    for i in range(half):
        k1, k2 = bits[i], bits[half + i]
        u = abs(np.float64(np.int64(k1)) + 0.5) * 2.0**-63
        # u = 2^e m with m around 1, and ln m by s = (m - 1) / (m + 1)
        above = _as_bits(u) + _TO_ONE
        e = np.float64(np.int64(above >> _EXPONENT) - np.int64(1023))
        m = _as_float((above & _FRACTION) + _ROOT_HALF)
        s = (m - 1.0) / (m + 1.0)
        w = s * s
        log = _L0 + w * (_L1 + w * (_L2 + w * (_L3 + w * (_L4 + w * (_L5 + w * _L6)))))
        radius = math.sqrt(-2.0 * (e * _LN2 + (2.0 * s + s * w * log)))
        # θ is a number of quarters, and x of at most an eighth of a turn either way
        quarters = (k2 + _EIGHTH) >> _TOP
        x = np.float64(np.int64(k2 << _TWO)) * _QUARTER_TURN
        v = x * x
        sine = x + x * v * (_S0 + v * (_S1 + v * (_S2 + v * (_S3 + v * (_S4 + v * _S5)))))
        cosine = (
            1.0 - 0.5 * v + v * v * (_C0 + v * (_C1 + v * (_C2 + v * (_C3 + v * (_C4 + v * _C5)))))
        )
        sine *= radius
        cosine *= radius
        turned = (quarters & _ONE) != 0
        first = cosine if turned else sine
        second = sine if turned else cosine
        minus_first = (quarters & _TWO) << _TOP
        minus_second = ((quarters ^ (quarters << _ONE)) & _TWO) << _TOP
        z[i] = _as_float(_as_bits(first) ^ minus_first)
        z[half + i] = _as_float(_as_bits(second) ^ minus_second)


@compiled_as_written
def noised(total: Any, z: Any, deviation: float, width: float, factor: float, out: Any) -> None:
    """out = factor · g · rint((S + s·z) / g); g is a power of two, so that 1/g is exact."""
    inverse, back = 1.0 / width, width * factor
    for i in range(len(z)):
        out[i] = np.rint((total[i] + deviation * z[i]) * inverse) * back


@compiled_as_written
def add_noised(
    weights: Any, total: Any, full: Any, z: Any, deviation: float, width: float, factor: float
) -> None:
    """weights += factor · g · rint((D ∘ S + s·z) / g), rounded once; D is 1 without entries."""
    inverse, back = 1.0 / width, width * factor
    if len(full):
        for i in range(len(z)):
            change = np.rint((total[i] * full[i] + deviation * z[i]) * inverse) * back
            weights[i] = weights[i] + change
    else:
        for i in range(len(z)):
            change = np.rint((total[i] + deviation * z[i]) * inverse) * back
            weights[i] = weights[i] + change


@compiled_as_written
def noised_rows(
    total: Any, z: Any, start: int, row_width: int, deviations: Any, width: float, out: Any
) -> None:
    """g · rint((S + s·z) / g) from entry ``start`` on, with one s a row; s = 0 rounds nothing."""
    inverse = 1.0 / width
    done = 0
    while done < len(z):
        row, column = (start + done) // row_width, (start + done) % row_width
        stop = min(len(z), done + row_width - column)
        deviation = deviations[row]
        if deviation == 0:
            for i in range(done, stop):
                out[i] = total[i]
        else:
            for i in range(done, stop):
                out[i] = np.rint((total[i] + deviation * z[i]) * inverse) * width
        done = stop
