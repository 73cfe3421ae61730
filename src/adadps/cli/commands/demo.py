"""`adadps demo`: several methods at one budget, on data that comes with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adadps.cli.main import (
    errors_as_messages,
    out,
    print_json,
    say_on_terminal,
    table_of_rows,
)

_COLUMNS = {
    "method": "method",
    "side information": "side",
    "accuracy": "accuracy",
    "ε": "epsilon",
    "seconds": "seconds",
}
_HOW_TO_READ = """\
The defaults are those of `adadps train`: nothing is tuned. All other methods
were tuned with 12 trials each, which are not part of ε, and read words alone.
The defaults also read public embeddings and the words in the sections' names."""


def demo(
    out_folder: Annotated[
        Path, typer.Option("--out", help="Folder for the report and the model.")
    ] = Path("adadps-demo"),
    epsilon: Annotated[float, typer.Option(help="Privacy budget of every private method.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Compare DP-SGD, DP-Adam and AdaDPS at equal epsilon, on data that comes with the package.

    All were tuned with the same number of trials, and are compared with the untuned defaults of
    adadps train.
    """
    from adadps.cli.demo import run_demo

    with errors_as_messages():
        outcome = run_demo(out_folder, epsilon, say=say_on_terminal)
        if as_json:
            print_json(outcome.rows)
        else:
            title = "Section of a Debian package, predicted for held-out packages"
            out.print(table_of_rows(title, _COLUMNS, outcome.rows))
            out.print(_HOW_TO_READ, highlight=False)
            out.print(f"Report: {outcome.report}\nModel:  {outcome.model}")
