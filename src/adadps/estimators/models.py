"""The models that are trained: a linear layer, or a copy of the caller's module."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from adadps.errors import ModelError
from adadps.tensors.feature_major import sparse_linear


def linear_layer(width: int, outputs: int, *, sparse_rows: bool = True) -> nn.Linear:
    """Return a linear layer without bias that starts at zero.

    >>> linear_layer(3, 2, sparse_rows=False)
    Linear(in_features=3, out_features=2, bias=False)
    """
    layer = (
        sparse_linear(width, outputs, bias=False)
        if sparse_rows
        else nn.Linear(width, outputs, bias=False)
    )
    nn.init.zeros_(layer.weight)
    return layer


def own_module(module: Any, width: int, outputs: int) -> nn.Module:
    """Return a copy of a module, or what a function of the numbers of inputs and outputs makes."""
    made = (
        copy.deepcopy(module)
        if isinstance(module, nn.Module)
        else module(width, outputs)
        if callable(module)
        else None
    )
    if not isinstance(made, nn.Module):
        raise ModelError(
            "Expected a torch module, or a function of the numbers of inputs and outputs that "
            f"makes one, as `module`, found {type(module).__name__}. For example: "
            "module=lambda inputs, outputs: torch.nn.Linear(inputs, outputs)."
        )
    return made


def reading_layer(model: nn.Module, width: int) -> str | None:
    """Return the name of the first parameter that has one column per feature.

    >>> reading_layer(nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 2)), 3)
    '0.weight'
    """
    fitting = (
        name
        for name, value in model.named_parameters()
        if value.ndim == 2 and value.shape[-1] == width
    )
    return next(fitting, None)
