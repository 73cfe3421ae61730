"""Models of Hugging Face's transformers, and of peft, in private steps.

A private step runs a model example by example. The models look at a padding mask of two axes as a
whole (is there any padding?), which an example that is alone cannot answer. `prepared` gives them
masks of four axes, which they read as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from adadps.engine.passes.expanded_masks import (
    require_same_outputs,
    window_of,
)
from adadps.engine.passes.validation import require_no_checkpointing
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
    base = _base_of(model)
    if not any(isinstance(hook, _ExpandsMasks) for hook in base._forward_pre_hooks.values()):
        require_no_checkpointing(model)
        causal = any(getattr(module, "is_causal", False) for module in model.modules())
        expands = _ExpandsMasks(causal, window_of(config), getattr(config, "use_cache", None))
        config.use_cache = False
        require_same_outputs(base, expands)
        base.register_forward_pre_hook(expands, with_kwargs=True)
    return model


def _base_of(model: nn.Module) -> nn.Module:
    """The model that peft has wrapped: only there, prompts of peft have joined mask and text."""
    of_peft: Any = getattr(model, "get_base_model", None)
    found: nn.Module = model if of_peft is None else of_peft()
    return found


@contextmanager
def as_configured(model: nn.Module) -> Iterator[None]:
    """Give the configuration back what `prepared` has changed in it, for a while."""
    config: Any = getattr(model, "config", None)
    hooks = _base_of(model)._forward_pre_hooks.values()
    expands = next((hook for hook in hooks if isinstance(hook, _ExpandsMasks)), None)
    if expands is None or expands.used_cache is None:
        yield
        return
    config.use_cache = expands.used_cache
    try:
        yield
    finally:
        config.use_cache = False


class _ExpandsMasks:
    """Makes masks of four axes, as layers of attention add them to their scores.

    A word is hidden by a number that is so negative that its share is zero; it is finite, so that a
    word that sees nothing has no NaN.
    """

    def __init__(self, causal: bool, window: int | None, used_cache: bool | None) -> None:
        self._causal, self._window, self.used_cache = causal, window, used_cache

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
        if self._window is not None and length > self._window:
            raise ModelError(
                f"Expected texts of at most {self._window} tokens, found {length}: in longer ones "
                "a word of this model does not see all others, which an expanded mask does not "
                "tell it. Give shorter texts."
            )
        if self._causal:
            before = torch.ones(length, length, dtype=torch.bool, device=mask.device).tril()
            seen = seen & before
        seen = seen.expand(-1, 1, length, length)
        dtype = next(model.parameters()).dtype
        hidden = torch.zeros((), dtype=dtype).fill_(torch.finfo(dtype).min).to(mask.device)
        expanded = torch.where(seen, torch.zeros_like(hidden), hidden)
        return given, {**named, "attention_mask": expanded}
