"""A card beside its result: card.json, card.md, and the schema of the first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from adadps.report.card.markdown import markdown_of

CARD_JSON, CARD_MARKDOWN = "card.json", "card.md"


def schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) that every ``card.json`` keeps to.

    >>> schema()["title"]
    'adadps privacy card'
    """
    text = files("adadps.report.card").joinpath("card_schema.json").read_text(encoding="utf-8")
    held: dict[str, Any] = json.loads(text)
    return held


def json_of(card: Mapping[str, Any]) -> str:
    """The card as the text of ``card.json``."""
    return json.dumps(card, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def write_card(card: Mapping[str, Any], folder: Path) -> None:
    """Write both forms of the card into a folder that is being made, and has its name."""
    (folder / CARD_JSON).write_text(json_of(card), encoding="utf-8")
    (folder / CARD_MARKDOWN).write_text(markdown_of(card, folder.name), encoding="utf-8")
