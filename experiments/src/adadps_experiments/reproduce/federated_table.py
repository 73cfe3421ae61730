"""The federated comparison (figure "so_fed"): twenty trials a method, the same features for all.

A trial is the mean of three runs, since cohorts of 20 make single ones differ by points. Settings
are chosen on a fifth of each user's training packages, by source package; the test packages are not
used. As in the paper, trials are not part of the epsilons.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from statistics import mean
from typing import Any

from adadps_experiments.reproduce.federated_data import DATASET, FEATURES
from adadps_experiments.reproduce.federated_runs import (
    FEDADAM,
    FEDAVG,
    INFORMED,
    LOCAL,
    SCENES,
    SERVER,
    TWO_SIDED,
    FederatedJob,
    Scene,
    Setting,
    run,
)
from adadps_experiments.reproduce.keeping import Kept, Record
from adadps_experiments.reproduce.missing import run_missing
from adadps_experiments.reproduce.rows import Row, summary

RECORDED = "recorded/federated.json"
TUNING_SEEDS = (1000, 1001, 1002)
CLIPS = (0.007, 0.02, 0.05, 0.15)
SHAPES, CLIP_OF_SHAPES = ((0.01, 0.5), (0.01, 1.0), (0.03, 0.5), (0.1, 0.5)), 0.15
"""Floor and power of A = max(f/f_max, floor)^power."""
SERVER_RATES, RATES = (0.06, 0.2, 0.6, 1.2, 2.4), (2.0, 8.0, 32.0, 128.0, 512.0)
FEDAVG_RATES = (*(2.0**power for power in range(15)), 48.0, 96.0, 192.0, 384.0, 768.0)
LABELS = {
    FEDAVG: ("DP-FedAvg", "FedAvg"),
    FEDADAM: ("DP-FedAdam", "FedAdam"),
    LOCAL: ("AdaDPS, on the device", "AdaS, on the device"),
    SERVER: ("AdaDPS, at the server", "AdaS, at the server"),
    TWO_SIDED: ("AdaDPS, on the device and after the noise", None),
}
"""What a method is called with and without privacy; two-sided, it would only have another A."""
PAPER_SAYS = "no numbers: AdaDPS about 5 points ahead of both others at a claimed epsilon of 34"


def label_of(method: str, scene: Scene) -> str | None:
    """What a method is called in a scene; None where it has no place in it."""
    return LABELS[method][0 if scene.private else 1]


def settings_of(method: str, scene: Scene) -> list[Setting]:
    """Twenty settings for each method."""
    if method in INFORMED:
        shapes = [{"floor": floor, "power": power} for floor, power in SHAPES]
        if scene.private:
            return [
                {**s, "clip": CLIP_OF_SHAPES, "length": x}
                for s, x in product(shapes, scene.lengths)
            ]
        return [{**s, "rate": x} for s, x in product(shapes, RATES)]
    if method == FEDADAM:
        own = (
            [{"clip": clip, "length": 1.0} for clip in CLIPS]  # Adam has no use for its length
            if scene.private
            else [{"rate": rate} for rate in RATES[:4]]
        )
        return [{**s, "server": x} for s, x in product(own, SERVER_RATES)]
    if scene.private:
        return [{"clip": clip, "length": x} for clip, x in product(CLIPS, scene.lengths)]
    return [{"rate": rate} for rate in FEDAVG_RATES]


def trials_of(scene: str, features: str, method: str) -> list[tuple[Setting, list[FederatedJob]]]:
    """Every setting of a line with its runs."""
    return [
        (
            setting,
            [
                FederatedJob(scene, features, method, setting, seed, tuning=True)
                for seed in TUNING_SEEDS
            ],
        )
        for setting in settings_of(method, SCENES[scene])
    ]


def lines(*, quick: bool = False) -> list[tuple[str, str, str]]:
    """Scene, features and method of each line."""
    if quick:
        return [("400 users", "paper", method) for method in (FEDAVG, FEDADAM, LOCAL)]
    return [
        line for line in product(SCENES, FEATURES, LABELS) if label_of(line[2], SCENES[line[0]])
    ]


def tune(kept: Kept, workers: int | None = None) -> Record:
    """Run the trials that are not kept yet; the winner of each line with all its trials."""
    jobs = [job for line in lines() for _, runs in trials_of(*line) for job in runs]
    run_missing(run, jobs, kept, "trials", workers)
    return {
        "protocol": __doc__,
        "datasets": {DATASET: {_key(*line): _winner(line, kept) for line in lines()}},
    }


def _winner(line: tuple[str, str, str], kept: Kept) -> Record:
    trials = [
        (
            setting,
            mean(float(kept.require(job.describe())["values"]["accuracy"]) for job in runs),
        )
        for setting, runs in trials_of(*line)
    ]
    setting, score = max(trials, key=lambda trial: trial[1])
    return {"winner": setting, "accuracy": score, "trials": [list(trial) for trial in trials]}


def run_rows(
    winners: Record,
    seeds: int,
    kept: Kept,
    workers: int | None = None,
    *,
    quick: bool = False,
    dataset: str = DATASET,
) -> tuple[list[Row], dict[tuple[str, str, str], list[Record]]]:
    """Run what is not kept yet; one row a line, and the records behind it.

    Settings are free of scale: on another data set those found on Debian's packages are used.
    """
    held = winners["datasets"][DATASET]
    jobs = {
        line: [
            FederatedJob(*line, held[_key(*line)]["winner"], seed, tuning=False, dataset=dataset)
            for seed in range(seeds)
        ]
        for line in lines(quick=quick)
    }
    run_missing(run, [job for mine in jobs.values() for job in mine], kept, "federated", workers)
    records = {line: [kept.require(job.describe()) for job in mine] for line, mine in jobs.items()}
    return [_row(line, mine) for line, mine in records.items()], records


def _row(line: tuple[str, str, str], records: Sequence[Record]) -> Row:
    scene, features, method = line
    first, given = records[0], SCENES[scene]
    facts: dict[str, Any] = {
        "experiment": "federated",
        "dataset": first["job"]["dataset"],
        "method": label_of(method, given),
        "side": "public word frequencies" if method in INFORMED else "none",
        "metric": "test accuracy",
        "epsilon_pld": first["epsilon_pld"],
        "epsilon_rdp": first["epsilon_rdp"],
        "delta": first["delta"] if first["private"] else None,
        "paper": None,
    }
    return summary(
        values=[record["values"]["accuracy"] for record in records],
        settings={
            **first["job"]["setting"],
            "scene": scene,
            "unit": "user (maintainer)",
            "features": f"{features} ({FEATURES[features]})",
            "users": first["users"],
            "cohort": given.cohort,
            "rounds": given.rounds,
            "server_momentum": given.momentum,
            "noise_multiplier": first["noise_multiplier"],
            "recall@5": [record["values"]["recall@5"] for record in records],
            "values": [record["values"]["accuracy"] for record in records],
            "paper_says": PAPER_SAYS,
        },
        **facts,
    )


def _key(scene: str, features: str, method: str) -> str:
    return f"{scene} | {features} | {method}"
