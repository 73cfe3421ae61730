"""`adadps reproduce`: the paper's experiments, its results beside ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adadps.cli.main import errors_as_messages, out, say, table_of_rows
from adadps.errors import DataError, SettingError
from adadps.files import write_file, write_json
from adadps_experiments.commands.data import get_if_absent

if TYPE_CHECKING:
    from adadps_experiments.reproduce.records import RecordFile
    from adadps_experiments.reproduce.results import Row, Winners
    from adadps_experiments.reproduce.text.experiments import TableLine

NAMES = (
    "toy", "imdb", "imdb-tfidf", "stackoverflow", "ood", "public-size", "non-private", "moments",
    "defaults", "federated", "mnist-ae", "mnist", "fashion-mnist",
    "imdb-lstm",
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
SEEDS = {"toy": 5, "federated": 10}
"""The default number of seeds; 3 for the others."""
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


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """One call of `adadps reproduce`, once its options are checked."""

    experiment: str
    path: Path
    picture: Path
    seeds: int
    quick: bool
    tune: bool
    winners: Path | None
    dataset: str | None
    methods: tuple[str, ...] | None
    recorded: bool
    workers: int | None

    def runs(self) -> RecordFile:
        """Open the records of runs beside the JSON."""
        from adadps_experiments.reproduce.records import RecordFile

        return RecordFile(self.path.parent / "runs.jsonl")

    def trials(self) -> RecordFile:
        """Open the records of trials beside the JSON."""
        from adadps_experiments.reproduce.records import RecordFile

        return RecordFile(self.path.parent / "trials.jsonl")

    def save_winners(self, winners: Winners) -> None:
        """Write what ``--tune`` found, and say how to use it."""
        write_json(self.path, winners)
        use = "" if self.experiment == "toy" else f"\nUse them: --winners {self.path}"
        out.print(f"Trials and winners: {self.path}{use}")

    def save_rows(self, rows: list[Row], figure: bytes) -> None:
        """Write the rows and the figure."""
        write_json(self.path, rows)
        write_file(self.picture, figure)

    def print_paths(self) -> None:
        """Say where rows and figure are."""
        out.print(f"Rows: {self.path}\nFigure: {self.picture}")


def reproduce(
    experiment: Annotated[str, typer.Argument(help=", ".join(NAMES))],
    seeds: Annotated[
        int | None,
        typer.Option(help="Runs of each method. Default: 3; 5 for toy, 10 for federated."),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="One seed and a few methods, in minutes: a first look, not a verdict. With "
            "--tune, on images: no finals, which are as long as runs.",
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
        typer.Option(
            help=f"Only the lines of one data set: {', '.join(NEEDED)}; of mnist: mnist, "
            "mnist-wavelets; of imdb-lstm: imdb-lstm, imdb-lstm-vectors. Default: all."
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Only these methods, with commas between them; of the experiments on images "
            "and imdb-lstm. "
            "--tune keeps the winners of others. Default: all."
        ),
    ] = None,
    recorded: Annotated[
        bool,
        typer.Option(
            "--recorded",
            help="Run nothing: show finished runs; of defaults, images and imdb-lstm.",
        ),
    ] = False,
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
            methods=methods,
            recorded=recorded,
            workers=workers,
        )
        images = _RUNNERS.get(experiment) is _images  # their trials have two stages
        _require_tuning(
            tune=tune, quick=quick and not images, seeds=seeds, plot=plot, recorded=recorded
        )
        part = f"-{dataset}" if dataset else ""
        name = f"{experiment}{part}{'-winners' if tune else ''}.json"
        rows = json_file or Path("reproduced") / name  # rows must not overwrite winners
        run = _RUNNERS.get(experiment, _tune_text if tune else _text)
        run(
            Reproduction(
                experiment=experiment,
                path=rows,
                picture=plot or rows.with_suffix(".png"),
                seeds=1 if quick else seeds or SEEDS.get(experiment, 3),
                quick=quick,
                tune=tune,
                winners=winners,
                dataset=dataset,
                methods=tuple(methods.split(",")) if methods else None,
                recorded=recorded,
                workers=workers,
            )
        )


def _require_effect(experiment: str, **given: object) -> None:
    """Refuse options that would have no effect on an experiment."""
    known = {
        "toy": ("winners", "dataset"),
        "moments": tuple(given),
        "defaults": ("dataset",),
        "mnist-ae": ("dataset",),
        "fashion-mnist": ("dataset",),
    }
    unused = (
        *known.get(experiment, ()),
        *(() if _RUNNERS.get(experiment) in (_images, _lstm) else ("methods",)),
        *(() if _RUNNERS.get(experiment) in (_images, _lstm, _defaults) else ("recorded",)),
    )
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


def _toy(asked: Reproduction) -> None:
    from adadps_experiments.reproduce.toy import table

    if asked.tune:
        asked.save_winners(table.tune(asked.trials(), asked.workers))
        return
    rows, figure = table.reproduce(
        asked.seeds, quick=asked.quick, record_file=asked.runs(), workers=asked.workers
    )
    asked.save_rows(rows, figure)
    out.print(table_of_rows("Toy problem: training loss, synthetic data", _COLUMNS, rows))
    asked.print_paths()


def _tune_text(asked: Reproduction) -> None:
    from adadps_experiments.reproduce.results import read_winners
    from adadps_experiments.reproduce.text.experiments import experiment_of
    from adadps_experiments.reproduce.text.tuning import tune

    held = read_winners(asked.path) if asked.path.exists() else None
    known = experiment_of(asked.experiment, asked.dataset)
    get_if_absent(_needed(known.lines))
    asked.save_winners(tune(known, asked.trials(), held, asked.workers))


def _text(asked: Reproduction) -> None:
    from adadps_experiments.reproduce.results import read_winners
    from adadps_experiments.reproduce.text import tables
    from adadps_experiments.reproduce.text.experiments import experiment_of
    from adadps_experiments.reproduce.text.tuning import tuned_setting

    known, winners = experiment_of(asked.experiment, asked.dataset), read_winners(asked.winners)
    lines, seeds = known.quick if asked.quick else known.lines, asked.seeds
    for line in lines:
        tuned_setting(line, winners)  # refuse what was never tuned before fetching anything
    get_if_absent(_needed(lines))
    runs = asked.runs()
    say(f"{len(lines)} lines, {seeds} seeds each; earlier runs are in {runs.path}")
    tables.run_lines(lines, seeds, winners, runs, asked.experiment, asked.workers)
    rows = tables.rows_of(known, lines, seeds, winners, runs)
    asked.save_rows(rows, tables.figure_of(lines, seeds, winners, runs))
    for title, columns, part in tables.tables_of(known, rows):
        out.print(table_of_rows(title, columns, part))
    for run in tables.published_runs(lines):
        out.print(run.describe())
    asked.print_paths()


def _moments(asked: Reproduction) -> None:
    from adadps_experiments.reproduce.text import moments

    get_if_absent(NEEDED["imdb"])
    found = moments.estimates()
    rows = moments.rows_of(found)
    asked.save_rows(rows, moments.figure_of(found))
    shown = [{**row, **row["settings"]} for row in rows]
    out.print(table_of_rows(moments.TITLE, moments.COLUMNS, shown))
    asked.print_paths()


def _defaults(asked: Reproduction) -> None:
    from adadps_experiments.reproduce.defaults import problems, table
    from adadps_experiments.reproduce.results import read_winners

    names = table.QUICK if asked.quick else table.DATASETS
    get_if_absent([*dict.fromkeys(problems.NEEDED[name] for name in names)])
    if asked.tune:
        asked.save_winners(table.tune(names, asked.trials(), asked.workers))
        return
    winners, runs = read_winners(asked.winners, "defaults"), asked.runs()
    say(f"{asked.seeds} seeds of each line; earlier runs are in {runs.path}")
    rows = table.run_rows(names, winners, asked.seeds, runs, asked.workers, recorded=asked.recorded)
    _require_finished({row["dataset"]: row for row in rows}, runs)
    asked.save_rows(rows, table.figure_of(rows))
    out.print(table_of_rows(table.TITLE, table.COLUMNS, table.wide(rows)))
    asked.print_paths()


def _federated(asked: Reproduction) -> None:
    from adadps_experiments.reproduce.federated import data, table
    from adadps_experiments.reproduce.results import read_winners

    known = (data.DATASET, data.PUBLISHED_DATASET)
    dataset = asked.dataset or data.DATASET
    if dataset not in known or (asked.tune and asked.dataset is not None):
        raise SettingError(
            f"Expected --dataset among {', '.join(known)}, and none with --tune, which uses "
            f"{known[0]}, found {dataset}. Leave it out."
        )
    if asked.tune:
        asked.save_winners(table.tune(asked.trials(), asked.workers))
        return
    winners, runs = read_winners(asked.winners, "federated"), asked.runs()
    seeds = f"{asked.seeds} seeds" if asked.seeds > 1 else "One seed"
    say(f"{seeds} of each line; earlier runs are in {runs.path}")
    rows, records = table.run_rows(
        winners, asked.seeds, runs, asked.workers, quick=asked.quick, dataset=dataset
    )
    asked.save_rows(rows, table.figure_of(records))
    for title, part in table.tables_of(rows):
        out.print(table_of_rows(title, table.COLUMNS, part))
    if asked.seeds == 1:
        out.print("One seed: a difference of a few points between methods means nothing.")
    asked.print_paths()


def _images(asked: Reproduction) -> None:
    from adadps_experiments.reproduce.images import problems, table, trials

    parts = problems.parts_of(asked.experiment, asked.dataset)
    get_if_absent([problems.SIZES[part].dataset for part in parts[:1]])

    def tune(held: Winners | None) -> Winners:
        return trials.tune(
            parts, asked.trials(), asked.workers, held, asked.methods, quick=asked.quick
        )

    _part_by_part(asked, parts, table, tune)


def _lstm(asked: Reproduction) -> None:
    from adadps_experiments.reproduce.lstm import problems, table

    parts = problems.parts_of(asked.dataset)
    get_if_absent(NEEDED["imdb"])

    def tune(held: Winners | None) -> Winners:
        return table.tune(parts, asked.trials(), asked.workers, held, asked.methods)

    _part_by_part(asked, parts, table, tune)


def _part_by_part(
    asked: Reproduction,
    parts: Sequence[str],
    table: Any,
    tune: Callable[[Winners | None], Winners],
) -> None:
    """Tune, or run the lines of each part and show its table."""
    from adadps_experiments.reproduce.results import read_winners

    if asked.tune:
        asked.save_winners(tune(read_winners(asked.path) if asked.path.exists() else None))
        return
    winners, runs = read_winners(asked.winners, asked.experiment), asked.runs()
    say(f"Up to {asked.seeds} seeds of each line; earlier runs are in {runs.path}")
    given = {"methods": asked.methods, "quick": asked.quick, "recorded": asked.recorded}
    records = {
        part: table.run_rows(part, winners, asked.seeds, runs, asked.workers, **given)
        for part in parts
    }
    records = {part: mine for part, mine in records.items() if mine}
    _require_finished(records, runs)
    rows = {part: table.rows_of(part, mine) for part, mine in records.items()}
    asked.save_rows([row for mine in rows.values() for row in mine], table.figure_of(records))
    for part, mine in rows.items():
        out.print(table_of_rows(table.title_of(part), _COLUMNS, mine))
    asked.print_paths()


def _require_finished(records: Mapping[str, object], runs: RecordFile) -> None:
    if not records:
        raise DataError(
            f"Expected finished runs in {runs.path}, found none of these methods. Leave out "
            "--recorded to make them."
        )


_RUNNERS: dict[str, Callable[[Reproduction], None]] = {
    "toy": _toy,
    "moments": _moments,
    "defaults": _defaults,
    "federated": _federated,
    "mnist-ae": _images,
    "mnist": _images,
    "fashion-mnist": _images,
    "imdb-lstm": _lstm,
}
"""Experiments that are not among those on text."""
