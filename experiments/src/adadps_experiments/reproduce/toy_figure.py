"""`adadps reproduce toy`: tune, run over seeds, and draw the figure of the toy problem."""

from __future__ import annotations

import math
import statistics
from typing import Any

from adadps_experiments.plots import draw
from adadps_experiments.reproduce import toy
from adadps_experiments.reproduce.keeping import Kept, Record
from adadps_experiments.reproduce.rows import Row, Setting, recorded
from adadps_experiments.reproduce.sound_records import sound_toy_run
from adadps_experiments.reproduce.workers import run_all

PRIVATE_TUNING_SEEDS = range(1000, 1008)
PLAIN_TUNING_SEEDS = range(1000, 1002)
QUICK_STEPS = 4000

Call = tuple[str, Setting, int, int | None]
"""Contender, setting, seed and number of steps of one run."""


def reproduce(
    seeds: int, *, quick: bool, kept: Kept, workers: int | None = None
) -> tuple[list[Row], bytes]:
    """Rows of the table and the figure, with the recorded settings.

    ``quick`` shortens the runs without privacy to 4,000 iterations.
    """
    winners = recorded("toy")
    calls: dict[str, list[Call]] = {
        contender.name: [
            (contender.name, winners[contender.name], seed, _steps(contender, quick))
            for seed in range(seeds)
        ]
        for contender in toy.CONTENDERS
    }
    found = {
        name: _records(mine, kept, f"toy problem: {name}", workers) for name, mine in calls.items()
    }
    rows = [
        toy.row(contender, winners[contender.name], found[contender.name])
        for contender in toy.CONTENDERS
    ]
    return rows, draw(toy.panels(found), "png")


def tune(kept: Kept, workers: int | None = None) -> dict[str, Any]:
    """Try every grid on data of seeds that are not reported; the lowest final loss wins."""
    calls: list[Call] = [
        (contender.name, setting, seed, None)
        for contender in toy.CONTENDERS
        for setting in toy.GRIDS[contender.name]
        for seed in (PRIVATE_TUNING_SEEDS if contender.private else PLAIN_TUNING_SEEDS)
    ]
    losses: dict[str, dict[int, list[float]]] = {}
    records = _records(calls, kept, "tuning the toy problem", workers)
    for (name, setting, *_), record in zip(calls, records, strict=True):
        index = toy.GRIDS[name].index(setting)
        loss = math.inf if record["loss"] is None else record["loss"]
        losses.setdefault(name, {}).setdefault(index, []).append(loss)
    contenders = {}
    for name, trials in losses.items():
        means = {index: statistics.fmean(values) for index, values in trials.items()}
        finite = {index: mean for index, mean in means.items() if math.isfinite(mean)}
        contenders[name] = {
            "winner": toy.GRIDS[name][min(finite, key=finite.__getitem__)],
            "trials": [
                {"setting": setting, "loss": finite.get(index)}
                for index, setting in enumerate(toy.GRIDS[name])
            ],
        }
    return {
        "command": "adadps reproduce toy --tune",
        "tuned_on": "final training loss on synthetic data: eight seeds with privacy, where the "
        "noise is larger, and two without; none of them is among the reported ones",
        "contenders": contenders,
    }


def _records(calls: list[Call], kept: Kept, label: str, workers: int | None) -> list[Record]:
    """Run what is not kept yet; the records of all calls."""
    jobs = [_job(*call) for call in calls]
    left = [call for call, job in zip(calls, jobs, strict=True) if kept.find(job) is None]
    run_all(toy.record_of, left, label, done=kept.add, most=workers)
    return [sound_toy_run(kept, job) for job in jobs]


def _job(name: str, setting: Setting, seed: int, steps: int | None) -> Record:
    return toy.job_of(toy.contender_named(name), setting, seed, steps)


def _steps(contender: toy.Contender, quick: bool) -> int | None:
    return QUICK_STEPS if quick and not contender.private else None
