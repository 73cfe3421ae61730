"""Attention whose projections are exposed.

Only the projections have weights, and each is a linear layer over time. If query, key and value are
the same tensor, the packed projection is one product; otherwise there are three, of slices of the
weight.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from adadps.engine.rules.tape import Part, Tape
from adadps.tensors.products import batched


def run_attention(
    layer: nn.MultiheadAttention,
    tape: Tape,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,  # noqa: ARG001  # a hint; the mask says it too
) -> tuple[Tensor, Tensor | None]:
    """Compute what ``layer(query, key, value, ...)`` computes, and note the projections' uses."""
    alone = query.dim() == 2
    given = [query, key, value]
    same = query is key and key is value
    if alone:
        given = [rows.unsqueeze(0) for rows in given]
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    elif not layer.batch_first:
        given = [rows.transpose(0, 1) for rows in given]
    queries, keys, values = _projections(layer, tape, given, same)
    if layer.bias_k is not None and layer.bias_v is not None:
        keys = torch.cat([keys, layer.bias_k.expand(len(keys), 1, -1)], 1)
        values = torch.cat([values, layer.bias_v.expand(len(values), 1, -1)], 1)
    if layer.add_zero_attn:
        keys, values = (functional.pad(rows, (0, 0, 0, 1)) for rows in (keys, values))
    mask = _mask(layer, queries, keys, key_padding_mask, attn_mask)
    q, k, v = (_heads(rows, layer.num_heads) for rows in (queries, keys, values))
    scores = batched(q * q.shape[-1] ** -0.5, k.mT)
    shares = _shares(scores, mask, safely=not need_weights)
    if layer.training and layer.dropout:
        shares = functional.dropout(shares, layer.dropout, training=True)
    mixed = batched(shares, v).transpose(1, 2).flatten(2)
    out = _output(layer, tape, mixed)
    weights = (shares.mean(1) if average_attn_weights else shares) if need_weights else None
    if alone:
        return out.squeeze(0), None if weights is None else weights.squeeze(0)
    return out if layer.batch_first else out.transpose(0, 1), weights


def _projections(
    layer: nn.MultiheadAttention, tape: Tape, given: list[Tensor], same: bool
) -> tuple[Tensor, Tensor, Tensor]:
    packed = layer.in_proj_weight is not None
    biases = () if layer.in_proj_bias is None else ("in_proj_bias",)
    if same and packed:
        q, k, v = tape.product(Part(layer, "in_proj_weight", biases), given[0]).chunk(3, -1)
        return q, k, v
    width = layer.embed_dim
    q, k, v = (
        tape.product(
            Part(
                layer,
                "in_proj_weight" if packed else f"{name}_proj_weight",
                biases,
                (place * width, (place + 1) * width),
            ),
            rows,
        )
        for place, (name, rows) in enumerate(zip("qkv", given, strict=True))
    )
    return q, k, v


def _output(layer: nn.MultiheadAttention, tape: Tape, mixed: Tensor) -> Tensor:
    biases = ("bias",) if layer.out_proj.bias is not None else ()
    return tape.product(Part(layer.out_proj, "weight", biases), mixed)


def _shares(scores: Tensor, mask: Tensor | None, *, safely: bool) -> Tensor:
    """The softmax of scores; ``safely``, a query that may see no key has shares of zero.

    Torch does the same: with ``need_weights``, such a query is NaN.
    """
    if mask is None:
        return torch.softmax(scores, -1)
    if not safely:
        return torch.softmax(scores + mask, -1)
    blind = (mask == -torch.inf).all(-1, keepdim=True)
    seen = torch.softmax(torch.where(blind, scores, scores + mask), -1)
    return torch.where(blind, 0, seen)


def _heads(rows: Tensor, heads: int) -> Tensor:
    return rows.reshape(*rows.shape[:-1], heads, -1).transpose(1, 2)


def _mask(
    layer: nn.MultiheadAttention,
    queries: Tensor,
    keys: Tensor,
    padding: Tensor | None,
    attention: Tensor | None,
) -> Tensor | None:
    """The sum of both masks as numbers to add to the scores, (sequences × heads × query × key)."""
    found = None
    if attention is not None:
        found = _as_numbers(attention, queries)
        if found.dim() == 3:
            found = found.reshape(-1, layer.num_heads, *found.shape[1:])
    if padding is not None:
        of_keys = _as_numbers(padding, queries)[:, None, None]
        found = of_keys if found is None else found + of_keys
    if found is None:
        return None
    return functional.pad(found, (0, keys.shape[1] - found.shape[-1]))


def _as_numbers(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.where(mask, -torch.inf, torch.zeros((), dtype=like.dtype, device=like.device))
