"""Sparse rows, and tables of which a batch touches some rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types

from adadps.kernels.compiled import compiled, instruction

FETCHED_AHEAD = 512
"""So many numbers of a table are on their way to the cache while others are worked on."""


@instruction
def _memory(_context: Any, address: Any) -> Any:  # noqa: ARG001
    """What lies at this address."""
    return types.voidptr(types.int64), lambda _c, b, _s, given: b.inttoptr(
        given[0], ir.IntType(8).as_pointer()
    )


@instruction
def _fetch(_context: Any, address: Any) -> Any:  # noqa: ARG001
    """Begin to load the cache line at this address."""

    def generate(_c: Any, builder: Any, _s: Any, given: Any) -> Any:
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
        to_read, keep, data = (ir.Constant(number, value) for value in (0, 3, 1))
        builder.call(prefetch, [builder.inttoptr(given[0], pointer), to_read, keep, data])
        return _c.get_dummy_value()

    return types.void(types.int64), generate


@compiled
def _fetch_row(table: Any, row: int) -> None:
    """Begin to load a row, while others are worked on."""
    begin = table.ctypes.data + row * table.shape[1] * table.itemsize
    for offset in range(0, table.shape[1] * table.itemsize, 64):
        _fetch(begin + offset)


@compiled
def is_consistent(offsets: Any, columns: Any, place: Any) -> bool:
    """Do the offsets lead through all entries, with each column once in a row?

    ``place`` has a number for each column, all -1, before and after; columns are below its length.
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
    """Offsets, columns and values of the given rows."""
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
    """Sparse rows with the count of each word in each row of tokens; or its share, for a mean.

    ``place`` has a number for each word, all -1, before and after. Padding is not counted.
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
    """The same entries by column, in the order in which columns first occur.

    ``place`` has a number for each column, all -1, before and after. Returns the columns, where
    each begins, row and value of its entries, and the place of the column of every given entry.
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
    """out_i = Σ_k (f_k x_ik)² in float64; without entries f is 1, with one it holds for all."""
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
                _fetch_row(table, columns[e + ahead])
            x, line = values[e], table[columns[e]]
            for j in range(width):
                target[j] += x * line[j]


@compiled
def squares(
    part: Any, offsets: Any, columns: Any, values: Any, matrix: Any, full: Any, largest_full: float,
    rounding: float, out: Any,
) -> None:  # fmt: skip
    """Σ_jk b_ij² D_kj² a_ik² for every row i, raised by all that rounding may have taken away.

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
                _fetch_row(full, columns[e + ahead])
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
    bounds = carray(_memory(held[0] + 8 * place), (2,), np.int64)
    lines = carray(_memory(held[1]), (bounds[1],), np.int64)
    shares = carray(_memory(held[2]), (bounds[1],), np.float64)
    out[:] = 0
    for e in range(bounds[0], bounds[1]):
        begin = held[3] + lines[e] * line_bytes + column * like.itemsize
        line, share = carray(_memory(begin), (len(out),), like.dtype), shares[e]
        for j in range(len(out)):
            out[j] += share * line[j]


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

    The change meets its noise before it meets the weight: k·w is a cell and a rest, both public, so
    that the size of w takes no digit from k·Δ + s·z. 1/g is exact, as g is a power of two.
    """
    if deviation == 0:
        return keep * (state + change)
    inverse, kept = 1.0 / width, keep * state
    cell = np.rint(kept * inverse)
    moved = (kept - cell * width) + (keep * change + deviation * normal)
    value: float = (cell + np.rint(moved * inverse)) * width
    return value


@compiled
def _release(
    weights: Any, change: Any, normals: Any, keep: float, deviation: float, width: float
) -> bool:
    """Release w where it lies. Is there a rest that rounding leaves? It is in ``change`` then."""
    any_rest = False
    for j in range(len(weights)):
        value = _released(weights[j], change[j], normals[j], keep, deviation, width)
        weights[j] = value
        rest = value - weights[j]
        change[j] = rest
        any_rest |= rest != 0
    return any_rest


@compiled
def _release_both(
    high: Any, low: Any, change: Any, normals: Any, keep: float, deviation: float, width: float
) -> None:
    """Release w = high + low, where high is the rounding of w, and low what that leaves.

    If it is not, somebody wrote to high, and w is high.
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
    table: Any, low: Any, has_low: Any, rows: Any, kept: Any, deviations: Any, width: float,
    slots: Any, places: Any, words: Any, steps: Any, like: Any, by_row: Any, by_output: Any,
    full: Any, z: Any, start: int,
) -> None:  # fmt: skip
    """w_r = g · rint((k (w_r + D_w ∘ Σ_e v_e b_e) + s·z) / g) for the rows r of words w.

    w is ``table``, plus ``low`` as soon as rounding to the table's type has left something over,
    which ``has_low`` notes for the whole table: until then, low is neither read nor written.
    ``z`` are the normals for the entries of all rows from entry ``start`` on. Where a row has a
    slot, ``steps`` has the addresses of that step's entries by row (where each row begins, the line
    of b and the v of each entry) and of its matrix b, in the type of ``like``, and how many rows it
    has. Factors of D without entries are 1. Where s = 0, nothing is rounded to the grid.
    """
    row_width = table.shape[1]
    buffer, ahead = np.empty(row_width), 1 + FETCHED_AHEAD // row_width
    done = 0
    while done < len(z):
        at, column = (start + done) // row_width, (start + done) % row_width
        count = min(len(z) - done, row_width - column)
        if at + ahead < len(rows):
            _fetch_row(table, rows[at + ahead])
            if has_low[0]:
                _fetch_row(low, rows[at + ahead])
            if len(full) and slots[at + ahead] >= 0:
                _fetch_row(full, words[at + ahead])
        keep, deviation = kept[at], deviations[at]
        target, normals = table[rows[at], column : column + count], z[done : done + count]
        change = buffer[:count]
        if slots[at] >= 0 and 0 <= places[at] < steps[slots[at], 4]:
            line_bytes = row_width * like.itemsize
            _multiply_out(steps[slots[at]], places[at], like, column, change, line_bytes)
            _scale(change, words[at], column, by_row, by_output, full)
        else:
            change[:] = 0
        if has_low[0]:
            rest = low[rows[at], column : column + count]
            _release_both(target, rest, change, normals, keep, deviation, width)
        elif _release(target, change, normals, keep, deviation, width):
            low[rows[at], column : column + count] = change
            has_low[0] = True
        done += count
