"""What all commands share: where they print, how errors are shown, and the exit codes.

Exit codes: 0, success; 1, the data, a file, a ledger or a budget does not allow it; 2, the command
itself is invalid (an unknown option, a number out of range); 3, an audit found a bound above the
claimed epsilon; 130, interrupted.
"""

from __future__ import annotations

import inspect
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from typing import Any, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from adadps.errors import AdadpsError, ContractError, OrderError, PrivacyWarning, SettingError

EXIT_CODES = (
    "Exit codes: 0 success; 1 the data, a file, a ledger or a budget does not allow it; 2 the "
    "command itself is invalid; 3 an audit refuted the claimed epsilon; 130 interrupted."
)
FAILURE, USAGE_ERROR, CLAIM_REFUTED, INTERRUPTED = 1, 2, 3, 130
_USAGE_ERRORS = (SettingError, ContractError, OrderError)


class Missing(StrEnum):
    """What to do with empty cells of a table."""

    REFUSE = "refuse"
    FILL = "fill"


class Rare(StrEnum):
    """What to do with rare levels and classes that are not declared."""

    REFUSE = "refuse"
    OTHER = "other"


out = Console()
err = Console(stderr=True)


@contextmanager
def errors_as_messages(
    interrupted: str | Callable[[], str] = "nothing was written",
) -> Iterator[None]:
    """Show errors and warnings of adadps as messages and exit; let other exceptions through."""
    try:
        with _warnings_shown():
            yield
    except AdadpsError as error:
        text = escape(printable(str(error)))
        err.print(f"[bold red]{type(error).__name__}[/]: {text}", highlight=False, soft_wrap=True)
        misused = isinstance(error, _USAGE_ERRORS)
        raise typer.Exit(USAGE_ERROR if misused else FAILURE) from None
    except KeyboardInterrupt:
        # Objects that were half built may raise when they are collected: nobody can act on that.
        sys.unraisablehook = _ignore
        text = interrupted if isinstance(interrupted, str) else interrupted()
        text = text if "\n" in text else f"{text}."  # no full stop after a command to copy
        err.print(f"Interrupted: {printable(text)}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def _warnings_shown() -> Iterator[None]:
    """Show each privacy warning as one line, on a terminal or not; leave others as they are."""
    with warnings.catch_warnings():
        warnings.simplefilter("default", PrivacyWarning)
        usual = warnings.showwarning

        def show(message: Any, category: Any, *where: Any, **more: Any) -> None:
            if not issubclass(category, PrivacyWarning):
                usual(message, category, *where, **more)
                return
            text = escape(printable(str(message)))
            err.print(f"[bold yellow]Warning[/]: {text}", highlight=False, soft_wrap=True)

        warnings.showwarning = show
        yield


def _ignore(_unraisable: object) -> None:
    pass


def printable(text: str) -> str:
    r"""Return the text with what cannot be encoded as UTF-8 escaped (file names may hold anything).

    >>> printable("caf\udce9")
    'caf\\udce9'
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def say(text: str) -> None:
    """Print one line on standard error."""
    err.print(printable(text), markup=False, highlight=False)


def say_on_terminal(text: str) -> None:
    """Print one line on standard error if it is a terminal, and nothing if it is piped."""
    if err.is_terminal:
        say(text)


def choice(name: str, known: dict[str, Any], what: str) -> Any:
    """Return the entry of ``known`` with this name, or refuse a name that is not among them."""
    if name not in known:
        raise SettingError(f"Expected a {what} among {', '.join(known)}, found '{name}'.")
    return known[name]


def print_json(content: Any) -> None:
    """Print JSON on standard output, for other programs."""
    sys.stdout.write(json.dumps(content, indent=2, allow_nan=False) + "\n")


def table_of_facts(title: str, facts: dict[str, Any]) -> Table:
    """Return a table with one name and its value per row."""
    table = Table(title=title, show_header=False)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        shown = f"{value:.6g}" if isinstance(value, float) else str(value)
        table.add_row(escape(printable(name.replace("_", " "))), escape(printable(shown)))
    return table


def table_of_rows(title: str, columns: dict[str, str], rows: list[dict[str, Any]]) -> Table:
    """Return a table of the ``columns``, each given as its heading and its key in the rows."""
    table = Table(title=title)
    for heading in columns:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row[name]) for name in columns.values()))
    return table


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


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
