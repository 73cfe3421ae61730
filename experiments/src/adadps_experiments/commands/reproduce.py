"""`adadps reproduce`: the paper's experiments, its results beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adadps.cli.commands.console import errors_as_messages, out, say, table_of_rows
from adadps.errors import SettingError
from adadps_experiments.commands.data import get_if_absent

if TYPE_CHECKING:
    from adadps_experiments.reproduce.text.experiments import TableLine

NAMES = (
    "toy", "imdb", "imdb-tfidf", "stackoverflow", "ood", "public-size", "non-private", "moments",
    "defaults", "federated",
)  # fmt: skip
NEEDED: dict[str, tuple[str, ...]] = {
    "imdb": ("imdb",),
    "imdb-private-words": ("imdb",),
    "so-titles": ("stackoverflow-titles",),
    "so-titles-general-words": ("stackoverflow-titles",),
    "debian-tags": ("debian",),
    "stackoverflow": (),  # has lines only where its files are found
}
"""The named data sets behind each problem, which are fetched if absent."""
PROXIES = {"imdb": "amazon"}
"""The named data set whose texts are public data from another source, for each problem."""
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
    experiment: Annotated[str, typer.Argument(help=", ".join(NAMES))],
    seeds: Annotated[
        int | None,
        typer.Option(help="Runs of each method. Default: 3; 5 for toy, 10 for federated."),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="One seed and a few methods, in minutes: a first look, not a verdict."
        ),
    ] = False,
    tune: Annotated[
        bool, typer.Option("--tune", help="Try the grids and record the winners.")
    ] = False,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            help="Write rows here. Default: reproduced/EXPERIMENT.json; "
            "with --tune, reproduced/EXPERIMENT-winners.json.",
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Write the figure here (png). Default: beside the JSON.")
    ] = None,
    winners: Annotated[
        Path | None,
        typer.Option(help="Settings from a file of --tune. Default: those of the package."),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(help=f"Only the lines of one data set: {', '.join(NEEDED)}. Default: all."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="Parallel runs. Default: one per core. Fewer need less memory."),
    ] = None,
) -> None:
    """Run an experiment of the paper and show its results beside ours.

    Every finished run is saved in runs.jsonl beside the JSON (every trial of --tune in
    trials.jsonl): stop at any time, and repeat the command to resume.

    Example: adadps reproduce imdb --quick --json results/imdb.json
    """
    with errors_as_messages(interrupted="finished runs are saved; repeat the command to resume"):
        if experiment not in NAMES:
            raise SettingError(
                f"Expected an experiment, found '{experiment}'. Known: {', '.join(NAMES)}."
            )
        if seeds is not None and seeds < 1:
            raise SettingError(f"Expected at least one seed, found {seeds}. Use --seeds 3.")
        if quick and seeds is not None:
            raise SettingError("Expected --quick or --seeds, found both. --quick uses one seed.")
        if workers is not None and workers < 1:
            raise SettingError(f"Expected at least one worker, found {workers}. Use --workers 1.")
        if tune and winners:
            raise SettingError(
                "Expected --tune or --winners, found both. --tune continues with the file that "
                "--json names."
            )
        _require_effect(
            experiment,
            quick=quick,
            tune=tune,
            seeds=seeds,
            winners=winners,
            dataset=dataset,
            workers=workers,
        )
        _require_tuning(tune=tune, quick=quick, seeds=seeds, plot=plot)
        part = f"-{dataset}" if dataset else ""
        name = f"{experiment}{part}{'-winners' if tune else ''}.json"
        rows = json_file or Path("reproduced") / name  # rows must not overwrite winners
        picture = plot or rows.with_suffix(".png")
        if experiment == "toy":
            _toy(1 if quick else seeds or 5, rows, picture, workers, quick=quick, tune=tune)
        elif experiment == "moments":
            _moments(rows, picture)
        elif experiment == "defaults":
            count = 1 if quick else seeds or 3
            _defaults(count, rows, picture, winners, workers, quick=quick, tune=tune)
        elif experiment == "federated":
            count = 1 if quick else seeds or 10
            _federated(count, rows, picture, winners, workers, dataset, quick=quick, tune=tune)
        elif tune:
            _tune(experiment, dataset, rows, workers)
        else:
            count = 1 if quick else seeds or 3
            _text(experiment, dataset, count, rows, picture, winners, workers, quick=quick)


def _require_effect(experiment: str, **given: object) -> None:
    """Refuse options that would have no effect on an experiment."""
    known = {
        "toy": ("winners", "dataset"),
        "moments": tuple(given),
        "defaults": ("dataset",),
    }
    unused = known.get(experiment, ())
    for name in unused:
        if given[name]:
            raise SettingError(
                f"Expected an option that '{experiment}' has, found --{name}. Leave it out."
            )


def _require_tuning(*, tune: bool, **given: object) -> None:
    """Refuse options of runs together with ``--tune``, which makes trials."""
    for name in given if tune else ():
        if given[name]:
            raise SettingError(
                f"Expected --tune or --{name}, found both. --tune tries every setting once and "
                f"draws nothing. Leave out --{name}."
            )


def _needed(lines: Sequence[TableLine]) -> list[str]:
    """Return the named data sets behind these lines, without duplicates."""
    names = [name for line in lines for name in NEEDED[line.dataset]]
    proxies = [PROXIES[line.dataset] for line in lines if line.public.proxy]
    return list(dict.fromkeys([*names, *proxies]))


def _toy(
    seeds: int, rows: Path, picture: Path, workers: int | None, *, quick: bool, tune: bool
) -> None:
    from adadps.files.writing import write_file, write_json
    from adadps_experiments.reproduce.records import RecordFile
    from adadps_experiments.reproduce.toy import table as toy_table

    if tune:
        write_json(rows, toy_table.tune(RecordFile(rows.parent / "trials.jsonl"), workers))
        out.print(f"Trials and winners: {rows}")
        return
    record_file = RecordFile(rows.parent / "runs.jsonl")
    found, figure = toy_table.reproduce(
        seeds, quick=quick, record_file=record_file, workers=workers
    )
    write_json(rows, found)
    write_file(picture, figure)
    out.print(table_of_rows("Toy problem: training loss, synthetic data", _COLUMNS, found))
    out.print(f"Rows: {rows}\nFigure: {picture}")


def _tune(experiment: str, dataset: str | None, path: Path, workers: int | None) -> None:
    from adadps.files.writing import write_json
    from adadps_experiments.reproduce.records import RecordFile
    from adadps_experiments.reproduce.results import read_winners
    from adadps_experiments.reproduce.text.experiments import experiment_of
    from adadps_experiments.reproduce.text.tuning import tune

    held = read_winners(path) if path.exists() else None
    known = experiment_of(experiment, dataset)
    get_if_absent(_needed(known.lines))
    found = tune(known, RecordFile(path.parent / "trials.jsonl"), held, workers)
    write_json(path, found)
    out.print(f"Trials and winners: {path}\nUse them: --winners {path}")


def _text(
    experiment: str,
    dataset: str | None,
    seeds: int,
    path: Path,
    picture: Path,
    winners: Path | None,
    workers: int | None,
    *,
    quick: bool,
) -> None:
    from adadps.files.writing import write_file, write_json
    from adadps_experiments.reproduce.records import RecordFile
    from adadps_experiments.reproduce.results import read_winners
    from adadps_experiments.reproduce.text.experiments import experiment_of
    from adadps_experiments.reproduce.text.tables import (
        figure_of,
        published_runs,
        rows_of,
        run_lines,
        tables_of,
    )
    from adadps_experiments.reproduce.text.tuning import tuned_setting

    known, chosen = experiment_of(experiment, dataset), read_winners(winners)
    lines = known.quick if quick else known.lines
    for line in lines:
        tuned_setting(line, chosen)  # refuse what was never tuned before fetching anything
    get_if_absent(_needed(lines))
    record_file = RecordFile(path.parent / "runs.jsonl")
    say(f"{len(lines)} lines, {seeds} seeds each; earlier runs are in {record_file.path}")
    run_lines(lines, seeds, chosen, record_file, experiment, workers)
    rows = rows_of(known, lines, seeds, chosen, record_file)
    write_json(path, rows)
    write_file(picture, figure_of(lines, seeds, chosen, record_file))
    for title, columns, part in tables_of(known, rows):
        out.print(table_of_rows(title, columns, part))
    for run in published_runs(lines):
        out.print(run.describe())
    out.print(f"Rows: {path}\nFigure: {picture}")


def _moments(path: Path, picture: Path) -> None:
    from adadps.files.writing import write_file, write_json
    from adadps_experiments.reproduce.text import moments

    get_if_absent(NEEDED["imdb"])
    found = moments.estimates()
    rows = moments.rows_of(found)
    write_json(path, rows)
    write_file(picture, moments.figure_of(found))
    shown = [{**row, **row["settings"]} for row in rows]
    out.print(table_of_rows(moments.TITLE, moments.COLUMNS, shown))
    out.print(f"Rows: {path}\nFigure: {picture}")


def _defaults(
    seeds: int,
    path: Path,
    picture: Path,
    winners: Path | None,
    workers: int | None,
    *,
    quick: bool,
    tune: bool,
) -> None:
    from adadps.files.writing import write_file, write_json
    from adadps_experiments.reproduce.defaults import (
        table as defaults_table,
    )
    from adadps_experiments.reproduce.defaults.problems import NEEDED as SETS
    from adadps_experiments.reproduce.records import RecordFile
    from adadps_experiments.reproduce.results import read_winners

    problems = defaults_table.QUICK if quick else defaults_table.DATASETS
    get_if_absent([*dict.fromkeys(SETS[problem] for problem in problems)])
    if tune:
        write_json(
            path, defaults_table.tune(problems, RecordFile(path.parent / "trials.jsonl"), workers)
        )
        out.print(f"Trials and winners: {path}\nUse them: --winners {path}")
        return
    chosen = read_winners(winners, "defaults")
    record_file = RecordFile(path.parent / "runs.jsonl")
    say(f"{seeds} seeds of each line; earlier runs are in {record_file.path}")
    rows = defaults_table.run_rows(problems, chosen, seeds, record_file, workers)
    write_json(path, rows)
    write_file(picture, defaults_table.figure_of(rows))
    out.print(
        table_of_rows(defaults_table.TITLE, defaults_table.COLUMNS, defaults_table.wide(rows))
    )
    out.print(f"Rows: {path}\nFigure: {picture}")


def _federated(
    seeds: int,
    path: Path,
    picture: Path,
    winners: Path | None,
    workers: int | None,
    dataset: str | None,
    *,
    quick: bool,
    tune: bool,
) -> None:
    from adadps.files.writing import write_file, write_json
    from adadps_experiments.reproduce.federated import (
        data as federated_data,
    )
    from adadps_experiments.reproduce.federated import (
        table as federated_table,
    )
    from adadps_experiments.reproduce.records import RecordFile
    from adadps_experiments.reproduce.results import read_winners

    known = (federated_data.DATASET, federated_data.PUBLISHED_DATASET)
    chosen_set = dataset or federated_data.DATASET
    if chosen_set not in known or (tune and dataset is not None):
        raise SettingError(
            f"Expected --dataset among {', '.join(known)}, and none with --tune, which uses "
            f"{known[0]}, found {chosen_set}. Leave it out."
        )
    if tune:
        write_json(path, federated_table.tune(RecordFile(path.parent / "trials.jsonl"), workers))
        out.print(f"Trials and winners: {path}\nUse them: --winners {path}")
        return
    chosen = read_winners(winners, "federated")
    record_file = RecordFile(path.parent / "runs.jsonl")
    many = f"{seeds} seeds" if seeds > 1 else "One seed"
    say(f"{many} of each line; earlier runs are in {record_file.path}")
    rows, records = federated_table.run_rows(
        chosen, seeds, record_file, workers, quick=quick, dataset=chosen_set
    )
    write_json(path, rows)
    write_file(picture, federated_table.figure_of(records))
    for title, part in federated_table.tables_of(rows):
        out.print(table_of_rows(title, federated_table.COLUMNS, part))
    if seeds == 1:
        out.print("One seed: a difference of a few points between methods means nothing.")
    out.print(f"Rows: {path}\nFigure: {picture}")
