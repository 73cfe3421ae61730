"""Runs over seeds, tables and figures of the image experiments."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from adadps_experiments.plots import Panel, curves_of, draw, epochs_and_values
from adadps_experiments.reproduce.images.jobs import DIGITS, METRIC, ImageJob, run
from adadps_experiments.reproduce.images.methods import IMAGE_METHODS, IMAGES, QUICK, methods_of
from adadps_experiments.reproduce.images.problems import SIZES, problem
from adadps_experiments.reproduce.images.trials import setting_of
from adadps_experiments.reproduce.records import Record, RecordFile
from adadps_experiments.reproduce.results import Row, Winners, run_settings, summary
from adadps_experiments.reproduce.trials import chosen, tuned_methods
from adadps_experiments.reproduce.workers import run_missing

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


def lines(experiment: str, methods: Sequence[str] | None = None, *, quick: bool) -> list[Line]:
    """Return the methods with each epsilon; one without privacy stands once."""
    first, *others = SIZES[experiment].epsilons
    names = chosen(experiment, methods, methods_of(experiment))
    if quick:
        return [(name, first) for name in QUICK if name in names]
    found: list[Line] = []
    for name in names:
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
    methods: Sequence[str] | None = None,
    quick: bool = False,
    recorded: bool = False,
) -> dict[Line, list[Record]]:
    """Run the jobs that have no record; return the records of each line.

    Five methods and the best one without privacy have all ``seeds``, the others one. If only
    ``recorded`` runs are wanted, nothing is run, and lines without any are left out.
    """
    wanted = lines(experiment, methods, quick=quick)
    if recorded:
        known = tuned_methods(experiment, winners)
        wanted = [(name, epsilon) for name, epsilon in wanted if name in known]
    jobs = {
        (name, epsilon): [
            ImageJob(
                experiment=experiment,
                method=name,
                setting=setting_of(experiment, name, winners, quick=quick),
                epsilon=epsilon or SIZES[experiment].tuned_at,
                seed=seed,
                epochs=SIZES[experiment].trial_epochs if quick else None,
            )
            for seed in range(seeds if IMAGE_METHODS[name].main else 1)
        ]
        for name, epsilon in wanted
    }
    if not recorded:
        run_missing(run, _in_order(jobs), record_file, experiment, workers)
    found = {
        line: [record_file.find(job.describe()) for job in mine] for line, mine in jobs.items()
    }
    held = {line: [each for each in mine if each is not None] for line, mine in found.items()}
    return {line: mine for line, mine in held.items() if mine}


def _in_order(jobs: Mapping[Line, Sequence[ImageJob]]) -> list[ImageJob]:
    """Return all jobs, those at the smaller epsilon first, and of these the first seeds."""
    everything = [job for mine in jobs.values() for job in mine]
    return sorted(
        everything, key=lambda job: (job.epsilon != SIZES[job.experiment].tuned_at, job.seed)
    )


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
    shown = [value if math.isfinite(value) else None for value in values]
    settings = run_settings(records, shown)
    return summary(values=values, settings=settings, **facts)


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
        privacy = f", ε = {epsilon:g}" if epsilon else ""
        curves.append(curves_of(f"{IMAGE_METHODS[name].label}{privacy}", *epochs_and_values(mine)))
    return Panel(title_of(experiment), "epochs", SIZES[experiment].metric, curves)


def _digits_of(records: Mapping[Line, Sequence[Record]]) -> bytes:
    """Draw the first test digits, and below them what each method's model makes of them.

    Of several epsilons, the smallest is shown.
    """
    test = problem("mnist-ae", tuning=False).test.features
    shown = [("test images", np.asarray(test[:DIGITS]).reshape(DIGITS, 28, 28))]  # type: ignore[index]
    for (name, epsilon), mine in records.items():
        if epsilon not in (None, SIZES["mnist-ae"].tuned_at):
            continue
        pixels = np.frombuffer(base64.b64decode(mine[0]["digits"]), np.uint8)
        privacy = f", ε = {epsilon:g}" if epsilon else ""
        score = mine[0]["values"][METRIC]
        loss = "diverged" if score is None else f"{100 * score:.2f}"
        label = f"{IMAGE_METHODS[name].label}{privacy}\n{loss}"
        shown.append((label, pixels.reshape(DIGITS, 28, 28) / 255))
    figure = Figure(figsize=(7, 0.6 * len(shown)), layout="constrained")
    axes = figure.subplots(len(shown), 1, squeeze=False)[:, 0]
    for axis, (label, images) in zip(axes, shown, strict=True):
        axis.imshow(np.concatenate(list(images), axis=1), cmap="gray_r", vmin=0, vmax=1)
        axis.set_xticks([]), axis.set_yticks([])
        axis.set_ylabel(label, rotation=0, ha="right", va="center")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, bbox_inches="tight")  # labels are wide
    return buffer.getvalue()
