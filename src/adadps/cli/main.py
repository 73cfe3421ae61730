"""The command line: commands are listed without being loaded, and loaded when they are called.

Commands of other distributions join by an entry point of the group ``adadps.commands``; those of
`adadps-experiments` are listed here, so that help need not load them either.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points, version
from typing import Annotated, Any

import click
import typer
from typer.core import TyperGroup

from adadps.cli.commands.console import EXIT_CODES, out
from adadps.cli.commands.help_text import command

GROUP = "adadps.commands"

COMMANDS = {
    "demo": "Compare methods at one epsilon on data that comes with the package.",
    "plan": "Find epsilon, the noise or the number of steps, before any data is touched.",
    "doctor": "Find out on public data which side information helps.",
    "train": "Train a private linear model from a table.",
    "federate": "Simulate a federation of users from a table.",
    "predict": "Predict the rows of a table with a trained model.",
    "card": "Show or check what may be said about the privacy of a model.",
    "report": "Write one html page about one model or several.",
    "ledger": "Show what a ledger has paid for.",
    "audit": "Measure a lower bound on epsilon beside the claim.",
}
"""The commands of the product, in the order of use, and what help says of each."""

ELSEWHERE = {
    "reproduce": "Run the experiments of the paper, its numbers beside ours.",
    "bench": "Measure time and memory of a private step beside other libraries.",
    "data": "List, find and fetch data sets that are known by name.",
}
"""Commands that come by entry point, and what help says of them before they are loaded."""


class Commands(TyperGroup):
    """A group whose commands are imported when they are called."""

    _listing = False

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The product's commands first, then those of other distributions."""
        del ctx
        return [*COMMANDS, *(name for name in _added() if name not in COMMANDS)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command itself; for a list of commands, only its name and its help."""
        if cmd_name not in self.list_commands(ctx):
            return None
        if self._listing:
            known = {**ELSEWHERE, **COMMANDS}
            return click.Command(cmd_name, help=known.get(cmd_name, "Added by an extension."))
        if cmd_name in COMMANDS:
            module = import_module(f"adadps.cli.commands.{cmd_name}")
            return _as_click(getattr(module, "app", None) or getattr(module, cmd_name), cmd_name)
        return _as_click(_added()[cmd_name].load(), cmd_name)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Help for all commands, without loading one of them."""
        self._listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False


def _added() -> Mapping[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def _as_click(found: Any, name: str) -> click.Command:
    """A function with typed parameters, or a group of them, as a command that can be called."""
    if isinstance(found, typer.Typer):
        made: click.Command = typer.main.get_group(found)
    else:
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        command(alone)(found)
        made = typer.main.get_command(alone)
    made.name = name
    return made


app = typer.Typer(
    name="adadps",
    cls=Commands,
    help="Train models with differential privacy, and stay adaptive under the noise.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        out.print(f"adadps {version('adadps')}")
        raise typer.Exit


@app.callback()
def main(
    show_version: Annotated[  # noqa: ARG001
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Train models with differential privacy, and stay adaptive under the noise."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal without ε is no reason to fail
        sys.stdout.reconfigure(errors="backslashreplace")
