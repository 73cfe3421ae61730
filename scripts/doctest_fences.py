"""For the reference: shows the doctests of docstrings as code (an extension of griffe)."""

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"^( *)>>> .*(?:\n(?! *$).*)*", re.MULTILINE)
LITERAL = re.compile(r"^ *::$\n", re.MULTILINE)
"""A mark of reStructuredText; Markdown takes what is indented as code without it."""


def fenced(docstring: str) -> str:
    """Put every doctest, from its first prompt to a blank line, into a fence."""
    return DOCTEST.sub(r"\1```pycon\n\g<0>\n\1```", LITERAL.sub("", docstring))


class DoctestFences(griffe.Extension):
    """Fences in every docstring that is loaded."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:  # noqa: ARG002
        """Once for every module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
