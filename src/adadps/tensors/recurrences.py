"""Recurrent layers over all time steps: states forwards, gradients of the gates backwards.

For gates x_t (inputs times weights, plus biases), the recurrent weight W and the state h:

    LSTM   i, f, g, o = σ, σ, tanh, σ of x_t + W h;     c ← f ∘ c + i ∘ g,  h ← o ∘ tanh c
    GRU    r, z = σ of x_t + W h + b;  n = tanh(x_t + r ∘ (W h + b));  h ← (1 - z) ∘ n + z ∘ h
    RNN    h ← tanh or ReLU of x_t + W h

The backward pass gives the gradients of x_t and of the products W h (for a GRU they differ in the
third part), from which the layer's weights have their gradients; it stores none of those.

In main memory and single precision the loops are compiled (`adadps.tensors.recurrence_loops`).
Elsewhere, and if the environment variable ``ADADPS_COMPILED`` is 0, torch runs the same formulas.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

import torch
from torch import Tensor

from adadps.tensors import recurrence_loops as loops
from adadps.tensors.loops import WORTH_A_THREAD, as_array, in_main_memory, run_all


class Cell(Enum):
    """A kind of recurrent layer, with the number of its gates."""

    LSTM = ("lstm", 4)
    GRU = ("gru", 3)
    TANH = ("tanh", 1)
    RELU = ("relu", 1)

    @property
    def gates(self) -> int:
        """Return the number of gates."""
        return self.value[1]


@dataclass(frozen=True)
class Start:
    """The recurrent weight, the bias within (of a GRU), and the first states of each sequence."""

    weight: Tensor
    bias: Tensor
    hidden: Tensor
    cell: Tensor


@dataclass(frozen=True)
class States:
    """What a forward pass leaves: (sequences × time × width) each.

    ``memory`` holds the cells of an LSTM, and for a GRU the hidden part of its new gate. It is
    empty for other layers, and so are the ``active`` gates.
    """

    hidden: Tensor
    memory: Tensor
    active: Tensor


@dataclass(frozen=True)
class Slopes:
    """Gradients of the gates, of the products W h, and of the first states."""

    gates: Tensor
    products: Tensor
    hidden: Tensor
    cell: Tensor


def forward(cell: Cell, gates: Tensor, start: Start) -> States:
    """Run all time steps."""
    if not _is_compiled(gates, start):
        return _stepped(cell, gates, start)
    sequences, time, width = gates.shape
    size = width // cell.gates
    hidden = gates.new_empty(sequences, time, size)
    given = [
        as_array(t) for t in (gates, start.weight.T.clone(memory_format=torch.contiguous_format))
    ]
    h0, c0 = as_array(start.hidden), as_array(start.cell)
    work = gates.numel() * size
    if cell in (Cell.TANH, Cell.RELU):
        out = (cell is Cell.RELU, h0, as_array(hidden))
        _in_blocks(loops.rnn_forward, sequences, work, *given, *out)
        return States(hidden, gates.new_empty(0), gates.new_empty(0))
    memory, active = torch.empty_like(hidden), torch.empty_like(gates)
    filled = [as_array(hidden), as_array(memory), as_array(active)]
    if cell is Cell.LSTM:
        _in_blocks(loops.lstm_forward, sequences, work, *given, h0, c0, *filled)
    else:
        bias = as_array(start.bias.clone())  # an array would hold on to memory that may have to go
        _in_blocks(loops.gru_forward, sequences, work, *given, bias, h0, *filled)
    return States(hidden, memory, active)


def backward(
    cell: Cell, gates: Tensor, start: Start, states: States, d_hidden: Tensor, d_cell: Tensor
) -> Slopes:
    """Run all time steps backwards, from gradients of all hidden states and of the last cell."""
    if not (_is_compiled(gates, start) and in_main_memory(d_hidden)):
        return _differentiated(cell, gates, start, d_hidden, d_cell)
    sequences, _, size = states.hidden.shape
    work = gates.numel() * size
    weight = as_array(start.weight.clone())  # as above
    d_gates, d_h0 = torch.empty_like(gates), torch.empty_like(start.hidden)
    d_c0 = d_cell.clone()
    above = as_array(d_hidden)
    out = (as_array(d_gates), as_array(d_h0))
    if cell in (Cell.TANH, Cell.RELU):
        given = (as_array(states.hidden), weight, cell is Cell.RELU, above)
        _in_blocks(loops.rnn_backward, sequences, work, *given, *out)
        return Slopes(d_gates, d_gates, d_h0, d_c0)
    active, memory = as_array(states.active), as_array(states.memory)
    if cell is Cell.LSTM:
        held = (active, weight, memory, as_array(start.cell), above)
        _in_blocks(loops.lstm_backward, sequences, work, *held, *out, as_array(d_c0))
        return Slopes(d_gates, d_gates, d_h0, d_c0)
    d_products = torch.empty_like(gates)
    held = (active, weight, memory, as_array(states.hidden), as_array(start.hidden))
    filled = (as_array(d_gates), as_array(d_products), as_array(d_h0))
    _in_blocks(loops.gru_backward, sequences, work, *held, above, *filled)
    return Slopes(d_gates, d_products, d_h0, d_c0)


def _is_compiled(gates: Tensor, start: Start) -> bool:
    given = (gates, start.weight, start.bias, start.hidden, start.cell)
    return all(in_main_memory(t) and t.dtype == torch.float32 for t in given)


def _in_blocks(loop: Callable[..., None], sequences: int, work: int, *arrays: Any) -> None:
    """Run a loop block by block, in several threads: one that begins late takes fewer blocks."""
    blocks = -(-sequences // loops.BLOCK)
    if work < blocks * WORTH_A_THREAD:
        loop((0, blocks), *arrays)
        return
    run_all(deque(partial(loop, (block, block + 1), *arrays) for block in range(blocks)))


# --- the same formulas in torch ---


def _stepped(cell: Cell, gates: Tensor, start: Start, zeros: Tensor | None = None) -> States:
    """Run all time steps in torch; ``zeros`` are added to the products W h."""
    h, c, hidden, memory = start.hidden, start.cell, [], []
    for t in range(gates.shape[1]):
        products = h @ start.weight.T
        if zeros is not None:
            products = products + zeros[:, t]
        x = gates[:, t]
        if cell is Cell.LSTM:
            enter, keep, new, leave = (x + products).chunk(4, -1)
            c = keep.sigmoid() * c + enter.sigmoid() * new.tanh()
            h = leave.sigmoid() * c.tanh()
        elif cell is Cell.GRU:
            (x_r, x_z, x_n), (u_r, u_z, u_n) = (v.chunk(3, -1) for v in (x, products + start.bias))
            new = (x_n + (x_r + u_r).sigmoid() * u_n).tanh()
            h = new + (x_z + u_z).sigmoid() * (h - new)
        else:
            h = (x + products).tanh() if cell is Cell.TANH else (x + products).relu()
        hidden.append(h)
        memory.append(c)
    none = gates.new_empty(0)
    return States(torch.stack(hidden, 1), torch.stack(memory, 1), none)


def _differentiated(
    cell: Cell, gates: Tensor, start: Start, d_hidden: Tensor, d_cell: Tensor
) -> Slopes:
    """Differentiate `_stepped` by torch."""
    with torch.enable_grad():
        zeros = torch.zeros_like(gates)
        given = [t.detach().requires_grad_() for t in (gates, zeros, start.hidden, start.cell)]
        gates, zeros, hidden, first = given
        started = Start(start.weight.detach(), start.bias.detach(), hidden, first)
        states = _stepped(cell, gates, started, zeros)
        ends = (states.hidden, states.memory[:, -1])
        found = torch.autograd.grad(ends, given, (d_hidden, d_cell), materialize_grads=True)
    return Slopes(*found)
