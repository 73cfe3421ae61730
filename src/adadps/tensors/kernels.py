"""Compiled loops over sparse rows, and over tables of which a batch touches some rows.

The last of them give rows of a table their update and their noise together, on the public grid.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from adadps.tensors.loops import FETCHED_AHEAD, compiled, fetch, fetch_row, memory


@compiled
def is_consistent(offsets: Any, columns: Any, place: Any) -> bool:
    """Do the offsets cover all entries, with each column at most once per row?

    ``place`` has one number per column, all -1, before and after; columns are below its length.
    """
    if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != len(columns):
        return False
    for i in range(len(offsets) - 1):
        if offsets[i] > offsets[i + 1]:
            return False
    fine = True
    for i in range(len(offsets) - 1):
        for e in range(offsets[i], offsets[i + 1]):
            fine = fine and place[columns[e]] != i
            place[columns[e]] = i
    for e in range(len(columns)):
        place[columns[e]] = -1
    return fine


@compiled
def take(offsets: Any, columns: Any, values: Any, rows: Any) -> Any:
    """Return the offsets, columns and values of the given rows."""
    taken = np.empty(len(rows) + 1, np.int64)
    taken[0] = 0
    for i in range(len(rows)):
        taken[i + 1] = taken[i] + offsets[rows[i] + 1] - offsets[rows[i]]
    new_columns = np.empty(taken[-1], columns.dtype)
    new_values = np.empty(taken[-1], values.dtype)
    for i in range(len(rows)):
        first, into = offsets[rows[i]], taken[i]
        for e in range(taken[i + 1] - into):
            new_columns[into + e] = columns[first + e]
            new_values[into + e] = values[first + e]
    return taken, new_columns, new_values


@compiled
def bags(tokens: Any, padding: int, mean: bool, place: Any) -> Any:
    """Return sparse rows with the count of each word per row of tokens; its share, for a mean.

    ``place`` has one number per word, all -1, before and after. Padding is not counted.
    """
    size, length = tokens.shape
    offsets = np.zeros(size + 1, np.int64)
    columns, values = np.empty(size * length, np.int64), np.empty(size * length)
    entries = 0
    for i in range(size):
        first, counted = entries, 0
        for t in range(length):
            word = tokens[i, t]
            if word == padding:
                continue
            counted += 1
            p = place[word]
            if p >= first:
                values[p] += 1
                continue
            place[word] = entries
            columns[entries] = word
            values[entries] = 1
            entries += 1
        if mean:
            for p in range(first, entries):
                values[p] /= counted
        offsets[i + 1] = entries
    for p in range(entries):
        place[columns[p]] = -1
    return offsets, columns[:entries].copy(), values[:entries].copy()


@compiled
def by_column(offsets: Any, columns: Any, values: Any, place: Any) -> Any:
    """Return the same entries by column, in the order in which columns first occur.

    ``place`` has one number per column, all -1, before and after. The result is the columns, the
    start of each, row and value of its entries, and the place of the column of every given entry.
    """
    entries = len(columns)
    found, where = np.empty(entries, np.int64), np.empty(entries, np.int64)
    counts = np.zeros(entries + 1, np.int64)
    distinct = 0
    for e in range(entries):
        column = columns[e]
        p = place[column]
        if p < 0:
            p = distinct
            place[column] = p
            found[p] = column
            distinct += 1
        where[e] = p
        counts[p + 1] += 1
    starts = counts[: distinct + 1]
    for p in range(distinct):
        starts[p + 1] += starts[p]
        place[found[p]] = -1
    cursor = starts.copy()
    rows, sorted_values = np.empty(entries, np.int64), np.empty(entries, values.dtype)
    for i in range(len(offsets) - 1):
        for e in range(offsets[i], offsets[i + 1]):
            at = cursor[where[e]]
            cursor[where[e]] = at + 1
            rows[at] = i
            sorted_values[at] = values[e]
    return found[:distinct].copy(), starts, rows, sorted_values, where


@compiled
def squared_lengths(offsets: Any, columns: Any, values: Any, factors: Any, out: Any) -> None:
    """out_i = Σ_k (f_k x_ik)² in float64; no entries of f mean 1, one entry holds for all k."""
    for i in range(len(offsets) - 1):
        total = 0.0
        for e in range(offsets[i], offsets[i + 1]):
            x = np.float64(values[e])
            if len(factors) == 1:
                x *= factors[0]
            elif len(factors):
                x *= factors[columns[e]]
            total += x * x
        out[i] = total


@compiled
def times(part: Any, offsets: Any, columns: Any, values: Any, table: Any, out: Any) -> None:
    """out_i = Σ_k x_ik table_k for each row x_i; ``part`` holds the first i and the end."""
    width = table.shape[1]
    ahead = 1 + FETCHED_AHEAD // width
    for i in range(part[0], part[1]):
        target = out[i]
        target[:] = 0
        for e in range(offsets[i], offsets[i + 1]):
            if e + ahead < len(columns):
                fetch_row(table, columns[e + ahead])
            x, line = values[e], table[columns[e]]
            for j in range(width):
                target[j] += x * line[j]


@compiled
def squares(
    part: Any, offsets: Any, columns: Any, values: Any, matrix: Any, full: Any, largest_full: float,
    rounding: float, out: Any,
) -> None:  # fmt: skip
    """Σ_jk b_ij² D_kj² a_ik² for every row i, plus all that rounding may have taken away.

    a, b and D are divided by their largest entries, so that no square overflows; ``part`` holds the
    first i and the end.
    """
    width = matrix.shape[1]
    sums, inverse = np.empty(width), 1.0 / largest_full
    ahead = 1 + FETCHED_AHEAD // width
    for i in range(part[0], part[1]):
        largest, largest_b = 0.0, 0.0
        for e in range(offsets[i], offsets[i + 1]):
            largest = max(largest, abs(np.float64(values[e])))
        for j in range(width):
            largest_b = max(largest_b, abs(np.float64(matrix[i, j])))
        out[i] = 0.0
        if largest == 0 or largest_b == 0:
            continue
        sums[:] = 0
        for e in range(offsets[i], offsets[i + 1]):
            if e + ahead < len(columns):
                fetch_row(full, columns[e + ahead])
            line = full[columns[e]]
            share = np.float64(values[e]) / largest * inverse
            for j in range(width):
                scaled = share * line[j]
                sums[j] += scaled * scaled
        total = 0.0
        for j in range(width):
            b = np.float64(matrix[i, j]) / largest_b
            total += b * b * sums[j]
        words = offsets[i + 1] - offsets[i]
        raised = total * (1 + rounding * (words + width + 16))
        out[i] = raised * (largest * largest_b * largest_full) ** 2


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
