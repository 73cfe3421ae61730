"""The table and the figure of the toy problem: tuning, runs over seeds, rows and panels."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from adadps.accounting.epsilon import epsilon_of_run
from adadps.types import Accountant
from adadps_experiments.plots import Panel, curves_of, draw
from adadps_experiments.reproduce.records import Record, RecordFile, valid_toy_run
from adadps_experiments.reproduce.results import Row, Setting, recorded_settings, summary
from adadps_experiments.reproduce.toy.problem import (
    BATCH,
    DELTA,
    GRIDS,
    SAMPLER,
    SIGMA,
    TOY_METHODS,
    ToyMethod,
    job_of,
    method_named,
    record_of,
)
from adadps_experiments.reproduce.workers import run_all

PUBLISHED_CODE = {"dp-sgd": 1.97, "adadps": 1.17}


def row(method: ToyMethod, setting: Setting, records: Sequence[Record]) -> Row:
    """Return the row of one method."""
    epsilons = {
        accountant: epsilon_of_run(
            method.build(setting),
            SAMPLER,
            method.steps,
            delta=DELTA,
            accountant=accountant,
        )
        for accountant in Accountant
    }
    return summary(
        experiment="toy",
        dataset="toy regression",
        method=method.name,
        side=method.side,
        metric="training loss",
        values=[_number(record["loss"]) for record in records],
        epsilon_pld=epsilons[Accountant.PLD],
        epsilon_rdp=epsilons[Accountant.RDP],
        delta=DELTA if method.private else None,
        paper=PUBLISHED_CODE.get(method.name),
        settings={
            **setting,
            "steps": records[0]["job"]["steps"],
            "expected_batch_size": BATCH,
            "noise_multiplier": SIGMA if method.private else 0.0,
            "paper_value_is": "the published code's result; the figure has no numbers",
        },
    )


def panels(records: dict[str, list[Record]]) -> list[Panel]:
    """Return the two panels of the figure, with error bands over the runs."""
    drawn = []
    for private, title in ((False, "without privacy"), (True, "private")):
        curves = []
        for method in TOY_METHODS:
            if method.private is private and records.get(method.name):
                mine = [record["curve"] for record in records[method.name]]
                steps = [step for step, _ in mine[0]]
                values = [[_number(value) for _, value in curve] for curve in mine]
                curves.append(curves_of(method.name, steps, values))
        drawn.append(Panel(title, "iterations", "training loss", curves, log_y=True))
    return drawn


def _number(value: float | None) -> float:
    return math.nan if value is None else value


PRIVATE_TUNING_SEEDS = range(1000, 1008)
PLAIN_TUNING_SEEDS = range(1000, 1002)
QUICK_STEPS = 4000

Call = tuple[str, Setting, int, int | None]
"""Method, setting, seed and number of steps of one run."""


def reproduce(
    seeds: int, *, quick: bool, record_file: RecordFile, workers: int | None = None
) -> tuple[list[Row], bytes]:
    """Run what has no record yet; return the rows of the table, and the figure as PNG.

    ``quick`` shortens the runs without privacy to 4,000 iterations.
    """
    winners = recorded_settings("toy")
    calls: dict[str, list[Call]] = {
        method.name: [
            (method.name, winners[method.name], seed, _steps(method, quick))
            for seed in range(seeds)
        ]
        for method in TOY_METHODS
    }
    found = {
        name: _records(mine, record_file, f"toy problem: {name}", workers)
        for name, mine in calls.items()
    }
    rows = [row(method, winners[method.name], found[method.name]) for method in TOY_METHODS]
    return rows, draw(panels(found), "png")


def tune(record_file: RecordFile, workers: int | None = None) -> dict[str, Any]:
    """Try every setting on data of seeds that are not reported; the lowest final loss wins."""
    calls: list[Call] = [
        (method.name, setting, seed, None)
        for method in TOY_METHODS
        for setting in GRIDS[method.name]
        for seed in (PRIVATE_TUNING_SEEDS if method.private else PLAIN_TUNING_SEEDS)
    ]
    losses: dict[str, dict[int, list[float]]] = {}
    records = _records(calls, record_file, "tuning the toy problem", workers)
    for (name, setting, *_), record in zip(calls, records, strict=True):
        index = GRIDS[name].index(setting)
        loss = math.inf if record["loss"] is None else record["loss"]
        losses.setdefault(name, {}).setdefault(index, []).append(loss)
    found = {}
    for name, trials in losses.items():
        means = {index: statistics.fmean(values) for index, values in trials.items()}
        finite = {index: mean for index, mean in means.items() if math.isfinite(mean)}
        found[name] = {
            "winner": GRIDS[name][min(finite, key=finite.__getitem__)],
            "trials": [
                {"setting": setting, "loss": finite.get(index)}
                for index, setting in enumerate(GRIDS[name])
            ],
        }
    return {
        "command": "adadps reproduce toy --tune",
        "tuned_on": "final training loss on synthetic data: eight seeds with privacy, where the "
        "noise is larger, and two without; none of them is among the reported ones",
        "contenders": found,
    }


def _records(
    calls: list[Call], record_file: RecordFile, label: str, workers: int | None
) -> list[Record]:
    """Run the calls that have no record; return the records of all."""
    jobs = [_job(*call) for call in calls]
    left = [call for call, job in zip(calls, jobs, strict=True) if record_file.find(job) is None]
    run_all(record_of, left, label, done=record_file.add, most=workers)
    return [valid_toy_run(record_file, job) for job in jobs]


def _job(name: str, setting: Setting, seed: int, steps: int | None) -> Record:
    return job_of(method_named(name), setting, seed, steps)


def _steps(method: ToyMethod, quick: bool) -> int | None:
    return QUICK_STEPS if quick and not method.private else None
