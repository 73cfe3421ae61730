"""Compiled loops over sequences of words, each position with a row that belongs to its word."""

from __future__ import annotations

from typing import Any

import numpy as np

from adadps.tensors.loops import compiled


@compiled
def squares(
    part: Any, tokens: Any, rows: Any, words: int, factor: Any, out: Any, sizes: Any
) -> None:
    """out_i = Σ_w ‖f_w ∘ Σ_{t: word w} x_it‖², and the same with absolute values in ``sizes``.

    ``factor`` is (words or 1) × (width or 1), all in float64. ``part`` holds the first i and the
    end.
    """
    length, width = rows.shape[1], rows.shape[2]
    place = np.full(words, -1, np.int32)
    found = np.empty(length, np.int64)
    sums, terms = np.empty((length, width)), np.empty((length, width))
    for i in range(part[0], part[1]):
        distinct = 0
        for t in range(length):
            word, line = tokens[i, t], rows[i, t]
            p = place[word]
            if p < 0:
                p = np.int32(distinct)
                place[word] = p
                found[distinct] = word
                distinct += 1
                for j in range(width):
                    sums[p, j] = line[j]
                    terms[p, j] = abs(line[j])
            else:
                for j in range(width):
                    sums[p, j] += line[j]
                    terms[p, j] += abs(line[j])
        total, size = 0.0, 0.0
        for p in range(distinct):
            word = found[p]
            place[word] = -1
            by_word = factor[word if len(factor) > 1 else 0]
            for j in range(width):
                f = by_word[j if len(by_word) > 1 else 0]
                scaled, term = f * sums[p, j], f * terms[p, j]
                total += scaled * scaled
                size += term * term
        out[i], sizes[i] = total, size


@compiled
def weighted(tokens: Any, rows: Any, weights: Any, words: int) -> Any:
    """Return the words that occur, and Σ_i w_i x_it over the positions of each, in float64."""
    size, length, width = rows.shape
    place = np.full(words, -1, np.int64)
    found = np.empty(size * length, np.int64)
    distinct = 0
    for i in range(size):
        for t in range(length):
            if place[tokens[i, t]] < 0:
                place[tokens[i, t]] = distinct
                found[distinct] = tokens[i, t]
                distinct += 1
    total = np.zeros((distinct, width))
    for i in range(size):
        weight = weights[i]
        if weight != 0:
            for t in range(length):
                target, line = total[place[tokens[i, t]]], rows[i, t]
                for j in range(width):
                    target[j] += weight * line[j]
    return found[:distinct].copy(), total
