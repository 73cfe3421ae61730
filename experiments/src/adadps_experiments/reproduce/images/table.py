"""Trials, runs over seeds, tables and figures of the image experiments."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from adadps.errors import DataError
from adadps_experiments.plots import Panel, curves_of, draw
from adadps_experiments.reproduce.images.jobs import DIGITS, METRIC, ImageJob, run
from adadps_experiments.reproduce.images.methods import IMAGE_METHODS, IMAGES, QUICK, methods_of
from adadps_experiments.reproduce.images.problems import SIZES, problem
from adadps_experiments.reproduce.records import Record, RecordFile
from adadps_experiments.reproduce.results import Row, Setting, Winners, summary
from adadps_experiments.reproduce.workers import run_missing

TUNING_SEED = 1000
STEPS_OUTSIDE = 2
"""How often a grid is extended at an edge where the best setting lies."""
QUICK_EPOCHS = 4
PROTOCOL = (
    "Eight settings for each method, and up to two steps beyond the edge of a grid at which the "
    "best one lies, by the same rule for all; the best score on a sixth of the training images, "
    "held out from the trials; one run each, mostly shorter than those of the table, at the "
    "smaller epsilon, calibrated to it for its own length. As in the paper, trials are not part "
    "of the epsilons."
)
PAPER: dict[str, dict[float | None, dict[str, float]]] = {
    "mnist-ae": {
        1.6: {
            "dp-sgd": 5.013, "dp-adam": 3.697, "dp-rmsprop": 3.636, "adadps": 3.566,
            "adadps-adam": 3.443, "warm-start": 4.9, "dp-adam-pub": 6.4, "pda-dpmd": 3.9,
        },
        3.0: {"dp-sgd": 3.792, "dp-adam": 3.286, "adadps": 3.158},
        None: {"sgd": 5.013, "adam": 1.151, "adas": 1.805},
    },
    "mnist": {
        1.25: {
            "dp-sgd": 0.9273, "dp-adam": 0.9333, "dp-rmsprop": 0.9314, "adadps": 0.9377,
            "adadps-adam": 0.9541,
        },
    },
}  # fmt: skip
"""By experiment, epsilon as claimed, and method; None stands for no privacy."""
Line = tuple[str, float | None]
"""A method and its epsilon."""


def tune(
    parts: Sequence[str],
    record_file: RecordFile,
    workers: int | None = None,
    held: Winners | None = None,
) -> Winners:
    """Run the trials that have no record; return the winners, beside those ``held`` before."""
    found = {part: {"methods": _winners(part, record_file, workers)} for part in parts}
    others = held["datasets"] if held else {}
    return {"protocol": PROTOCOL, "datasets": {**others, **found}}


def _winners(experiment: str, record_file: RecordFile, workers: int | None) -> Record:
    """Return the winner of each method of a problem, and all its trials."""
    trials = {name: _trials(experiment, name) for name in methods_of(experiment)}
    for outside in range(STEPS_OUTSIDE + 1):
        jobs = [job for mine in trials.values() for job in mine]
        label = f"edges of {experiment}" if outside else f"trials of {experiment}"
        run_missing(run, jobs, record_file, label, workers)
        if outside < STEPS_OUTSIDE:
            trials = {name: mine + _further(mine, record_file) for name, mine in trials.items()}
    return {name: _winner(mine, record_file) for name, mine in trials.items()}


def _trials(experiment: str, method: str) -> list[ImageJob]:
    epsilon = SIZES[experiment].tuned_at
    return [
        ImageJob(experiment, method, setting, epsilon, TUNING_SEED, tuning=True)
        for setting in methods_of(experiment)[method]
    ]


def _further(trials: list[ImageJob], record_file: RecordFile) -> list[ImageJob]:
    """Return the best trial with each of its values that lies at an edge moved one step on."""
    best = min(trials, key=lambda job: _cost(job, record_file))
    further = []
    for name, value in best.setting.items():
        tried = sorted({job.setting[name] for job in trials})
        if value not in (tried[0], tried[-1]):
            continue
        end, beside = tried[:2] if value == tried[0] else tried[::-1][:2]
        moved = float(f"{end * end / beside:.3g}")
        further.append(replace(best, setting={**best.setting, name: moved}))
    return further


def _winner(trials: Sequence[ImageJob], record_file: RecordFile) -> Record:
    best = min(trials, key=lambda job: _cost(job, record_file))
    return {
        "winner": dict(best.setting),
        METRIC: _score(best, record_file),
        "trials": [[dict(job.setting), _score(job, record_file)] for job in trials],
    }


def _score(job: ImageJob, record_file: RecordFile) -> float:
    score = record_file.require(job.describe())["values"][METRIC]
    return math.nan if score is None else float(score)


def _cost(job: ImageJob, record_file: RecordFile) -> float:
    """Return the score, turned so that less is better; a run that diverged is the worst."""
    score = _score(job, record_file)
    if math.isnan(score):
        return float("inf")
    return score if SIZES[job.experiment].lower_is_better else -score


def lines(experiment: str, *, quick: bool) -> list[Line]:
    """Return the methods with each epsilon; one without privacy stands once."""
    first, *others = SIZES[experiment].epsilons
    if quick:
        return [(name, first) for name in QUICK if name in methods_of(experiment)]
    found: list[Line] = []
    for name in methods_of(experiment):
        method = IMAGE_METHODS[name]
        found.append((name, first if method.private else None))
        found += [(name, epsilon) for epsilon in others if method.private and method.main]
    return found


def run_rows(
    experiment: str,
    winners: Winners,
    seeds: int,
    record_file: RecordFile,
    workers: int | None = None,
    *,
    quick: bool = False,
) -> dict[Line, list[Record]]:
    """Run the jobs that have no record; return the records of each line.

    Five methods and the best one without privacy have all ``seeds``, the others one.
    """
    jobs = {
        (name, epsilon): [
            ImageJob(
                experiment,
                name,
                setting_of(experiment, name, winners),
                epsilon or SIZES[experiment].tuned_at,
                seed,
                epochs=QUICK_EPOCHS if quick else None,
            )
            for seed in range(seeds if IMAGE_METHODS[name].main else 1)
        ]
        for name, epsilon in lines(experiment, quick=quick)
    }
    everything = [job for mine in jobs.values() for job in mine]
    run_missing(run, everything, record_file, experiment, workers)
    return {
        line: [record_file.require(job.describe()) for job in mine] for line, mine in jobs.items()
    }


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


def rows_of(experiment: str, records: Mapping[Line, Sequence[Record]]) -> list[Row]:
    """Return one row per line."""
    return [_row(experiment, line, mine) for line, mine in records.items()]


def _row(experiment: str, line: Line, records: Sequence[Record]) -> Row:
    name, epsilon = line
    size, method, first = SIZES[experiment], IMAGE_METHODS[name], records[0]
    scores = [record["values"][METRIC] for record in records]
    values = [math.nan if score is None else size.metric_scale * score for score in scores]
    facts: dict[str, Any] = {
        "experiment": experiment,
        "dataset": size.dataset,
        "method": method.label,
        "side": f"wavelets, {IMAGES}" if size.wavelets else method.side,
        "metric": size.metric,
        "epsilon_pld": first["epsilon_pld"],
        "epsilon_rdp": first["epsilon_rdp"],
        "delta": size.delta if first["private"] else None,
        "paper": PAPER.get(experiment, {}).get(epsilon, {}).get(name),
    }
    settings = {
        **first["job"]["setting"],
        "batch": first["job"]["batch"],
        "epochs": first["job"]["epochs"],
        "steps": first["steps"],
        "noise_multiplier": first["noise_multiplier"],
        "clip_norm": first["clip_norm"],
        "chain": first["chain"],
        "seconds": [record["seconds"] for record in records],
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
    size = SIZES[experiment]
    order = "lower is better" if size.lower_is_better else "higher is better"
    return f"{experiment}: {size.metric}, {order}"


def figure_of(parts: Mapping[str, Mapping[Line, Sequence[Record]]]) -> bytes:
    """Draw rebuilt digits beside the originals, or the accuracy over epochs."""
    if "mnist-ae" in parts:
        return _digits_of(parts["mnist-ae"])
    panels = [_panel(experiment, records) for experiment, records in parts.items()]
    return draw(panels, "png", legend_below=True)


def _panel(experiment: str, records: Mapping[Line, Sequence[Record]]) -> Panel:
    curves = []
    for (name, epsilon), mine in records.items():
        if IMAGE_METHODS[name].only_public:  # many epochs of few images
            continue
        steps = [step for step, _ in mine[0]["curve"]]
        epochs = [step * mine[0]["job"]["batch"] / mine[0]["examples"] for step in steps]
        values = [[value for _, value in record["curve"]] for record in mine]
        privacy = f", ε = {epsilon:g}" if epsilon else ""
        curves.append(curves_of(f"{IMAGE_METHODS[name].label}{privacy}", epochs, values))
    return Panel(title_of(experiment), "epochs", SIZES[experiment].metric, curves)


def _digits_of(records: Mapping[Line, Sequence[Record]]) -> bytes:
    """Draw the first test digits, and below them what each method's model makes of them."""
    test = problem("mnist-ae", tuning=False).test.features
    shown = [("test images", np.asarray(test[:DIGITS]).reshape(DIGITS, 28, 28))]  # type: ignore[index]
    for (name, epsilon), mine in records.items():
        pixels = np.frombuffer(base64.b64decode(mine[0]["digits"]), np.uint8)
        privacy = f", ε = {epsilon:g}" if epsilon else ""
        label = f"{IMAGE_METHODS[name].label}{privacy}: {100 * mine[0]['values'][METRIC]:.2f}"
        shown.append((label, pixels.reshape(DIGITS, 28, 28) / 255))
    figure = Figure(figsize=(9.5, 0.75 * len(shown)), layout="constrained")
    axes = figure.subplots(len(shown), 1, squeeze=False)[:, 0]
    for axis, (label, images) in zip(axes, shown, strict=True):
        axis.imshow(np.concatenate(list(images), axis=1), cmap="gray_r", vmin=0, vmax=1)
        axis.set_xticks([]), axis.set_yticks([])
        axis.set_ylabel(label, rotation=0, ha="right", va="center")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()
