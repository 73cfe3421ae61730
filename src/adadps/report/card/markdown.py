"""A card as Markdown, for people."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from adadps.report.card.sections import headline_of, sections_of

_SPECIAL = re.compile(r"([\\`*_\[\]<>|#&~])")


def markdown_of(card: Mapping[str, Any], name: str = "") -> str:
    """The whole card, of the model called ``name``.

    Texts of others stay texts: nothing in them is taken for markup.
    """
    headline = headline_of(card)
    lines = [title_of(name), "", f"## {headline}" if card["private"] else f"# {headline}", ""]
    for section in sections_of(card):
        lines += [f"## {section.title}", ""]
        lines += [f"- **{as_text(name)}:** {as_text(value)}" for name, value in section.facts]
        lines += [f"- {as_text(point)}" for point in section.points]
        lines.append("")
    return "\n".join([*lines, f"Made with {as_text(card['made_with'])}.", ""])


def title_of(name: str) -> str:
    """The first line.

    >>> title_of("reviews"), title_of("")
    ('# Privacy card of reviews', '# Privacy card')
    """
    return f"# Privacy card of {as_text(name)}" if name else "# Privacy card"


def as_text(text: str) -> str:
    r"""The text with what Markdown would take for markup escaped, on one line.

    >>> as_text("f_max *\n<b>")
    'f\\_max \\* \\<b\\>'
    """
    return _SPECIAL.sub(r"\\\1", " ".join(str(text).split()))
