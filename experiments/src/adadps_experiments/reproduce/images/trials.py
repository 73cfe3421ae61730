"""Trials of settings: those that are tried for each method, and the one that wins.

Trials may be shorter than the runs of the table. Then they choose finalists, which are tried again
at the length of a run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from adadps.errors import DataError
from adadps_experiments.reproduce.images.jobs import METRIC, ImageJob, run
from adadps_experiments.reproduce.images.methods import IMAGE_METHODS, chosen, methods_of
from adadps_experiments.reproduce.images.problems import SIZES
from adadps_experiments.reproduce.records import Record, RecordFile
from adadps_experiments.reproduce.results import Setting, Winners
from adadps_experiments.reproduce.workers import run_missing

TUNING_SEED = 1000
STEPS_OUTSIDE = 2
"""How often a grid is extended at an edge where the best setting lies."""
FINALISTS = 3
"""How many settings are tried again where runs are longer than trials."""
PROTOCOL = (
    "Eight settings for each method, and up to two steps beyond the edge of a grid at which the "
    "best one lies, by the same rule for all; the best score on a sixth of the training images, "
    "held out from the trials; one run each, at the smaller epsilon, calibrated to it for its own "
    "length. Where trials are shorter than the runs of the table, the best three are tried again "
    "at the length of those, and the best of these wins. As in the paper, trials are not part of "
    "the epsilons."
)


def tune(
    parts: Sequence[str],
    record_file: RecordFile,
    workers: int | None = None,
    held: Winners | None = None,
    methods: Sequence[str] | None = None,
    *,
    quick: bool = False,
) -> Winners:
    """Run the trials that have no record; return the winners, beside those ``held`` before.

    If it is ``quick``, there are no finals, and winners are for runs as long as trials alone.
    """
    datasets = dict(held["datasets"]) if held else {}
    for part in parts:
        found = _winners(part, chosen(part, methods), record_file, workers, quick=quick)
        merged = {**datasets.get(part, {}).get("methods", {}), **found}
        in_order = {name: merged[name] for name in methods_of(part) if name in merged}
        datasets[part] = {"methods": in_order}
    return {"protocol": PROTOCOL, "datasets": datasets}


def _winners(
    experiment: str,
    methods: Sequence[str],
    record_file: RecordFile,
    workers: int | None,
    *,
    quick: bool,
) -> Record:
    """Return the winner of each of these methods on a problem, and all its trials."""
    trials = {name: _trials(experiment, name) for name in methods}
    for outside in range(STEPS_OUTSIDE + 1):
        label = f"edges of {experiment}" if outside else f"trials of {experiment}"
        run_missing(run, _all(trials), record_file, label, workers)
        if outside < STEPS_OUTSIDE:
            trials = {name: mine + _further(mine, record_file) for name, mine in trials.items()}
    finals = {name: [] if quick else _finals(mine, record_file) for name, mine in trials.items()}
    run_missing(run, _all(finals), record_file, f"finals of {experiment}", workers)
    return {name: _winner(trials[name], finals[name], record_file) for name in methods}


def _all(jobs: Mapping[str, list[ImageJob]]) -> list[ImageJob]:
    return [job for mine in jobs.values() for job in mine]


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


def has_finals(experiment: str, method: str) -> bool:
    """Tell whether trials of a method are shorter than its runs."""
    size = SIZES[experiment]
    return size.trial_epochs < size.epochs and not IMAGE_METHODS[method].only_public


def setting_of(experiment: str, method: str, winners: Winners, *, quick: bool = False) -> Setting:
    """Return the recorded setting of a method for runs of the table, or as long as trials."""
    try:
        held = winners["datasets"][experiment]["methods"][method]
        found = held["winner"]
        if has_finals(experiment, method):
            if quick:
                found = held["winner of trials"]
            elif not held["finals"]:
                raise ValueError("no finals")
        return {str(name): float(value) for name, value in found.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"Expected a recorded setting of {method} on {experiment}, found none. Run the "
            "experiment with --tune first, and give its file with --winners."
        ) from error


def _finals(trials: Sequence[ImageJob], record_file: RecordFile) -> list[ImageJob]:
    """Return the best trials as long as a run of the table; none if they were that long."""
    if not has_finals(trials[0].experiment, trials[0].method):
        return []
    best = sorted(trials, key=lambda job: _cost(job, record_file))[:FINALISTS]
    return [replace(job, epochs=SIZES[job.experiment].epochs) for job in best]


def _winner(
    trials: Sequence[ImageJob], finals: Sequence[ImageJob], record_file: RecordFile
) -> Record:
    short, best = (
        min(jobs, key=lambda job: _cost(job, record_file)) for jobs in (trials, finals or trials)
    )

    def scores(jobs: Sequence[ImageJob]) -> list[Any]:
        return [[dict(job.setting), _score(job, record_file)] for job in jobs]

    return {
        "winner": dict(best.setting),
        METRIC: _score(best, record_file),
        "winner of trials": dict(short.setting),
        "trials": scores(trials),
        "finals": scores(finals),
    }


def _score(job: ImageJob, record_file: RecordFile) -> float | None:
    """Return the score of a trial; None is that of a run that diverged."""
    score = record_file.require(job.describe())["values"][METRIC]
    return None if score is None else float(score)


def _cost(job: ImageJob, record_file: RecordFile) -> float:
    """Return the score, turned so that less is better; a run that diverged is the worst."""
    score = _score(job, record_file)
    if score is None:
        return math.inf
    return score if SIZES[job.experiment].lower_is_better else -score
