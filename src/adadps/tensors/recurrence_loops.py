"""Compiled loops over the time steps of recurrent layers, for float32 in main memory.

A loop carries a block of `BLOCK` sequences through all time steps, so that its state stays in the
cache and every matrix product has the same shape, however many sequences there are: what is
computed for a sequence does not depend on its neighbours, bit for bit. Rows of a block beyond the
last sequence are zero.

Arrays are (sequences × time × width). ``gates`` are the products of inputs and weights, with
biases. ``weight`` is the recurrent weight, (gates × hidden), and ``turned`` its transpose.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from adadps.tensors.loops import compiled

BLOCK = 16

_0 = np.float32(0)
_1 = np.float32(1)
_HALF = np.float32(0.5)
_END = np.float32(8)
_P0, _P1, _P2, _P3, _P4 = (
    np.float32(p) for p in (0.999999994, 0.134445361, 0.00357164333, 2.1895414e-05, 1.52314807e-08)
)
_Q1, _Q2, _Q3, _Q4 = (
    np.float32(q) for q in (0.467778634, 0.026164615, 0.000341136635, 8.52287673e-07)
)


@compiled
def tanh(x: Any) -> Any:
    """tanh x to about three roundings of float32, by a quotient of polynomials in x² up to |x| = 8.

    The coefficients minimise the largest relative error, 9e-9 before rounding. Unlike the function
    of the mathematical library it needs no branch, so that several are computed at once.
    """
    near = min(max(x, -_END), _END)
    u = near * near
    p = (((_P4 * u + _P3) * u + _P2) * u + _P1) * u + _P0
    q = (((_Q4 * u + _Q3) * u + _Q2) * u + _Q1) * u + _1
    y = near * p / q
    return y if x == x else x  # NaN stays NaN  # noqa: PLR0124


@compiled
def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return _HALF * tanh(_HALF * x) + _HALF


@compiled
def lstm_forward(
    part: Any, gates: Any, turned: Any, h0: Any, c0: Any, hidden: Any, cells: Any, active: Any
) -> None:
    """Fill hidden states, cells, and gates after their nonlinearity (input, forget, cell, output).

    ``part`` holds the first block and the end.
    """
    (sequences, time, width), size = gates.shape, h0.shape[1]
    h, c = np.zeros((BLOCK, size), np.float32), np.zeros((BLOCK, size), np.float32)
    products = np.empty((BLOCK, width), np.float32)
    for block in range(part[0], part[1]):
        first = block * BLOCK
        rows = min(BLOCK, sequences - first)
        h[:rows], c[:rows] = h0[first : first + rows], c0[first : first + rows]
        h[rows:] = 0
        for t in range(time):
            np.dot(h, turned, products)
            for r in range(rows):
                x, u, a = gates[first + r, t], products[r], active[first + r, t]
                h_new, c_new = hidden[first + r, t], cells[first + r, t]
                for j in range(2 * size):
                    a[j] = sigmoid(x[j] + u[j])
                for j in range(2 * size, 3 * size):
                    a[j] = tanh(x[j] + u[j])
                for j in range(3 * size, 4 * size):
                    a[j] = sigmoid(x[j] + u[j])
                for j in range(size):
                    cell = a[size + j] * c[r, j] + a[j] * a[2 * size + j]
                    out = a[3 * size + j] * tanh(cell)
                    c[r, j] = cell
                    c_new[j] = cell
                    h[r, j] = out
                    h_new[j] = out


@compiled
def lstm_backward(
    part: Any, active: Any, weight: Any, cells: Any, c0: Any, d_hidden: Any, d_gates: Any,
    d_h0: Any, d_c0: Any,
) -> None:  # fmt: skip
    """Fill the gradients of gates and first states; ``d_c0`` holds that of the last cell."""
    (sequences, time, width), size = active.shape, c0.shape[1]
    d_h = np.zeros((BLOCK, size), np.float32)
    d_g = np.zeros((BLOCK, width), np.float32)
    for block in range(part[0], part[1]):
        first = block * BLOCK
        rows = min(BLOCK, sequences - first)
        d_h[:] = 0
        d_g[rows:] = 0
        for t in range(time - 1, -1, -1):
            for r in range(rows):
                n = first + r
                a, g, d_c, c = active[n, t], d_g[r], d_c0[n], cells[n, t]
                before = cells[n, t - 1] if t > 0 else c0[n]
                above = d_hidden[n, t]
                for j in range(size):
                    enter, keep, new, leave = a[j], a[size + j], a[2 * size + j], a[3 * size + j]
                    out = tanh(c[j])
                    d = d_h[r, j] + above[j]
                    d_cell = d_c[j] + d * leave * (_1 - out * out)
                    g[j] = d_cell * new * enter * (_1 - enter)
                    g[size + j] = d_cell * before[j] * keep * (_1 - keep)
                    g[2 * size + j] = d_cell * enter * (_1 - new * new)
                    g[3 * size + j] = d * out * leave * (_1 - leave)
                    d_c[j] = d_cell * keep
                d_gates[n, t] = g
            np.dot(d_g, weight, d_h)
        d_h0[first : first + rows] = d_h[:rows]


@compiled
def gru_forward(
    part: Any, gates: Any, turned: Any, bias: Any, h0: Any, hidden: Any, inner: Any, active: Any
) -> None:
    """Fill hidden states, gates (reset, update, new), and the hidden part of the new gate."""
    (sequences, time, width), size = gates.shape, h0.shape[1]
    h = np.zeros((BLOCK, size), np.float32)
    products = np.empty((BLOCK, width), np.float32)
    for block in range(part[0], part[1]):
        first = block * BLOCK
        rows = min(BLOCK, sequences - first)
        h[:rows] = h0[first : first + rows]
        h[rows:] = 0
        for t in range(time):
            np.dot(h, turned, products)
            for r in range(rows):
                x, u, a = gates[first + r, t], products[r], active[first + r, t]
                h_new, kept = hidden[first + r, t], inner[first + r, t]
                for j in range(2 * size):
                    a[j] = sigmoid(x[j] + (u[j] + bias[j]))
                for j in range(size):
                    k = 2 * size + j
                    own = u[k] + bias[k]
                    new = tanh(x[k] + a[j] * own)
                    out = new + a[size + j] * (h[r, j] - new)
                    kept[j] = own
                    a[k] = new
                    h[r, j] = out
                    h_new[j] = out


@compiled
def gru_backward(
    part: Any, active: Any, weight: Any, inner: Any, hidden: Any, h0: Any, d_hidden: Any,
    d_gates: Any, d_products: Any, d_h0: Any,
) -> None:  # fmt: skip
    """Fill the gradients of gates, of products W h, and of first states."""
    (sequences, time, width), size = active.shape, h0.shape[1]
    d_h, direct = np.zeros((BLOCK, size), np.float32), np.zeros((BLOCK, size), np.float32)
    d_u = np.zeros((BLOCK, width), np.float32)
    for block in range(part[0], part[1]):
        first = block * BLOCK
        rows = min(BLOCK, sequences - first)
        d_h[:] = 0
        direct[:] = 0
        d_u[rows:] = 0
        for t in range(time - 1, -1, -1):
            for r in range(rows):
                n = first + r
                a, g, u, own = active[n, t], d_gates[n, t], d_u[r], inner[n, t]
                before = hidden[n, t - 1] if t > 0 else h0[n]
                above = d_hidden[n, t]
                for j in range(size):
                    reset, update, new = a[j], a[size + j], a[2 * size + j]
                    d = d_h[r, j] + direct[r, j] + above[j]
                    d_new = d * (_1 - update) * (_1 - new * new)
                    d_update = d * (before[j] - new) * update * (_1 - update)
                    d_reset = d_new * own[j] * reset * (_1 - reset)
                    g[j], g[size + j], g[2 * size + j] = d_reset, d_update, d_new
                    u[j], u[size + j], u[2 * size + j] = d_reset, d_update, d_new * reset
                    direct[r, j] = d * update
                d_products[n, t] = u
            np.dot(d_u, weight, d_h)
        for r in range(rows):
            for j in range(size):
                d_h0[first + r, j] = d_h[r, j] + direct[r, j]


@compiled
def rnn_forward(part: Any, gates: Any, turned: Any, relu: bool, h0: Any, hidden: Any) -> None:
    """Fill the hidden states of a plain recurrent layer with tanh or ReLU."""
    (sequences, time, size) = gates.shape
    h = np.zeros((BLOCK, size), np.float32)
    products = np.empty((BLOCK, size), np.float32)
    for block in range(part[0], part[1]):
        first = block * BLOCK
        rows = min(BLOCK, sequences - first)
        h[:rows] = h0[first : first + rows]
        h[rows:] = 0
        for t in range(time):
            np.dot(h, turned, products)
            for r in range(rows):
                x, u, h_new = gates[first + r, t], products[r], hidden[first + r, t]
                for j in range(size):
                    total = x[j] + u[j]
                    out = (_0 if total < 0 else total) if relu else tanh(total)
                    h[r, j] = out
                    h_new[j] = out


@compiled
def rnn_backward(
    part: Any, hidden: Any, weight: Any, relu: bool, d_hidden: Any, d_gates: Any, d_h0: Any
) -> None:
    """Fill the gradients of gates and first states."""
    (sequences, time, size) = hidden.shape
    d_h, d_g = np.zeros((BLOCK, size), np.float32), np.zeros((BLOCK, size), np.float32)
    for block in range(part[0], part[1]):
        first = block * BLOCK
        rows = min(BLOCK, sequences - first)
        d_h[:] = 0
        d_g[rows:] = 0
        for t in range(time - 1, -1, -1):
            for r in range(rows):
                h, above = hidden[first + r, t], d_hidden[first + r, t]
                for j in range(size):
                    slope = (_1 if h[j] > 0 else _0) if relu else _1 - h[j] * h[j]
                    d_g[r, j] = (d_h[r, j] + above[j]) * slope
                d_gates[first + r, t] = d_g[r]
            np.dot(d_g, weight, d_h)
        d_h0[first : first + rows] = d_h[:rows]
