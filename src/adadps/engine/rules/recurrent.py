"""Recurrent layers whose gates are exposed, and which run on whole batches inside torch.func.vmap.

An example's gradient of W_ih is Σ_t b_t x_tᵀ, and that of W_hh is Σ_t b'_t h_{t-1}ᵀ, where b_t and
b'_t are the gradients of the products of inputs and of hidden states. `_Recurrence` passes these
gradients to zeros that stand beside the products: then weights need no backward pass of their own,
and the rule of linear layers over time does the rest (`adadps.engine.rules.layers`). Under vmap,
the examples of a batch run through one compiled loop (`adadps.tensors.recurrences`).

`forward` computes what torch's LSTM, GRU and RNN compute. An LSTM with projections runs step by
step in torch, and its weights have stored gradients.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from adadps.engine.rules.tape import Part, Tape
from adadps.errors import ModelError
from adadps.tensors.products import linear, with_known_signature
from adadps.tensors.recurrences import Cell, Start, States, backward
from adadps.tensors.recurrences import forward as run

Sequences = tuple[Tensor, Any]


@with_known_signature
class _Recurrence(torch.autograd.Function):
    """Hidden states of all time steps, and the last cell; (sequences × time × width) each.

    ``zeros`` and ``inner_zeros`` are not added to anything: they only receive the gradients of the
    gates and of the products W h.
    """

    @staticmethod
    def forward(
        cell: Cell, gates: Tensor, zeros: Tensor, inner_zeros: Tensor,  # noqa: ARG004
        weight: Tensor, bias: Tensor, h0: Tensor, c0: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        """Return hidden states, the last cells, and what the backward pass needs."""
        states = run(cell, gates.contiguous(), Start(weight.contiguous(), bias, h0, c0))
        last = states.memory[:, -1].clone() if cell is Cell.LSTM else torch.zeros_like(h0)
        return states.hidden, last, states.memory, states.active

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep all that the backward pass needs."""
        cell, gates, _, _, weight, bias, h0, c0 = inputs
        hidden, _, memory, active = output
        ctx.mark_non_differentiable(memory, active)
        ctx.cell = cell
        ctx.save_for_backward(gates, weight, bias, h0, c0, hidden, memory, active)

    @staticmethod
    def backward(ctx: Any, d_hidden: Tensor, d_last: Tensor, *_: Tensor) -> tuple[Any, ...]:
        """Return the gradients of gates and states, and of the weights if they are wanted."""
        gates, weight, bias, h0, c0, hidden, memory, active = ctx.saved_tensors
        given = (ctx.cell, gates, weight, bias, h0, c0, hidden, memory, active, d_hidden, d_last)
        d_gates, d_products, d_h0, d_c0 = _RecurrenceBackward.apply(*given)  # type: ignore[no-untyped-call]
        d_weight = d_bias = None
        if ctx.needs_input_grad[4]:
            before = torch.cat([h0.unsqueeze(1), hidden[:, :-1]], 1)
            d_weight = torch.einsum("ntg,nth->gh", d_products, before)
        if ctx.needs_input_grad[5]:
            d_bias = d_products.sum((0, 1))
        return None, d_gates, d_gates, d_products, d_weight, d_bias, d_h0, d_c0

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
        """Run the sequences of all examples together."""
        batch = info.batch_size
        cell, gates, *beside, weight, bias, h0, c0 = inputs
        _require_shared(in_dims[4:6])
        flat = _merged(gates, in_dims[1], batch)
        first, memory = _merged(h0, in_dims[6], batch), _merged(c0, in_dims[7], batch)
        zeros, inner = map(_side_by_side, beside, in_dims[2:4], [batch] * 2)
        found = _Recurrence.apply(  # type: ignore[no-untyped-call]
            cell, flat, zeros, inner, weight, bias, first, memory
        )
        return tuple(_split(t, batch) for t in found), (0, 0, 0, 0)


@with_known_signature
class _RecurrenceBackward(torch.autograd.Function):
    """The backward pass, which cannot be differentiated once more."""

    @staticmethod
    def forward(
        cell: Cell, gates: Tensor, weight: Tensor, bias: Tensor, h0: Tensor, c0: Tensor,
        hidden: Tensor, memory: Tensor, active: Tensor, d_hidden: Tensor, d_last: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        """Return the gradients of gates, products and first states."""
        start = Start(weight.contiguous(), bias, h0, c0)
        states = States(hidden, memory, active)
        given = (gates.contiguous(), start, states, d_hidden.contiguous(), d_last.contiguous())
        found = backward(cell, *given)
        products = found.products
        if products is found.gates:
            products = products.view_as(products)  # outputs must be distinct objects
        return found.gates, products, found.hidden, found.cell

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep nothing."""

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Any, ...]:  # noqa: ARG004
        """Refuse second derivatives."""
        raise ModelError(
            "Expected a loss that is differentiated once, found a second derivative through a "
            "recurrent layer. Leave gradients of gradients out of the loss."
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
        """Run the sequences of all examples together."""
        cell, gates, weight, bias, *others = inputs
        _require_shared(in_dims[2:4])
        flat = _merged(gates, in_dims[1], info.batch_size)
        merged = [_merged(t, d, info.batch_size) for t, d in zip(others, in_dims[4:], strict=True)]
        found = _RecurrenceBackward.apply(cell, flat, weight, bias, *merged)  # type: ignore[no-untyped-call]
        return tuple(_split(t, info.batch_size) for t in found), (0, 0, 0, 0)


def _merged(tensor: Tensor, dim: int | None, batch: int) -> Tensor:
    """The sequences of all examples along one axis, in one piece of memory."""
    return _side_by_side(tensor, dim, batch).contiguous()


def _side_by_side(tensor: Tensor, dim: int | None, batch: int) -> Tensor:
    each = tensor.expand(batch, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return each.flatten(0, 1) if each.dim() > 1 else each


def _split(tensor: Tensor, batch: int) -> Tensor:
    return tensor.view(batch, -1, *tensor.shape[1:])


def _require_shared(dims: tuple[Any, ...]) -> None:
    if any(dim is not None for dim in dims):
        raise ModelError(
            "Expected recurrent weights that all examples share, found weights that are computed "
            "from the example. Feed the example to the layer as an input."
        )


# --- layers ---

_CELLS = {"LSTM": Cell.LSTM, "GRU": Cell.GRU, "RNN_TANH": Cell.TANH, "RNN_RELU": Cell.RELU}


def run_recurrent(layer: nn.RNNBase, tape: Tape, inputs: Any, state: Any = None) -> Sequences:
    """Compute what ``layer(inputs, state)`` computes, and note how its weights are used."""
    if not isinstance(inputs, Tensor):
        raise ModelError(
            f"Expected sequences as one tensor, found {type(inputs).__name__}: packed sequences "
            "sort examples by length. Pad to a fixed length, and select the last valid output by "
            "its length (`gather`) or a mask."
        )
    alone = inputs.dim() == 2
    rows = inputs.unsqueeze(0) if alone else inputs
    if not (layer.batch_first or alone):
        rows = rows.transpose(0, 1)
    firsts = _first_states(layer, rows, state, alone)
    hidden, cells = [], []
    directions = 2 if layer.bidirectional else 1
    for level in range(layer.num_layers):
        outputs = []
        for direction in range(directions):
            h0, c0 = (first[level * directions + direction] for first in firsts)
            suffix = f"_l{level}{'_reverse' if direction else ''}"
            turned = rows.flip(1) if direction else rows
            found, h, c = _one_direction(layer, tape, suffix, turned, h0, c0)
            outputs.append(found.flip(1) if direction else found)
            hidden.append(h)
            cells.append(c)
        rows = torch.cat(outputs, 2) if directions == 2 else outputs[0]
        if layer.dropout and layer.training and level + 1 < layer.num_layers:
            rows = functional.dropout(rows, layer.dropout, training=True)
    if not (layer.batch_first or alone):
        rows = rows.transpose(0, 1)
    if alone:
        rows, hidden, cells = rows.squeeze(0), [h[0] for h in hidden], [c[0] for c in cells]
    last = torch.stack(hidden)
    return rows, (last, torch.stack(cells)) if layer.mode == "LSTM" else last


def _first_states(
    layer: nn.RNNBase, rows: Tensor, state: Any, alone: bool
) -> tuple[Tensor, Tensor]:
    """First hidden states and cells, (layers and directions × sequences × width) each."""
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    if state is None:
        size = layer.proj_size or layer.hidden_size
        zeros = rows.new_zeros(count, len(rows), layer.hidden_size)
        return zeros[..., :size], zeros
    hidden, cells = state if layer.mode == "LSTM" else (state, state)
    return (hidden.unsqueeze(1), cells.unsqueeze(1)) if alone else (hidden, cells)


def _one_direction(
    layer: nn.RNNBase, tape: Tape, suffix: str, rows: Tensor, h0: Tensor, c0: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """All hidden states of one layer in one direction, the last one, and the last cell."""
    weight_of = partial(getattr, layer) if layer.proj_size else partial(tape.weight, layer)
    w_ih, w_hh, b_ih, b_hh = (
        weight_of(f"{name}{suffix}") if layer.bias or name.startswith("weight") else None
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    assert w_ih is not None
    assert w_hh is not None
    if layer.proj_size:
        w_hr = weight_of(f"weight_hr{suffix}")
        return _projected(functional.linear(rows, w_ih, b_ih), w_hh, b_hh, w_hr, h0, c0)
    cell = _CELLS[layer.mode]
    of_gru = cell is Cell.GRU
    within = b_hh if of_gru and b_hh is not None else w_hh.new_zeros(len(w_hh))
    before = b_ih if of_gru or b_ih is None or b_hh is None else b_ih + b_hh
    gates = linear(rows, w_ih, before)
    zeros, place = tape.zero_beside(layer, gates)
    inner, inner_place = gates.new_zeros(()), place  # the same gradients, but for a GRU
    if of_gru:
        inner, inner_place = tape.zero_beside(layer, gates)
    hidden, last, _, _ = _Recurrence.apply(  # type: ignore[no-untyped-call]
        cell, gates, zeros, inner, w_hh, within, h0.contiguous(), c0.contiguous()
    )
    beside = (f"bias_ih{suffix}",) if of_gru else (f"bias_ih{suffix}", f"bias_hh{suffix}")
    inside = (f"bias_hh{suffix}",) if of_gru else ()
    tape.use(Part(layer, f"weight_ih{suffix}", beside), rows, place)
    previous = torch.cat([h0.unsqueeze(1), hidden[:, :-1]], 1)
    tape.use(Part(layer, f"weight_hh{suffix}", inside), previous, inner_place)
    return hidden, hidden[:, -1], last


def _projected(
    gates: Tensor, weight: Tensor, bias: Tensor | None, projection: Tensor, h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """An LSTM whose hidden states are projected, step by step."""
    found = []
    for x in gates.unbind(1):
        enter, keep, new, leave = (x + functional.linear(h, weight, bias)).chunk(4, -1)
        c = keep.sigmoid() * c + enter.sigmoid() * new.tanh()
        h = functional.linear(leave.sigmoid() * c.tanh(), projection)
        found.append(h)
    return torch.stack(found, 1), h, c
