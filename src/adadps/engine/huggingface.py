"""Models of Hugging Face's transformers, and of peft, in private steps.

A private step runs a model example by example. The models look at a padding mask of two axes as a
whole (is there any padding?), which an example that is alone cannot answer. `prepared` gives them
masks of four axes, which they read as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from adadps.errors import ModelError


def prepared(model: nn.Module) -> nn.Module:
    """Return the same model, ready for private steps; it stays usable everywhere else.

    Padding masks of two axes are expanded when the model is called, also when peft has wrapped it,
    and caches of past tokens are switched off. Give inputs by name:
    ``examples({"input_ids": ..., "attention_mask": ...}, labels)``. Padding follows the text, as
    it is usual for training.
    """
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "model_type"):
        raise ModelError(
            f"Expected a model of transformers, or of peft around one, found "
            f"{type(model).__name__}. Give other models to `fit` as they are."
        )
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f"Expected a model with one text as input, found {type(model).__name__}, which has an "
            "encoder and a decoder. Expand the masks of both yourself, to (examples, 1, queries, "
            "keys), with 0 where a word is seen and a large negative number where it is not."
        )
    if not any(isinstance(hook, _ExpandsMasks) for hook in model._forward_pre_hooks.values()):
        config.use_cache = False
        causal = any(getattr(module, "is_causal", False) for module in model.modules())
        model.register_forward_pre_hook(_ExpandsMasks(causal), with_kwargs=True)
    return model


class _ExpandsMasks:
    """Makes masks of four axes, as layers of attention add them to their scores.

    A word is hidden by a number that is so negative that its share is zero; it is finite, so that a
    word that sees nothing has no NaN.
    """

    def __init__(self, causal: bool) -> None:
        self._causal = causal

    def __call__(self, model: nn.Module, given: Any, named: dict[str, Any]) -> Any:
        """Expand a mask that was given by name, if all words of the text are there."""
        mask, words = named.get("attention_mask"), named.get("input_ids")
        words = named.get("inputs_embeds") if words is None else words
        if not isinstance(mask, Tensor) or mask.ndim != 2:
            return None
        if words is None or words.shape[1] != mask.shape[1]:
            return None
        seen = mask.bool()[:, None, None, :]
        length = mask.shape[1]
        if self._causal:
            before = torch.ones(length, length, dtype=torch.bool, device=mask.device).tril()
            seen = seen & before
        seen = seen.expand(-1, 1, length, length)
        dtype = next(model.parameters()).dtype
        hidden = torch.zeros((), dtype=dtype).fill_(torch.finfo(dtype).min).to(mask.device)
        expanded = torch.where(seen, torch.zeros_like(hidden), hidden)
        return given, {**named, "attention_mask": expanded}
