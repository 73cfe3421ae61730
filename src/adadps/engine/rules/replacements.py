"""Layers that run by a function of ours during a pass, because vmap or a rule needs them to.

Each computes what torch's layer computes. It batches natively inside of torch.func.vmap, where
torch's own layer is slow or fails, and reports its products to the tape.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_map_only

from adadps.engine.rules.attention import run_attention
from adadps.engine.rules.pooling import run_checked_pool, run_max_pool
from adadps.engine.rules.recurrent import run_recurrent
from adadps.engine.rules.tape import Part, Replacement, Tape


def replacements_in(model: nn.Module) -> dict[nn.Module, Replacement]:
    """Return the function for each layer of the model that runs by one.

    A layer with another forward pass than torch's is left as it is.
    """
    found: dict[nn.Module, Replacement] = {}
    for module in model.modules():
        for kind, replacement in _REPLACEMENTS.items():
            if isinstance(module, kind) and type(module).forward is kind.forward:
                found[module] = replacement
    return {layer: run for layer, run in found.items() if "forward" not in vars(layer)}


def _run_bag(
    layer: nn.EmbeddingBag,
    tape: Tape,
    input: Tensor,
    offsets: Tensor | None = None,
    per_sample_weights: Tensor | None = None,
) -> Tensor:
    if offsets is not None or per_sample_weights is not None:
        return nn.EmbeddingBag.forward(layer, input, offsets, per_sample_weights)
    weight, tokens = tape.weight(layer, "weight"), input
    output = _bagged(layer, weight, tokens)
    zero, place = tape.zero_beside(layer, output)
    tape.use(layer, tokens, place)
    return output if place < 0 else output + zero


def _bagged(layer: nn.EmbeddingBag, weight: Tensor, tokens: Tensor) -> Tensor:
    rows = functional.embedding(tokens, weight)
    if layer.padding_idx is None:
        return rows.mean(-2) if layer.mode == "mean" else rows.sum(-2)
    counted = (tokens != layer.padding_idx).unsqueeze(-1).to(rows.dtype)
    total = (rows * counted).sum(-2)
    return total / counted.sum(-2).clamp_min(1) if layer.mode == "mean" else total


def _run_cell(layer: nn.RNNCellBase, tape: Tape, rows: Tensor, state: Any = None) -> Any:
    """One step of a recurrent cell, as a product of its inputs and one of its state."""
    alone = rows.dim() == 1
    rows = rows.unsqueeze(0) if alone else rows
    pair = isinstance(layer, nn.LSTMCell)
    if state is None:
        zeros = rows.new_zeros(len(rows), layer.hidden_size)
        h, c = zeros, zeros
    else:
        h, c = state if pair else (state, state)
        h, c = (h.unsqueeze(0), c.unsqueeze(0)) if alone else (h, c)
    x = tape.product(Part(layer, "weight_ih", ("bias_ih",) if layer.bias else ()), rows)
    u = tape.product(Part(layer, "weight_hh", ("bias_hh",) if layer.bias else ()), h)
    if isinstance(layer, nn.LSTMCell):
        enter, keep, new, leave = (x + u).chunk(4, -1)
        c = keep.sigmoid() * c + enter.sigmoid() * new.tanh()
        h = leave.sigmoid() * c.tanh()
    elif isinstance(layer, nn.GRUCell):
        (x_r, x_z, x_n), (u_r, u_z, u_n) = x.chunk(3, -1), u.chunk(3, -1)
        new = (x_n + (x_r + u_r).sigmoid() * u_n).tanh()
        h = new + (x_z + u_z).sigmoid() * (h - new)
    else:
        assert isinstance(layer, nn.RNNCell)
        h = (x + u).relu() if layer.nonlinearity == "relu" else torch.tanh(x + u)
    h, c = (h.squeeze(0), c.squeeze(0)) if alone else (h, c)
    return (h, c) if pair else h


def _run_norm(layer: nn.LayerNorm, tape: Tape, input: Tensor) -> Tensor:
    """Normalise in the precision of the weights; vmap cannot mix it with that of autocast."""
    if layer.weight is None or input.dtype == layer.weight.dtype:
        return cast("Tensor", tape.run(layer, input))
    return cast("Tensor", tape.run(layer, input.to(layer.weight.dtype)).to(input.dtype))


def _in_full(run: Replacement) -> Replacement:
    """Run a layer in the precision of its weights, also under autocast."""

    def replacement(layer: nn.Module, tape: Tape, *given: Any, **named: Any) -> Any:
        weight = next(layer.parameters(recurse=False))
        if not torch.is_autocast_enabled(weight.device.type):
            return run(layer, tape, *given, **named)

        def converted(value: Tensor) -> Tensor:
            return value.to(weight.dtype) if value.is_floating_point() else value

        given, named = tree_map_only(Tensor, converted, (given, named))
        with torch.autocast(weight.device.type, enabled=False):
            return run(layer, tape, *given, **named)

    return replacement


_REPLACEMENTS: dict[type[nn.Module], Replacement] = {
    nn.EmbeddingBag: _run_bag,
    nn.LayerNorm: _run_norm,
    nn.LSTM: _in_full(run_recurrent),
    nn.GRU: _in_full(run_recurrent),
    nn.RNN: _in_full(run_recurrent),
    nn.LSTMCell: _in_full(_run_cell),
    nn.GRUCell: _in_full(_run_cell),
    nn.RNNCell: _in_full(_run_cell),
    nn.MultiheadAttention: run_attention,
    nn.MaxPool1d: run_checked_pool,
    nn.MaxPool2d: run_max_pool,
    nn.MaxPool3d: run_checked_pool,
}
