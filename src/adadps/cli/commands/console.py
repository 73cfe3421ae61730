"""What all commands share: where they print, and how they end.

Exit codes: 0, done; 1, something found while working (data, files, a ledger, a budget) stands
against it; 2, the command itself cannot be meant so (an unknown option, a number out of range);
3, an audit found a bound above the claim; 130, interrupted.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from adadps.errors import AdadpsError, ContractError, OrderError, PrivacyWarning, SettingError

EXIT_CODES = (
    "Exit codes: 0 done; 1 data, files, a ledger or a budget stand against it; 2 the command "
    "itself cannot be meant so; 3 an audit found more than was claimed; 130 interrupted."
)
FOUND_WHILE_WORKING, WRONGLY_CALLED, ABOVE_THE_CLAIM, INTERRUPTED = 1, 2, 3, 130
_ABOUT_THE_CALL = (SettingError, ContractError, OrderError)


class Missing(StrEnum):
    """What happens to empty cells of a table."""

    REFUSE = "refuse"
    FILL = "fill"


class Rare(StrEnum):
    """What happens to levels and classes that are not declared and rare."""

    REFUSE = "refuse"
    OTHER = "other"


out = Console()
err = Console(stderr=True)


@contextmanager
def told(
    interrupted: str | Callable[[], str] = "nothing was written",
) -> Iterator[None]:
    """Show our own errors as one message and exit, and our warnings; let bugs through."""
    try:
        with _warnings_shown():
            yield
    except AdadpsError as error:
        said = escape(printable(str(error)))
        err.print(f"[bold red]{type(error).__name__}[/]: {said}", highlight=False, soft_wrap=True)
        called = isinstance(error, _ABOUT_THE_CALL)
        raise typer.Exit(WRONGLY_CALLED if called else FOUND_WHILE_WORKING) from None
    except KeyboardInterrupt:
        sys.unraisablehook = _say_nothing  # what was half-made complains when it is taken down
        said = interrupted if isinstance(interrupted, str) else interrupted()
        ended = said if "\n" in said else f"{said}."  # a command to be copied stands alone
        err.print(f"Interrupted: {printable(ended)}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def _warnings_shown() -> Iterator[None]:
    """Show warnings about privacy as one line each, piped or not; others as ever."""
    with warnings.catch_warnings():
        warnings.simplefilter("default", PrivacyWarning)
        usual = warnings.showwarning

        def show(message: Any, category: Any, *where: Any, **more: Any) -> None:
            if not issubclass(category, PrivacyWarning):
                usual(message, category, *where, **more)
                return
            said = escape(printable(str(message)))
            err.print(f"[bold yellow]Warning[/]: {said}", highlight=False, soft_wrap=True)

        warnings.showwarning = show
        yield


def _say_nothing(_unraisable: object) -> None:
    """Nobody can do anything about it any more."""


def printable(text: str) -> str:
    r"""The text with what cannot be written as UTF-8 spelled out (a file name can be anything).

    >>> printable("caf\udce9")
    'caf\\udce9'
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def say(text: str) -> None:
    """One line on standard error."""
    err.print(printable(text), markup=False, highlight=False)


def say_to_people(text: str) -> None:
    """The same, but only if somebody looks: silent when piped."""
    if err.is_terminal:
        say(text)


def choice(name: str, known: dict[str, Any], what: str) -> Any:
    """The one that is called ``name``."""
    if name not in known:
        raise SettingError(f"Expected a {what} among {', '.join(known)}, found '{name}'.")
    return known[name]


def print_json(content: Any) -> None:
    """JSON on standard output, for other programs."""
    sys.stdout.write(json.dumps(content, indent=2, allow_nan=False) + "\n")


def table_of_facts(title: str, facts: dict[str, Any]) -> Table:
    """A name and a value in each row."""
    table = Table(title=title, show_header=False)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        shown = f"{value:.6g}" if isinstance(value, float) else str(value)
        table.add_row(escape(printable(name.replace("_", " "))), escape(printable(shown)))
    return table


def table_of_rows(title: str, columns: dict[str, str], rows: list[dict[str, Any]]) -> Table:
    """A table of some columns, given as heading and name in the rows."""
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
