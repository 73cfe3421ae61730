"""`adadps reproduce`: experiments of the paper, its numbers beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adadps.commands.console import out, table_of_rows, told
from adadps.errors import SettingError

_COLUMNS = {
    "method": "method",
    "side": "side",
    "mean": "mean",
    "std": "std",
    "seeds": "seeds",
    "ε (PLD)": "epsilon_pld",
    "ε (RDP)": "epsilon_rdp",
    "paper": "paper",
}


def reproduce(
    experiment: Annotated[str, typer.Argument(help="toy (more experiments follow)")],
    seeds: Annotated[int, typer.Option(help="Number of runs of each method.")] = 5,
    quick: Annotated[bool, typer.Option(help="One seed, short runs: ordering only.")] = False,
    tune: Annotated[bool, typer.Option(help="Try the grids and record the winners.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write rows here.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Write the figure here (png); default: beside the JSON.")
    ] = None,
) -> None:
    """Run an experiment of the paper and show its numbers beside ours.

    Example: adadps reproduce toy --json toy.json --plot toy.png
    """
    from adadps.reproduce import rows as files  # noqa: PLC0415
    from adadps.reproduce import toy_figure  # noqa: PLC0415

    with told():
        if experiment != "toy":
            raise SettingError(f"Expected an experiment, found '{experiment}'. Known: toy.")
        if tune:
            trials = toy_figure.tune()
            path = json_file or Path("toy-tuning.json")
            files.write_json(path, trials)
            out.print(f"Trials and winners: {path}")
            return
        if seeds < 1:
            raise SettingError(f"Expected at least one seed, found {seeds}. Use --seeds 5.")
        rows, figure = toy_figure.reproduce(1 if quick else seeds, quick=quick)
        if json_file:
            files.write_json(json_file, rows)
        picture = plot or (json_file.with_suffix(".png") if json_file else None)
        if picture:
            files.write_file(picture, figure)
        out.print(table_of_rows("Toy problem: training loss, synthetic data", _COLUMNS, rows))
