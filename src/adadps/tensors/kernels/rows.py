"""Loops over sparse rows, and over tables of which a batch touches some rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from adadps.tensors.kernels.compiled import FETCHED_AHEAD, compiled, fetch_row


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
