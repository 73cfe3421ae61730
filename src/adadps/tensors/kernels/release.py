"""Rows of a table that get their update and their noise together, on the public grid."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from adadps.tensors.kernels.compiled import FETCHED_AHEAD, compiled, fetch, fetch_row, memory


@compiled
def _multiply_out(held: Any, place: int, like: Any, column: int, out: Any, line_bytes: int) -> None:
    """out = Σ_e v_e b_e, from ``column`` on, for the entries e at this place of a step."""
    bounds = carray(memory(held[0] + 8 * place), (2,), np.int64)
    lines = carray(memory(held[1]), (bounds[1],), np.int64)
    shares = carray(memory(held[2]), (bounds[1],), np.float64)
    out[:] = 0
    for e in range(bounds[0], bounds[1]):
        begin = held[3] + lines[e] * line_bytes + column * like.itemsize
        line, share = carray(memory(begin), (len(out),), like.dtype), shares[e]
        for j in range(len(out)):
            out[j] += share * line[j]


@compiled
def _fetch_change(held: Any, place: int, line_bytes: int, stage: int) -> None:
    """Begin to load what `_multiply_out` reads: three things, each of which locates the next.

    The updates of old steps are no longer in any cache.
    """
    begin = held[0] + 8 * place
    if stage == 0:
        fetch(begin)
        return
    bounds = carray(memory(begin), (2,), np.int64)
    if stage == 1:
        fetch(held[1] + 8 * bounds[0])
        fetch(held[2] + 8 * bounds[0])
    elif bounds[0] < bounds[1]:
        line = carray(memory(held[1] + 8 * bounds[0]), (1,), np.int64)[0]
        for offset in range(0, line_bytes, 64):
            fetch(held[3] + line * line_bytes + offset)


@compiled
def _scale(values: Any, row: int, column: int, by_row: Any, by_output: Any, full: Any) -> None:
    """values *= D_r, from ``column`` on."""
    count = len(values)
    if len(by_row):
        for j in range(count):
            values[j] *= by_row[row]
    if len(by_output):
        factors = by_output[column : column + count]
        for j in range(count):
            values[j] *= factors[j]
    if len(full):
        diagonal = full[row, column : column + count]
        for j in range(count):
            values[j] *= diagonal[j]


@compiled
def _released(
    state: float, change: float, normal: float, keep: float, deviation: float, width: float
) -> float:
    """g · rint((k (w + Δ) + s·z) / g); without noise (s = 0) nothing is rounded.

    The change is added to its noise before the weight: k·w is a grid cell and a remainder, both
    public, so that the size of w takes no digits from k·Δ + s·z. 1/g is exact, as g is a power of
    two.
    """
    if deviation == 0:
        return keep * (state + change)
    inverse, decayed = 1.0 / width, keep * state
    cell = np.rint(decayed * inverse)
    moved = (decayed - cell * width) + (keep * change + deviation * normal)
    value: float = (cell + np.rint(moved * inverse)) * width
    return value


@compiled
def _release(
    weights: Any, change: Any, normals: Any, keep: float, deviation: float, width: float
) -> bool:
    """Release w in place; return whether rounding left a residual, which is then in ``change``."""
    any_residual = False
    for j in range(len(weights)):
        value = _released(weights[j], change[j], normals[j], keep, deviation, width)
        weights[j] = value
        residual = value - weights[j]
        change[j] = residual
        any_residual |= residual != 0
    return any_residual


@compiled
def _release_both(
    high: Any, low: Any, change: Any, normals: Any, keep: float, deviation: float, width: float
) -> None:
    """Release w = high + low, where high is the rounding of w, and low the residual.

    If high is not the rounding of w, somebody wrote to it, and w is high.
    """
    for j in range(len(high)):
        state = np.float64(high[j]) + np.float64(low[j])
        if np.float32(state) != high[j]:
            state = np.float64(high[j])
        value = _released(state, change[j], normals[j], keep, deviation, width)
        rounded = np.float32(value)
        high[j] = rounded
        low[j] = value - np.float64(rounded)


@compiled
def release_rows(
    table: Any, low: Any, has_low: Any, rows: Any, decays: Any, deviations: Any, width: float,
    slots: Any, places: Any, words: Any, steps: Any, like: Any, by_row: Any, by_output: Any,
    full: Any, z: Any, start: int,
) -> None:  # fmt: skip
    """w_r = g · rint((k (w_r + D_w ∘ Σ_e v_e b_e) + s·z) / g) for the rows r of words w.

    w is ``table``, plus ``low`` as soon as rounding to the table's type has left a residual, which
    ``has_low`` records for the whole table: until then, low is neither read nor written. ``z`` has
    the normals for the entries of all rows from entry ``start`` on. If a row has a slot, ``steps``
    has the addresses of that step's entries by row (where each row begins, the line of b and the v
    of each entry) and of its matrix b, in the type of ``like``, and the number of its rows. Factors
    of D without entries are 1. Where s = 0, nothing is rounded to the grid.
    """
    row_width = table.shape[1]
    line_bytes = row_width * like.itemsize
    buffer, ahead = np.empty(row_width), 1 + FETCHED_AHEAD // row_width
    done = 0
    while done < len(z):
        at, column = (start + done) // row_width, (start + done) % row_width
        count = min(len(z) - done, row_width - column)
        for stage in range(3):
            later = at + (3 - stage) * ahead
            if later >= len(rows) or slots[later] < 0:
                continue
            if 0 <= places[later] < steps[slots[later], 4]:
                _fetch_change(steps[slots[later]], places[later], line_bytes, stage)
        if at + ahead < len(rows):
            fetch_row(table, rows[at + ahead])
            if has_low[0]:
                fetch_row(low, rows[at + ahead])
            if len(full) and slots[at + ahead] >= 0:
                fetch_row(full, words[at + ahead])
        keep, deviation = decays[at], deviations[at]
        target, normals = table[rows[at], column : column + count], z[done : done + count]
        change = buffer[:count]
        if slots[at] >= 0 and 0 <= places[at] < steps[slots[at], 4]:
            _multiply_out(steps[slots[at]], places[at], like, column, change, line_bytes)
            _scale(change, words[at], column, by_row, by_output, full)
        else:
            change[:] = 0
        if has_low[0]:
            residual = low[rows[at], column : column + count]
            _release_both(target, residual, change, normals, keep, deviation, width)
        elif _release(target, change, normals, keep, deviation, width) and len(low):
            low[rows[at], column : column + count] = change
            has_low[0] = True
        done += count
