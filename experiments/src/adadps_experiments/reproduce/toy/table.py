"""The toy problem of the paper (figure "toy"): linear regression with frequent and rare features.

1,000 examples with 500 binary features: the first 50 are on in 90 % of the examples and carry
little (w = 0.01), the other 450 in 1 % and carry much (w = 1). Side information is the knowledge of
which features are frequent: A = 1 for those, 0.01 for the rest. Left panel: SGD and AdaS without
privacy. Right panel: DP-SGD and AdaDPS at the same epsilon.

The loss shown is the *training* loss, as in the paper; the data is synthetic, hence public. The
paper's N(0, 0.01) for the label noise is read as a standard deviation of 0.01; read as a variance,
both methods without privacy end at the noise floor of 0.0025 (docs/decisions/toy-label-noise.md).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from adadps.accounting.epsilon import epsilon_of_run
from adadps.types import Accountant
from adadps_experiments.plots import Panel, curves_of, draw
from adadps_experiments.reproduce.records import Record, RecordFile, sound_toy_run
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


def row(contender: ToyMethod, setting: Setting, records: Sequence[Record]) -> Row:
    """One row of the table."""
    epsilons = {
        accountant: epsilon_of_run(
            contender.build(setting),
            SAMPLER,
            contender.steps,
            delta=DELTA,
            accountant=accountant,
        )
        for accountant in Accountant
    }
    return summary(
        experiment="toy",
        dataset="toy regression",
        method=contender.name,
        side=contender.side,
        metric="training loss",
        values=[_number(record["loss"]) for record in records],
        epsilon_pld=epsilons[Accountant.PLD],
        epsilon_rdp=epsilons[Accountant.RDP],
        delta=DELTA if contender.private else None,
        paper=PUBLISHED_CODE.get(contender.name),
        settings={
            **setting,
            "steps": records[0]["job"]["steps"],
            "expected_batch_size": BATCH,
            "noise_multiplier": SIGMA if contender.private else 0.0,
            "paper_value_is": "the published code's result; the figure has no numbers",
        },
    )


def panels(records: dict[str, list[Record]]) -> list[Panel]:
    """The two panels of the figure, with error bands over the runs."""
    drawn = []
    for private, title in ((False, "without privacy"), (True, "private")):
        curves = []
        for contender in TOY_METHODS:
            if contender.private is private and records.get(contender.name):
                mine = [record["curve"] for record in records[contender.name]]
                steps = [step for step, _ in mine[0]]
                values = [[_number(value) for _, value in curve] for curve in mine]
                curves.append(curves_of(contender.name, steps, values))
        drawn.append(Panel(title, "iterations", "training loss", curves, log_y=True))
    return drawn


def _number(value: float | None) -> float:
    return math.nan if value is None else value


PRIVATE_TUNING_SEEDS = range(1000, 1008)
PLAIN_TUNING_SEEDS = range(1000, 1002)
QUICK_STEPS = 4000

Call = tuple[str, Setting, int, int | None]
"""Contender, setting, seed and number of steps of one run."""


def reproduce(
    seeds: int, *, quick: bool, kept: RecordFile, workers: int | None = None
) -> tuple[list[Row], bytes]:
    """Rows of the table and the figure, with the recorded settings.

    ``quick`` shortens the runs without privacy to 4,000 iterations.
    """
    winners = recorded_settings("toy")
    calls: dict[str, list[Call]] = {
        contender.name: [
            (contender.name, winners[contender.name], seed, _steps(contender, quick))
            for seed in range(seeds)
        ]
        for contender in TOY_METHODS
    }
    found = {
        name: _records(mine, kept, f"toy problem: {name}", workers) for name, mine in calls.items()
    }
    rows = [
        row(contender, winners[contender.name], found[contender.name]) for contender in TOY_METHODS
    ]
    return rows, draw(panels(found), "png")


def tune(kept: RecordFile, workers: int | None = None) -> dict[str, Any]:
    """Try every grid on data of seeds that are not reported; the lowest final loss wins."""
    calls: list[Call] = [
        (contender.name, setting, seed, None)
        for contender in TOY_METHODS
        for setting in GRIDS[contender.name]
        for seed in (PRIVATE_TUNING_SEEDS if contender.private else PLAIN_TUNING_SEEDS)
    ]
    losses: dict[str, dict[int, list[float]]] = {}
    records = _records(calls, kept, "tuning the toy problem", workers)
    for (name, setting, *_), record in zip(calls, records, strict=True):
        index = GRIDS[name].index(setting)
        loss = math.inf if record["loss"] is None else record["loss"]
        losses.setdefault(name, {}).setdefault(index, []).append(loss)
    contenders = {}
    for name, trials in losses.items():
        means = {index: statistics.fmean(values) for index, values in trials.items()}
        finite = {index: mean for index, mean in means.items() if math.isfinite(mean)}
        contenders[name] = {
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
        "contenders": contenders,
    }


def _records(calls: list[Call], kept: RecordFile, label: str, workers: int | None) -> list[Record]:
    """Run what is not kept yet; the records of all calls."""
    jobs = [_job(*call) for call in calls]
    left = [call for call, job in zip(calls, jobs, strict=True) if kept.find(job) is None]
    run_all(record_of, left, label, done=kept.add, most=workers)
    return [sound_toy_run(kept, job) for job in jobs]


def _job(name: str, setting: Setting, seed: int, steps: int | None) -> Record:
    return job_of(method_named(name), setting, seed, steps)


def _steps(contender: ToyMethod, quick: bool) -> int | None:
    return QUICK_STEPS if quick and not contender.private else None
