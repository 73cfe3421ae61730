"""Calls of torch.func.vmap that end in advice where it cannot run."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from adadps.errors import ModelError


def guarded(of_each: Callable[..., Any], *arguments: Any) -> Any:
    """Call something made by vmap; say what to change where it cannot run."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")
            warnings.filterwarnings("ignore", ".*vmap.*")
            return of_each(*arguments)
    except RuntimeError as error:
        raise ModelError(
            "Expected a model and a loss that torch.func.vmap can differentiate example by "
            f"example; it stopped with: {error}. Replace in-place operations, `.item()`, "
            "data-dependent branches and packed sequences by ones it supports; give GRU/RNN "
            "layers a first state that is made of the input (see the page on PyTorch)."
        ) from error
