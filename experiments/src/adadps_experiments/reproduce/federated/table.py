"""The federated comparison (figure "so_fed"): trials, runs over seeds, tables and the figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from statistics import mean
from typing import Any

from adadps_experiments.plots import Panel, curves_of, draw
from adadps_experiments.reproduce.federated.data import DATASET, FEATURES
from adadps_experiments.reproduce.federated.jobs import (
    FEDADAM,
    FEDAVG,
    INFORMED,
    LOCAL,
    SCENARIOS,
    SERVER,
    TWO_SIDED,
    FederatedJob,
    FederatedScenario,
    Setting,
    run,
)
from adadps_experiments.reproduce.records import Record, RecordFile
from adadps_experiments.reproduce.results import Row, summary
from adadps_experiments.reproduce.workers import run_missing

PROTOCOL = (
    "Twenty settings for each method on the same features. A trial is the mean of three runs, "
    "because single runs with cohorts of 20 differ by points. Settings are chosen on a fifth of "
    "each user's training packages, by source package; the test packages are not used. As in the "
    "paper, trials are not part of the epsilons."
)
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
"""The label of a method with and without privacy, where two-sided only means another A."""
PAPER_SAYS = "no numbers: AdaDPS about 5 points ahead of both others at a claimed epsilon of 34"


def label_of(method: str, scene: FederatedScenario) -> str | None:
    """Return the label of a method in a scenario, or None if it is not part of it."""
    return LABELS[method][0 if scene.private else 1]


def settings_of(method: str, scene: FederatedScenario) -> list[Setting]:
    """Return the twenty settings of a method."""
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
            [{"clip": clip, "length": 1.0} for clip in CLIPS]  # Adam does not depend on the length
            if scene.private
            else [{"rate": rate} for rate in RATES[:4]]
        )
        return [{**s, "server": x} for s, x in product(own, SERVER_RATES)]
    if scene.private:
        return [{"clip": clip, "length": x} for clip, x in product(CLIPS, scene.lengths)]
    return [{"rate": rate} for rate in FEDAVG_RATES]


def trials_of(scene: str, features: str, method: str) -> list[tuple[Setting, list[FederatedJob]]]:
    """Return every setting of a line with the jobs of its runs."""
    return [
        (
            setting,
            [
                FederatedJob(scene, features, method, setting, seed, tuning=True)
                for seed in TUNING_SEEDS
            ],
        )
        for setting in settings_of(method, SCENARIOS[scene])
    ]


def lines(*, quick: bool = False) -> list[tuple[str, str, str]]:
    """Return scenario, features and method of each line."""
    if quick:
        return [("400 users", "paper", method) for method in (FEDAVG, FEDADAM, LOCAL)]
    return [
        line
        for line in product(SCENARIOS, FEATURES, LABELS)
        if label_of(line[2], SCENARIOS[line[0]])
    ]


def tune(record_file: RecordFile, workers: int | None = None) -> Record:
    """Run the trials that have no record; return the winner of each line and all its trials."""
    jobs = [job for line in lines() for _, runs in trials_of(*line) for job in runs]
    run_missing(run, jobs, record_file, "trials", workers)
    return {
        "protocol": PROTOCOL,
        "datasets": {DATASET: {_key(*line): _winner(line, record_file) for line in lines()}},
    }


def _winner(line: tuple[str, str, str], record_file: RecordFile) -> Record:
    trials = [
        (
            setting,
            mean(float(record_file.require(job.describe())["values"]["accuracy"]) for job in runs),
        )
        for setting, runs in trials_of(*line)
    ]
    setting, score = max(trials, key=lambda trial: trial[1])
    return {"winner": setting, "accuracy": score, "trials": [list(trial) for trial in trials]}


def run_rows(
    winners: Record,
    seeds: int,
    record_file: RecordFile,
    workers: int | None = None,
    *,
    quick: bool = False,
    dataset: str = DATASET,
) -> tuple[list[Row], dict[tuple[str, str, str], list[Record]]]:
    """Run the jobs that have no record; return one row per line, and the records behind it.

    Settings are scale-free: another data set uses those found on Debian's packages.
    """
    held = winners["datasets"][DATASET]
    jobs = {
        line: [
            FederatedJob(*line, held[_key(*line)]["winner"], seed, tuning=False, dataset=dataset)
            for seed in range(seeds)
        ]
        for line in lines(quick=quick)
    }
    run_missing(
        run, [job for mine in jobs.values() for job in mine], record_file, "federated", workers
    )
    records = {
        line: [record_file.require(job.describe()) for job in mine] for line, mine in jobs.items()
    }
    return [_row(line, mine) for line, mine in records.items()], records


def _row(line: tuple[str, str, str], records: Sequence[Record]) -> Row:
    scene, features, method = line
    first, given = records[0], SCENARIOS[scene]
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


COLUMNS = {
    "method": "method",
    "mean": "mean",
    "std": "std",
    "ε (PLD)": "epsilon_pld",
    "ε (RDP)": "epsilon_rdp",
    "δ": "delta",
}


def tables_of(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Return title and rows for each scenario and kind of features."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        held = row["settings"]
        title = (
            f"{row['dataset']} by user, {held['scene']} ({held['users']:,}), {held['cohort']} "
            f"per round, {held['rounds']} rounds: test accuracy, user-level ε\n{held['features']}"
        )
        found.setdefault(title, []).append(row)
    return list(found.items())


def figure_of(records: Mapping[tuple[str, str, str], Sequence[Record]]) -> bytes:
    """Draw accuracy over rounds, one panel per scenario and kind of features, as PNG."""
    panels = []
    for features in FEATURES:
        for name, scene in SCENARIOS.items():
            curves = []
            for method in LABELS:
                mine = [record["curve"] for record in records.get((name, features, method), ())]
                label = label_of(method, scene)
                if mine and label:
                    rounds = [step for step, _ in mine[0]]
                    values = [[value for _, value in curve] for curve in mine]
                    curves.append(curves_of(label, rounds, values))
            if curves:
                panels.append(Panel(f"{name}, {features}", "rounds", "test accuracy", curves))
    return draw(panels, "png", columns=min(3, len(panels)))
