"""The command line: commands are listed from static text and imported when they are called.

Other distributions add commands by entry points of the group ``adadps.commands``. The help texts of
those in `adadps-experiments` are here, so that listing them imports nothing either.

What all commands share comes first: where they print, how errors are shown, and the exit codes.
The code is 0 for success; 1 if the data, a file, a ledger or a budget does not allow the command; 2
if the command itself is invalid (an unknown option, a number out of range); 3 if an audit found a
bound above the claimed epsilon; and 130 if the command was interrupted.
"""

from __future__ import annotations

import inspect
import io
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, TypeVar

import click
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer.core import TyperCommand, TyperGroup

from adadps import __version__
from adadps.errors import (
    AdadpsError,
    ContractError,
    OrderError,
    PrivacyWarning,
    SettingError,
    SideInformationWarning,
)

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
        # Half-built objects may raise when they are collected, which users cannot act on.
        sys.unraisablehook = _ignore
        text = interrupted if isinstance(interrupted, str) else interrupted()
        text = text if "\n" in text else f"{text}."  # no full stop after a command to copy
        err.print(f"Interrupted: {printable(text)}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def _warnings_shown() -> Iterator[None]:
    """Show our warnings as one line each, on a terminal or not; leave others as they are."""
    ours = (PrivacyWarning, SideInformationWarning)
    with warnings.catch_warnings():
        for category in ours:
            warnings.simplefilter("default", category)
        usual = warnings.showwarning

        def show(message: Any, category: Any, *where: Any, **more: Any) -> None:
            if not issubclass(category, ours):
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
    if not out.quiet:
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
    """Return a check that refuses numbers outside a range; the help does not show the range."""
    expected = f"at least {low}" if high is None else f"from {low} to {high:,}"

    def checked(value: int | None) -> int | None:
        if value is not None and (value < low or (high is not None and value > high)):
            raise typer.BadParameter(f"Expected a whole number {expected}, found {value}.")
        return value

    return checked


GROUP = "adadps.commands"

COMMANDS = {
    "demo": "Compare methods at one epsilon on data that comes with the package.",
    "plan": "Find epsilon, the noise or the number of steps, before any data is touched.",
    "doctor": "Find out on public data which side information helps.",
    "train": "Train a private linear model from a table.",
    "federate": "Simulate a federation of users from a table.",
    "predict": "Predict the rows of a table with a trained model.",
    "card": "Show or check the privacy card of a model.",
    "report": "Write one HTML page about one or more models.",
    "ledger": "Show what a ledger has paid for.",
    "audit": "Measure a lower bound on epsilon and compare it with the claim.",
}
"""The commands of the product in the order of use, each with its line in the help."""

EXPERIMENTS = "adadps-experiments"
COMMANDS_OF_EXPERIMENTS = {
    "reproduce": "Run the experiments of the paper and compare with its numbers.",
    "bench": "Measure time and memory of a private step, compared with other libraries.",
    "data": "List, find and fetch data sets that are known by name.",
}


class CommandGroup(TyperGroup):
    """A group that lists commands without importing them; `resolve_command` imports the one called.

    Help, completion and suggestions see only names and one-line texts.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: click.Command(name, help=text) for name, text in COMMANDS.items()}
        self.added = {
            name: point for name, point in _added_commands().items() if name not in COMMANDS
        }
        for name, point in self.added.items():
            package = _package_of(point)
            text = COMMANDS_OF_EXPERIMENTS.get(name, f"Provided by {package}.")
            self.commands[name] = TyperCommand(name, help=text, rich_help_panel=f"From {package}")

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is called, and import it."""
        if args[0] in COMMANDS_OF_EXPERIMENTS and args[0] not in self.commands:
            if ctx.resilient_parsing:  # a completion must print nothing
                return None, None, args[1:]
            with errors_as_messages():
                raise _not_installed(args[0])
        name, listed, rest = super().resolve_command(ctx, args)
        if name is None or listed is None:
            return name, listed, rest
        with errors_as_messages():
            return name, self._imported(name), rest

    def _imported(self, name: str) -> click.Command:
        if name in COMMANDS:
            module = import_module(f"adadps.cli.commands.{name}")
            return _as_click(getattr(module, "app", None) or getattr(module, name), name)
        point = self.added[name]
        try:
            return _as_click(point.load(), name)
        except Exception as error:  # the code of another distribution may raise anything
            raise AdadpsError(
                f"Expected `adadps {name}` in {point.value}, found {type(error).__name__}: {error}."
                f" Reinstall the package that provides it: pip install {_package_of(point)}"
            ) from error


def _added_commands() -> Mapping[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def _package_of(point: EntryPoint) -> str:
    return point.module.partition(".")[0] if point.dist is None else point.dist.name


def _not_installed(name: str) -> SettingError:
    return SettingError(
        f"Expected the package {EXPERIMENTS}, which provides `adadps {name}`, found that it is not "
        f"installed. Install it: pip install {EXPERIMENTS}; in a clone of adadps: pip install "
        "./experiments"
    )


def _as_click(found: Any, name: str) -> click.Command:
    """Return a function with typed parameters, or a group of them, as a command."""
    if isinstance(found, typer.Typer):
        made: click.Command = typer.main.get_group(found)
    else:
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        command(single)(found)
        made = typer.main.get_command(single)
    made.name = name
    return made


app = typer.Typer(
    name="adadps",
    cls=CommandGroup,
    help="Train models with differential privacy, and stay adaptive under the noise.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    suggest_commands=False,  # click already suggests names; typer would repeat them
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        out.print(f"adadps {__version__}")
        raise typer.Exit


@app.callback()
def main(
    show_version: Annotated[  # noqa: ARG001
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Train models with differential privacy, and stay adaptive under the noise."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # do not fail where ε cannot be encoded
        sys.stdout.reconfigure(errors="backslashreplace")
    if "TORCHELASTIC_RUN_ID" in os.environ:  # of the processes of torchrun, the first one speaks
        out.quiet = err.quiet = os.environ.get("RANK", "0") != "0"
