"""Functions of one example, run over a batch by torch.func.vmap."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from torch.func import vmap

from adadps.errors import ModelError


def over_examples(
    function: Callable[..., Any],
    *arguments: Any,
    in_dims: int | tuple[int | None, ...] = 0,
    randomness: str = "different",
) -> Any:
    """Apply ``function`` to each example alone; where vmap cannot run, say what to change."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")
            warnings.filterwarnings("ignore", ".*vmap.*")
            return vmap(function, in_dims=in_dims, randomness=randomness)(*arguments)
    except RuntimeError as error:
        raise ModelError(
            "Expected a model and a loss that torch.func.vmap can differentiate example by "
            f"example; it stopped with: {error}. Replace in-place operations, `.item()`, "
            "data-dependent branches and packed sequences by ones it supports; give GRU/RNN "
            "layers an initial state that is made from the input (see the page on PyTorch)."
        ) from error
