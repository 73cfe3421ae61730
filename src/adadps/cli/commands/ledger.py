"""`adadps ledger`: show ledgers on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adadps.cli.main import command, errors_as_messages, out, print_json

app = typer.Typer(help="Show ledgers on disk.", no_args_is_help=True, suggest_commands=False)


@command(app, "show")
def show_ledger(
    file: Annotated[
        Path, typer.Argument(help="A ledger, or the folder of a run. Nothing is changed.")
    ],
    delta: Annotated[
        float | None, typer.Option(help="Default: that of the budget, else 1/(10 examples).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the runs on a ledger, what they have spent, and what remains.

    Example: adadps ledger show reviews.ledger
    """
    from adadps.accounting.ledger.summary import summarise
    from adadps.accounting.ledger.summary_table import as_rich

    with errors_as_messages():
        summary = summarise(file, delta)
        if as_json:
            print_json(summary)
        else:
            out.print(as_rich(summary))
