"""How a command explains itself: flowing paragraphs, options in panels, examples at the end."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import typer

Command = TypeVar("Command", bound=Callable[..., Any])


def command(app: typer.Typer, name: str | None = None) -> Callable[[Command], Command]:
    """Add a function to ``app``, with its docstring as help.

    Lines of a paragraph flow. A last paragraph that begins with "Example" is shown below the
    options, line by line, so that it can be copied.
    """

    def added(function: Command) -> Command:
        told, examples = told_and_examples(inspect.getdoc(function) or "")
        app.command(name, help=told, epilog=examples)(function)
        return function

    return added


def told_and_examples(text: str) -> tuple[str, str | None]:
    r"""A docstring as help and as examples.

    >>> told_and_examples("Do it.\n\nSoon, or\nnot.\n\nExample: adadps do")
    ('Do it.\n\nSoon, or not.', 'Example:\n\nadadps do')
    """
    told, found, examples = text.partition("\n\nExample")
    flowing = "\n\n".join(" ".join(part.split()) for part in told.split("\n\n"))
    lines = f"Example{examples}".replace(": ", ":\n", 1).splitlines()
    return flowing, "\n\n".join(lines) if found else None


def panel(title: str) -> Callable[..., Any]:
    """`typer.Option` under a heading of its own."""
    return partial(typer.Option, rich_help_panel=title)


def whole(low: int, high: int | None = None) -> Callable[[int | None], int | None]:
    """Refuse numbers outside of a range that is not worth a place in the help."""
    expected = f"at least {low}" if high is None else f"from {low} to {high:,}"

    def checked(value: int | None) -> int | None:
        if value is not None and (value < low or (high is not None and value > high)):
            raise typer.BadParameter(f"Expected a whole number {expected}, found {value}.")
        return value

    return checked
