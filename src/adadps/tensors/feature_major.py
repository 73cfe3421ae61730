"""Linear layers stored feature by feature in memory, so that a word is one contiguous row."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn


def sparse_linear(in_features: int, out_features: int, *, bias: bool = True) -> nn.Linear:
    """Return an `nn.Linear` for sparse rows: the same layer, stored feature by feature.

    Any linear layer works on sparse rows; this one needs no second copy of its weights when
    training begins, which matters for millions of features.

    >>> layer = sparse_linear(5, 2)
    >>> tuple(layer.weight.shape), layer.weight.T.is_contiguous()
    ((2, 5), True)
    """
    layer = nn.Linear(in_features, out_features, bias=bias, device="meta")
    by_feature = torch.empty(in_features, out_features)
    layer.weight = nn.Parameter(by_feature.T)
    bound = 1 / math.sqrt(in_features) if in_features else 0.0
    nn.init.uniform_(layer.weight, -bound, bound)
    if bias:
        layer.bias = nn.Parameter(torch.empty(out_features).uniform_(-bound, bound))
    return layer


def lay_out_by_feature(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """Store these weights feature by feature; return those whose memory was rearranged."""
    changed = []
    for parameter in parameters:
        if not parameter.data.T.is_contiguous():
            parameter.data = parameter.data.T.contiguous().T
            changed.append(parameter)
    return changed


def lay_out_by_output(parameters: Iterable[nn.Parameter]) -> None:
    """Restore the usual memory layout of these weights."""
    for parameter in parameters:
        parameter.data = parameter.data.contiguous()
