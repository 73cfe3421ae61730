"""Rows of numbers: their squares, without a copy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from adadps.tensors.kernels.compiled import compiled, compiled_in_any_order


@compiled_in_any_order
def sums_of_squares(rows: Any, factors: Any, out: Any) -> None:
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
def unit_squares(rows: Any, factors: Any, sizes: Any, out: Any) -> None:
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
def inner_products(one: Any, other: Any, out: Any) -> None:
    """out_i = Σ_j one_ij other_ij in float64."""
    for i in range(len(one)):
        total, left, right = 0.0, one[i], other[i]
        for j in range(one.shape[1]):
            total += np.float64(left[j]) * right[j]
        out[i] = total
