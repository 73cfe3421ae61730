"""Does a model of transformers compute the same with padding masks of four axes?

Most do. Some read a mask of two axes for something else (positions, say), and some let a word see
only its neighbours in long texts. Made-up texts tell, before anything is trained.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from adadps.data.fields import tensors_of
from adadps.engine.passes.model_state import evaluating
from adadps.errors import ModelError

_LENGTH = 6


def window_of(config: Any) -> int | None:
    """Return how long texts may be in which every word sees all others, if there is a bound.

    >>> from types import SimpleNamespace
    >>> window_of(SimpleNamespace(sliding_window=4096)), window_of(SimpleNamespace())
    (4096, None)
    """
    if getattr(config, "use_sliding_window", True) is False:
        return None
    to_one_side = getattr(config, "sliding_window", None)
    chunk = getattr(config, "attention_chunk_size", None)
    to_both = getattr(config, "local_attention", None)
    bounds = [to_one_side, chunk, None if to_both is None else to_both // 2]
    return min((bound for bound in bounds if isinstance(bound, int)), default=None)


def require_same_outputs(
    model: nn.Module, expand: Callable[[nn.Module, Any, dict[str, Any]], Any]
) -> None:
    """Refuse a model whose outputs on two made-up texts change with the form of the mask.

    A model that does not run on them as it is (it needs other inputs, say) is tried by `fit`.
    """
    words = getattr(model.config, "vocab_size", None)
    if not isinstance(words, int) or words < 2:
        return
    device = next(model.parameters()).device
    tokens = (torch.arange(2 * _LENGTH, device=device) % (words - 1) + 1).view(2, _LENGTH)
    mask = torch.ones_like(tokens)
    mask[0, _LENGTH // 2 :] = 0
    given = {"input_ids": tokens, "attention_mask": mask}
    with evaluating(model), torch.no_grad():
        try:
            wanted = _shown(model(**given), mask)
        except Exception:
            return
        try:
            found = _shown(model(**expand(model, (), given)[1]), mask)
        except Exception as error:
            raise _cannot(model, f"that it stops with: {error}") from error
    pairs = zip(found, wanted, strict=False)
    if len(found) != len(wanted) or not all(_close(*pair) for pair in pairs):
        raise _cannot(model, "other outputs")


def _cannot(model: nn.Module, found: str) -> ModelError:
    return ModelError(
        f"Expected a model that takes padding masks of four axes (examples, 1, queries, keys) as "
        f"it takes those of two, found {found} from {type(model).__name__}. Train it without a "
        "mask, on texts of one length, or choose another model; BERT, RoBERTa, GPT-2 and Llama are "
        "among those that work."
    )


def _shown(outputs: Any, mask: Tensor) -> list[Tensor]:
    """The outputs for each text, or for each word that is there."""
    held = [tensor for tensor in tensors_of(outputs) if tensor.is_floating_point()]
    return [
        tensor[mask.bool()] if tensor.shape[:2] == mask.shape else tensor
        for tensor in held
        if tensor.ndim and len(tensor) == len(mask)
    ]


def _close(found: Tensor, wanted: Tensor) -> bool:
    size = float(wanted.abs().max()) if wanted.numel() else 0.0
    return found.shape == wanted.shape and torch.allclose(
        found.float(), wanted.float(), rtol=2e-2, atol=1e-3 * size
    )
