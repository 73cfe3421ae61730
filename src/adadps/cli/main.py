"""The command line: commands are listed from static text and imported when they are called.

Other distributions add commands by entry points of the group ``adadps.commands``. The help texts of
those in `adadps-experiments` are here, so that listing them imports nothing either.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any

import click
import typer
from typer.core import TyperCommand, TyperGroup

from adadps import __version__
from adadps.cli.commands.console import EXIT_CODES, command, errors_as_messages, out
from adadps.errors import AdadpsError, SettingError

GROUP = "adadps.commands"

COMMANDS = {
    "demo": "Compare methods at one epsilon on data that comes with the package.",
    "plan": "Find epsilon, the noise or the number of steps, before any data is touched.",
    "doctor": "Find out on public data which side information helps.",
    "train": "Train a private linear model from a table.",
    "federate": "Simulate a federation of users from a table.",
    "predict": "Predict the rows of a table with a trained model.",
    "card": "Show or check the privacy card of a model.",
    "report": "Write one html page about one or more models.",
    "ledger": "Show what a ledger has paid for.",
    "audit": "Measure a lower bound on epsilon and compare it with the claim.",
}
"""The commands of the product in the order of use, each with its line in the help."""

EXPERIMENTS = "adadps-experiments"
COMMANDS_OF_EXPERIMENTS = {
    "reproduce": "Run the experiments of the paper and compare with its numbers.",
    "bench": "Measure time and memory of a private step beside other libraries.",
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
    suggest_commands=False,  # click suggests; typer would say it again
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
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal without ε is no reason to fail
        sys.stdout.reconfigure(errors="backslashreplace")
