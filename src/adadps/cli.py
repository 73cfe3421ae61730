"""The command line: the commands of `adadps.commands` under one name."""

from __future__ import annotations

import io
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from adadps.commands import audit, data, ledger
from adadps.commands.bench import bench
from adadps.commands.card import card
from adadps.commands.console import EXIT_CODES, out
from adadps.commands.demo import demo
from adadps.commands.doctor import doctor
from adadps.commands.federate import federate
from adadps.commands.help_text import command
from adadps.commands.plan import plan
from adadps.commands.predict import predict
from adadps.commands.report import report
from adadps.commands.reproduce import reproduce
from adadps.commands.train import train

app = typer.Typer(
    name="adadps",
    help="Train models with differential privacy, and stay adaptive under the noise.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for each in (plan, doctor, train, federate, predict, card, report, demo, reproduce, bench):
    command(app)(each)
app.add_typer(ledger.app, name="ledger")
app.add_typer(audit.app, name="audit")
app.add_typer(data.app, name="data")


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
