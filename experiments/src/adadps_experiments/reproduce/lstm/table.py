"""Trials, runs over seeds, the table and the figure of the LSTM experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from adadps.errors import DataError, SettingError
from adadps_experiments.plots import Panel, curves_of, draw
from adadps_experiments.reproduce.lstm.jobs import METRIC, LstmJob, run
from adadps_experiments.reproduce.lstm.methods import LSTM_METHODS, QUICK
from adadps_experiments.reproduce.lstm.problems import DELTA, PAPER, VECTORS
from adadps_experiments.reproduce.records import Record, RecordFile, valid_run, valid_trial
from adadps_experiments.reproduce.results import Row, Setting, Winners, summary
from adadps_experiments.reproduce.workers import run_missing

TUNING_SEED = 1000
STEPS_OUTSIDE = 2
"""How often a grid is extended at an edge where the best setting lies."""
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
    """Run the trials that have no record; return the winners, beside those ``held`` before.

    The methods are tuned one after another.
    """
    found = dict(held["datasets"]) if held else {}
    for part in parts:
        winners = {
            name: tuned(part, name, record_file, workers)
            for name in chosen(methods, tuple(LSTM_METHODS))
        }
        before = found.get(part, {}).get("methods", {})
        found[part] = {"methods": {**before, **winners}}
    return {"protocol": PROTOCOL, "datasets": found}


def tuned(
    experiment: str, method: str, record_file: RecordFile, workers: int | None = None
) -> Record:
    """Try the settings of one method, and further ones beyond edges; return the winner."""
    trials = [
        LstmJob(experiment, method, setting, TUNING_SEED, tuning=True)
        for setting in LSTM_METHODS[method].settings
    ]
    for outside in range(STEPS_OUTSIDE + 1):
        run_missing(run, trials, record_file, f"trials of {method} on {experiment}", workers)
        if outside < STEPS_OUTSIDE:
            trials += further(trials, record_file)
    best = max(trials, key=lambda job: _score(job, record_file))
    return {
        "winner": dict(best.setting),
        METRIC: _score(best, record_file),
        "trials": [[dict(job.setting), _score(job, record_file)] for job in trials],
    }


def further(trials: Sequence[LstmJob], record_file: RecordFile) -> list[LstmJob]:
    """Return the best trial with each of its values that lies at an edge moved one step on."""
    best = max(trials, key=lambda job: _score(job, record_file))
    found = []
    for name, value in best.setting.items():
        tried = sorted({job.setting[name] for job in trials})
        if value not in (tried[0], tried[-1]):
            continue
        end, beside = tried[:2] if value == tried[0] else tried[::-1][:2]
        moved = float(f"{end * end / beside:.3g}")
        found.append(replace(best, setting={**best.setting, name: moved}))
    return found


def _score(job: LstmJob, record_file: RecordFile) -> float:
    return float(valid_trial(record_file, job.describe())["values"][METRIC])


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
    names = chosen(methods, QUICK if quick else tuple(LSTM_METHODS))
    if recorded:
        tuned_before = winners["datasets"].get(experiment, {}).get("methods", {})
        names = [name for name in names if name in tuned_before]
    jobs = {
        name: [
            LstmJob(
                experiment,
                name,
                setting_of(experiment, name, winners),
                seed,
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


def chosen(asked: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    """Return those of the known methods that were asked for, in their order; None: all.

    >>> chosen(["dp-adam", "dp-sgd"], ("dp-sgd", "whitened", "dp-adam"))
    ['dp-sgd', 'dp-adam']
    """
    for name in asked or ():
        if name not in known:
            raise SettingError(
                f"Expected --methods among {', '.join(known)}, found '{name}'. Choose of these."
            )
    return [name for name in known if asked is None or name in asked]


def setting_of(experiment: str, method: str, winners: Winners) -> Setting:
    """Return the recorded setting of a method."""
    try:
        found = winners["datasets"][experiment]["methods"][method]["winner"]
        return {str(name): float(value) for name, value in found.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"Expected a recorded setting of {method} on {experiment}, found none. Run the "
            "experiment with --tune first, and give its file with --winners."
        ) from error


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
    settings = {
        **first["job"]["setting"],
        "batch": first["job"]["batch"],
        "epochs": first["job"]["epochs"],
        "words": first["job"]["words"],
        "steps": first["steps"],
        "noise_multiplier": first["noise_multiplier"],
        "clip_norm": first["clip_norm"],
        "chain": first["chain"],
        "seconds": [record["processor_seconds"] for record in records],
        "values": values,
    }
    return summary(values=values, settings=settings, **facts)


COLUMNS = {
    "method": "method",
    "side": "side",
    "mean": "mean",
    "std": "std",
    "seeds": "seeds",
    "ε (PLD)": "epsilon_pld",
    "ε (RDP)": "epsilon_rdp",
    "paper": "paper",
}


def title_of(experiment: str) -> str:
    """Return the heading of the table."""
    return f"IMDB, {TITLES[experiment]}: test accuracy"


def figure_of(parts: Mapping[str, Mapping[str, Sequence[Record]]]) -> bytes:
    """Draw the accuracy over epochs, one panel per model."""
    return draw([_panel(name, mine) for name, mine in parts.items()], "png", legend_below=True)


def _panel(experiment: str, records: Mapping[str, Sequence[Record]]) -> Panel:
    curves = []
    for name, mine in records.items():
        if LSTM_METHODS[name].only_public:  # many epochs of few reviews
            continue
        steps = [step for step, _ in mine[0]["curve"]]
        epochs = [step * mine[0]["job"]["batch"] / mine[0]["examples"] for step in steps]
        values = [[value for _, value in record["curve"]] for record in mine]
        curves.append(curves_of(LSTM_METHODS[name].label, epochs, values))
    return Panel(TITLES[experiment], "epochs", "test accuracy", curves)
