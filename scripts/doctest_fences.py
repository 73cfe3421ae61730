"""An extension of griffe that shows doctests as code in the reference pages."""

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"^( *)>>> .*(?:\n(?! *$).*)*", re.MULTILINE)
LITERAL = re.compile(r"^ *::$\n", re.MULTILINE)
"""A mark of reStructuredText. Markdown needs none: what is indented is code."""


def fenced(docstring: str) -> str:
    """Put every doctest, from its first prompt to a blank line, into a fence."""
    return DOCTEST.sub(r"\1```pycon\n\g<0>\n\1```", LITERAL.sub("", docstring))


class DoctestFences(griffe.Extension):
    """Put the doctests of every docstring that is loaded into fences."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:  # noqa: ARG002
        """Change the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
