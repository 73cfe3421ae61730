"""The help of a command: paragraphs that wrap, options in panels, examples at the end."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import typer

Command = TypeVar("Command", bound=Callable[..., Any])


def command(app: typer.Typer, name: str | None = None) -> Callable[[Command], Command]:
    """Add a function to ``app``, with its docstring as help.

    The lines of a paragraph are joined. A last paragraph that begins with "Example" is shown below
    the options, line by line, so that it can be copied.
    """

    def add(function: Command) -> Command:
        text, examples = help_and_examples(inspect.getdoc(function) or "")
        app.command(name, help=text, epilog=examples)(function)
        return function

    return add


def help_and_examples(docstring: str) -> tuple[str, str | None]:
    r"""Split a docstring into the help text and the examples.

    >>> help_and_examples("Do it.\n\nSoon, or\nnot.\n\nExample: adadps do")
    ('Do it.\n\nSoon, or not.', 'Example:\n\nadadps do')
    """
    text, found, examples = docstring.partition("\n\nExample")
    joined = "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))
    lines = f"Example{examples}".replace(": ", ":\n", 1).splitlines()
    return joined, "\n\n".join(lines) if found else None


def panel(title: str) -> Callable[..., Any]:
    """Return `typer.Option` with its own heading in the help."""
    return partial(typer.Option, rich_help_panel=title)


def whole_number(low: int, high: int | None = None) -> Callable[[int | None], int | None]:
    """Return a check that refuses numbers outside of a range, without a range in the help."""
    expected = f"at least {low}" if high is None else f"from {low} to {high:,}"

    def checked(value: int | None) -> int | None:
        if value is not None and (value < low or (high is not None and value > high)):
            raise typer.BadParameter(f"Expected a whole number {expected}, found {value}.")
        return value

    return checked
