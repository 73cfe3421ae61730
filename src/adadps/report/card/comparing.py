"""Is the card that lies in a folder the one that would be written there now?

Everything on it is compared, word for word; only numbers may differ in their last digits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adadps.errors import DataError
from adadps.files.strict_json import parse_json
from adadps.report.card.files import CARD_JSON, CARD_MARKDOWN
from adadps.report.card.markdown import markdown_of, title_of

ROUNDING, LONGEST = 1e-6, 80
UNREADABLE = "something that cannot be read"
_ABSENT = object()


@dataclass(frozen=True)
class Difference:
    """A field that is not what it should be."""

    field: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.field}: expected {self.expected}, found {self.found}"


def differences_in(folder: Path, made: Mapping[str, Any]) -> list[Difference]:
    """Where ``card.json`` and ``card.md`` in a folder are not the card that was made anew."""
    try:
        held: Any = parse_json((folder / CARD_JSON).read_text(encoding="utf-8"))
    except (OSError, ValueError, DataError) as error:
        found = [Difference(CARD_JSON, "a card in JSON", _unread(error))]
    else:
        found = [
            replace(
                one, field=f"{CARD_JSON}, {one.field}", expected=f"{one.expected} (by result.json)"
            )
            for one in differences_of_cards(held, made)
        ]
    # the same numbers but for their last digits are also those of the text
    return [*found, *_differences_of_texts(folder, made if found else held)]


def differences_of_cards(held: Any, made: Mapping[str, Any]) -> list[Difference]:
    """The fields of a stored card that are not those of one that was made anew.

    >>> [str(one) for one in differences_of_cards({"format": 1, "seal": 9}, {"format": 1})]
    ['seal: expected nothing, found 9']
    """
    if not isinstance(held, dict):
        return [Difference("the card", "a JSON object", "something else")]
    return _differences("", held, dict(made))


def name_on(folder: Path) -> str | None:
    """What ``card.md`` calls the model, if it is not the name of the folder."""
    first = (folder / CARD_MARKDOWN).read_text(encoding="utf-8").splitlines()[0]
    own = title_of(folder.resolve().name)
    return None if first == own else first.removeprefix(title_of("")).removeprefix(" of ")


def _differences_of_texts(folder: Path, card: Mapping[str, Any]) -> list[Difference]:
    """Line by line. The first has the model's name, which a folder may have lost since."""
    try:
        held = (folder / CARD_MARKDOWN).read_bytes().decode("utf-8").split("\n")
    except (OSError, ValueError) as error:
        return [Difference(CARD_MARKDOWN, "a card in Markdown", _unread(error))]
    made = markdown_of(card).split("\n")
    if held[0].startswith(title_of("")):
        made[0] = held[0]
    for number, (one, other) in enumerate(zip(held, made, strict=False), 1):
        if one != other:
            return [Difference(f"{CARD_MARKDOWN}, line {number}", _shown(other), _shown(one))]
    if len(held) == len(made):
        return []
    return [Difference(CARD_MARKDOWN, f"{len(made)} lines", str(len(held)))]


def _differences(name: str, held: Any, made: Any) -> list[Difference]:
    """Field by field, as far down as both have the same ones."""
    if isinstance(held, dict) and isinstance(made, dict):
        return [
            found
            for inner in sorted(held.keys() | made.keys())
            for found in _differences(
                f"{name}.{inner}" if name else inner,
                held.get(inner, _ABSENT),
                made.get(inner, _ABSENT),
            )
        ]
    if isinstance(held, list) and isinstance(made, list) and len(held) == len(made):
        return [
            found
            for number, (one, other) in enumerate(zip(held, made, strict=True), 1)
            for found in _differences(f"{name}[{number}]", one, other)
        ]
    return [] if _alike(held, made) else [Difference(name, _shown(made), _shown(held))]


def _alike(held: Any, made: Any) -> bool:
    if isinstance(held, float) and isinstance(made, int | float):
        return math.isclose(held, made, rel_tol=ROUNDING)
    return type(held) is type(made) and bool(held == made)


def _shown(value: Any) -> str:
    if value is _ABSENT:
        return "nothing"
    if isinstance(value, float):
        return f"{value:.9g}"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _unread(error: Exception) -> str:
    return "no such file" if isinstance(error, FileNotFoundError) else UNREADABLE
