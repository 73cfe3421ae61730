"""A trained model of transformers or peft as its makers save it, and its privacy card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from adadps.engine.huggingface import as_configured
from adadps.errors import DataError, ModelError
from adadps.files import new_folder
from adadps.report.card import card_of, markdown_of
from adadps.report.result import Result

MODEL_CARD = "README.md"


def save_pretrained(model: nn.Module, result: Result, folder: str | Path) -> Path:
    """Write what ``model.save_pretrained`` writes into a new folder, and its privacy card.

    The card is the model card (``README.md``), which model hubs show, so that it goes out with the
    weights: epsilon and delta, the method, what is assumed to be public. ``result.json`` and the
    card for programs stand beside it. With LoRA these are the files of the adapter; the frozen
    model that it belongs to is not written, and has no noise.
    """
    saves: Any = getattr(model, "save_pretrained", None)
    if not callable(saves):
        raise ModelError(
            f"Expected a model of transformers or peft, found {type(model).__name__} without "
            "`save_pretrained`. Save other models by `result.save(folder)`."
        )
    _require_weights_of(result, model)
    target = Path(folder)
    with new_folder(target) as draft:
        with as_configured(model):
            saves(draft)
        result.write_statement(draft)
        card = markdown_of(card_of(result.describe()), target.name)
        (draft / MODEL_CARD).write_text(_front_matter(model) + card, encoding="utf-8")
    return target


def _require_weights_of(result: Result, model: nn.Module) -> None:
    """Refuse weights that are not those of the card."""
    held = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    same = held.keys() == result.params.keys() and all(
        torch.equal(value.cpu(), result.params[name].cpu()) for name, value in held.items()
    )
    if not same:
        raise DataError(
            "Expected the model with the weights of this result, found others: the card would be "
            "that of another model. Call `result.restore(model)` first."
        )


def _front_matter(model: nn.Module) -> str:
    """What a hub reads at the top of a model card."""
    is_adapter = hasattr(model, "peft_config")
    base = str(getattr(getattr(model, "config", None), "_name_or_path", "") or "")
    lines = ["---", f"library_name: {'peft' if is_adapter else 'transformers'}"]
    if base and "\n" not in base:
        lines.append(f"base_model: {_quoted(base)}")
    return "\n".join([*lines, "tags:", "- differential-privacy", "- adadps", "---", "", ""])


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
