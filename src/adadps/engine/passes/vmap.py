"""Functions of one example, run over a batch by torch.func.vmap."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from torch.func import vmap

from adadps.errors import ModelError

_CHECKPOINTS = (
    "Switch gradient checkpointing off (`model.gradient_checkpointing_disable()`, or call the "
    "layer itself in place of `checkpoint`): memory is bounded by `physical_batch_size=`."
)


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
    except (RuntimeError, AssertionError) as error:  # compiled functions stop at assertions, too
        raise ModelError(
            "Expected a model and a loss that torch.func.vmap can differentiate example by "
            f"example; it stopped with: {error}. {_cure_of(error)}"
        ) from error


_CURES = {
    "saved tensor hooks": _CHECKPOINTS,
    "must override the setup_context": (
        "Layers with a backward pass of their own need torch's newer form of "
        "`autograd.Function`, with `setup_context` and a rule for vmap. " + _CHECKPOINTS
    ),
    "TORCHDYNAMO": (
        "Call the functions themselves inside of the model, not compiled ones: a private step "
        "reads what each layer reads and writes."
    ),
    "data-dependent control flow": (
        "Replace `.item()`, branches that depend on values and packed sequences. Models of "
        "transformers ask whether a mask has any padding: call "
        "`adadps.engine.huggingface.prepared(model)`."
    ),
}
"""What helps, by a part of torch's message."""


def _cure_of(error: Exception) -> str:
    known = (cure for part, cure in _CURES.items() if part in str(error))
    return next(
        known,
        "Replace in-place operations, `.item()`, data-dependent branches and packed sequences by "
        "ones it supports; give GRU/RNN layers an initial state that is made from the input (see "
        "the page on PyTorch).",
    )
