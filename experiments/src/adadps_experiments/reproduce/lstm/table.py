"""Trials, runs over seeds, the table and the figure of the LSTM experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adadps_experiments.plots import Panel, curves_of, draw, epochs_and_values
from adadps_experiments.reproduce import trials
from adadps_experiments.reproduce.lstm.jobs import METRIC, LstmJob, run
from adadps_experiments.reproduce.lstm.methods import LSTM_METHODS, QUICK, methods_of
from adadps_experiments.reproduce.lstm.problems import DELTA, PAPER, VECTORS
from adadps_experiments.reproduce.records import Record, RecordFile, valid_run
from adadps_experiments.reproduce.results import Row, Winners, run_settings, summary
from adadps_experiments.reproduce.workers import run_missing

QUICK_EPOCHS = 2
PROTOCOL = (
    "Six settings for each method, and up to two steps beyond the edge of a grid at which the best "
    "one lies, by the same rule for all; the best accuracy on a sixth of the training reviews, "
    "held out from the trials; one run each, at epsilon 2.8, shorter than those of the table and "
    "calibrated to epsilon for its own length. As in the paper, trials are not part of the "
    "epsilons."
)
PUBLISHED = {
    "dp-sgd": 0.70, "dp-adam": 0.69, "dp-rmsprop": 0.69, "adadps": 0.73, "adadps-adam": 0.73,
    "sgd": 0.88, "adam": 0.88, "adas": 0.88,
}  # fmt: skip
TITLES = {
    PAPER: "the paper's model, 706,690 weights, all trained",
    VECTORS: "an LSTM on frozen public vectors of words",
}


def tune(
    parts: Sequence[str],
    record_file: RecordFile,
    workers: int | None = None,
    held: Winners | None = None,
    methods: Sequence[str] | None = None,
) -> Winners:
    """Run the trials that have no record; return the winners, beside those ``held`` before."""
    search = trials.Search(run, record_file, METRIC, workers=workers)
    found = {
        part: {
            name: search.winner(_trials(part, name))
            for name in trials.chosen(part, methods, methods_of(part))
        }
        for part in parts
    }
    return trials.merged(held, found, PROTOCOL, tuple(LSTM_METHODS))


def _trials(experiment: str, method: str) -> list[LstmJob]:
    return [
        LstmJob(
            experiment=experiment,
            method=method,
            setting=setting,
            seed=trials.TUNING_SEED,
            tuning=True,
        )
        for setting in LSTM_METHODS[method].settings
    ]


def run_rows(
    experiment: str,
    winners: Winners,
    seeds: int,
    record_file: RecordFile,
    workers: int | None = None,
    *,
    quick: bool = False,
    methods: Sequence[str] | None = None,
    recorded: bool = False,
) -> dict[str, list[Record]]:
    """Run the jobs that have no record; return the records of each method.

    Five methods and the best one without privacy have all ``seeds``, the others one. With
    ``recorded``, nothing is run, and methods without a finished run are left out.
    """
    names = trials.chosen(experiment, methods, QUICK if quick else methods_of(experiment))
    if recorded:
        known = trials.tuned_methods(experiment, winners)
        names = [name for name in names if name in known]
    jobs = {
        name: [
            LstmJob(
                experiment=experiment,
                method=name,
                setting=trials.setting_of(experiment, name, winners),
                seed=seed,
                epochs=QUICK_EPOCHS if quick else None,
            )
            for seed in range(seeds if LSTM_METHODS[name].main else 1)
        ]
        for name in names
    }
    if recorded:
        jobs = {
            name: [job for job in mine if record_file.find(job.describe()) is not None]
            for name, mine in jobs.items()
        }
    everything = [job for mine in jobs.values() for job in mine]
    run_missing(run, everything, record_file, experiment, workers)
    return {
        name: [valid_run(record_file, job.describe()) for job in mine]
        for name, mine in jobs.items()
        if mine
    }


def rows_of(experiment: str, records: Mapping[str, Sequence[Record]]) -> list[Row]:
    """Return one row per method."""
    return [_row(experiment, name, mine) for name, mine in records.items()]


def _row(experiment: str, name: str, records: Sequence[Record]) -> Row:
    method, first = LSTM_METHODS[name], records[0]
    values = [record["values"][METRIC] for record in records]
    facts: dict[str, Any] = {
        "experiment": experiment,
        "dataset": "imdb",
        "method": method.label,
        "side": method.side,
        "metric": "test accuracy",
        "epsilon_pld": first["epsilon_pld"],
        "epsilon_rdp": first["epsilon_rdp"],
        "delta": DELTA if first["private"] else None,
        "paper": PUBLISHED.get(name) if experiment == PAPER else None,
    }
    settings = {**run_settings(records, values), "words": first["job"]["words"]}
    return summary(values=values, settings=settings, **facts)


def title_of(experiment: str) -> str:
    """Return the heading of the table."""
    return f"IMDB, {TITLES[experiment]}: test accuracy"


def figure_of(parts: Mapping[str, Mapping[str, Sequence[Record]]]) -> bytes:
    """Draw the accuracy over epochs, one panel per model."""
    return draw([_panel(name, mine) for name, mine in parts.items()], "png", legend_below=True)


def _panel(experiment: str, records: Mapping[str, Sequence[Record]]) -> Panel:
    curves = [
        curves_of(LSTM_METHODS[name].label, *epochs_and_values(mine))
        for name, mine in records.items()
        if not LSTM_METHODS[name].only_public  # many epochs of few reviews
    ]
    return Panel(TITLES[experiment], "epochs", "test accuracy", curves)
