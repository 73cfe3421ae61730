"""`adadps reproduce toy`: tune, run over seeds, and draw the figure of the toy problem."""

from __future__ import annotations

import math
import statistics
from typing import Any

from adadps.report.plots import draw
from adadps.reproduce import toy
from adadps.reproduce.rows import Row, Setting, recorded
from adadps.reproduce.workers import run_all
from adadps.result import Result

PRIVATE_TUNING_SEEDS = range(1000, 1008)
PLAIN_TUNING_SEEDS = range(1000, 1002)
QUICK_STEPS = 4000


def reproduce(seeds: int, *, quick: bool) -> tuple[list[Row], bytes]:
    """Rows of the table and the figure, with the recorded settings.

    ``quick`` shortens the runs without privacy to 4,000 iterations.
    """
    winners = recorded("toy")
    jobs = [
        (contender.name, winners[contender.name], seed, _steps(contender, quick))
        for contender in toy.CONTENDERS
        for seed in range(seeds)
    ]
    found = run_all(_run, jobs, "toy problem")
    results: dict[str, list[Result]] = {}
    for (name, *_), result in zip(jobs, found, strict=True):
        results.setdefault(name, []).append(result)
    rows = [
        toy.row(contender, winners[contender.name], results[contender.name])
        for contender in toy.CONTENDERS
    ]
    return rows, draw(toy.panels(results), "png")


def tune() -> dict[str, Any]:
    """Try every grid on data of seeds that are not reported; the lowest final loss wins."""
    jobs = [
        (contender.name, setting, seed, None)
        for contender in toy.CONTENDERS
        for setting in toy.GRIDS[contender.name]
        for seed in (PRIVATE_TUNING_SEEDS if contender.private else PLAIN_TUNING_SEEDS)
    ]
    found = run_all(_final_loss, jobs, "tuning the toy problem")
    losses: dict[str, dict[int, list[float]]] = {}
    for (name, setting, *_), loss in zip(jobs, found, strict=True):
        index = toy.GRIDS[name].index(setting)
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


def _steps(contender: toy.Contender, quick: bool) -> int | None:
    return QUICK_STEPS if quick and not contender.private else None


def _run(name: str, setting: Setting, seed: int, steps: int | None) -> Result:
    contender = next(contender for contender in toy.CONTENDERS if contender.name == name)
    return toy.run(contender, setting, seed, steps)


def _final_loss(name: str, setting: Setting, seed: int, steps: int | None) -> float:
    return _run(name, setting, seed, steps).last("loss")
