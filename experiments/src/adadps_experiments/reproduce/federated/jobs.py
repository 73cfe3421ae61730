"""One run of the federated comparison: a job as plain data, and the record that it leaves.

Settings are scale-free: ``length`` is how far an output moves in a round if all users agree,
``clip`` the clip norm of a user's update relative to the norm of a typical row, ``rate`` the
learning rate on the device in the same units.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from adadps.accounting.epsilon import Budget, calibrate_noise, epsilon_of_run
from adadps.accounting.events import without_delta_warning
from adadps.accounting.samplers import poisson
from adadps.data.sparse_rows import sparse_linear
from adadps.methods.side import frequency
from adadps.methods.side.source import Fixed
from adadps.methods.stages import (
    Chain,
    adam,
    average,
    by_user,
    chain,
    momentum,
    precondition,
    privatize,
    sgd,
    train_locally,
)
from adadps.training.evaluation import on_held_out
from adadps.training.fit import fit
from adadps.types import Accountant
from adadps_experiments.reproduce.federated.data import DATASET, FederatedTexts, federation
from adadps_experiments.reproduce.records import Record
from adadps_experiments.reproduce.text.corpus import Array

LOCAL_BATCH, MOST_ROWS, POINTS = 100, 1000, 11
VERSION = 2
"""Increase it when the code behind a job changes, so that older records are not reused."""
Setting = dict[str, float]


@dataclass(frozen=True)
class FederatedScenario:
    """The users, cohort and rounds, and a noise multiplier or an epsilon; no privacy without."""

    name: str
    cohort: int
    rounds: int
    users: int | None = None
    """The number of users, those with the most packages; all if None."""
    noise_multiplier: float | None = None
    epsilon: float | None = None
    delta: float | None = None
    momentum: float = 0.0
    lengths: tuple[float, ...] = (3.0, 5.0, 8.0, 13.0, 21.0)
    """The grid of ``length``, with larger values where a round has less noise."""

    @property
    def private(self) -> bool:
        """Tell whether there is noise."""
        return self.noise_multiplier is not None or self.epsilon is not None


PUBLISHED = FederatedScenario("400 users", 20, 33, users=400, noise_multiplier=0.3, delta=1 / 400)
WITHOUT_NOISE = FederatedScenario("400 users, no privacy", 20, 33, users=400, momentum=0.9)
EVERYBODY = FederatedScenario(
    "all users", 80, 25, epsilon=8.0, lengths=(5.0, 8.0, 13.0, 21.0, 34.0)
)
SCENARIOS = {scene.name: scene for scene in (PUBLISHED, EVERYBODY, WITHOUT_NOISE)}

FEDAVG, FEDADAM, LOCAL, SERVER = "fedavg", "fedadam", "adadps-local", "adadps-server"
TWO_SIDED = "adadps-two-sided"
INFORMED = (LOCAL, SERVER, TWO_SIDED)


@dataclass(frozen=True)
class FederatedJob:
    """One run of a method with a setting in a scenario."""

    scene: str
    features: str
    method: str
    setting: Setting
    seed: int
    tuning: bool
    dataset: str = DATASET

    def describe(self) -> Record:
        """Return the job as it is recorded."""
        scene = SCENARIOS[self.scene]
        return {
            "experiment": "federated",
            "version": VERSION,
            "dataset": self.dataset,
            "scene": self.scene,
            "users": scene.users,
            "cohort": scene.cohort,
            "rounds": scene.rounds,
            "noise_multiplier": scene.noise_multiplier,
            "epsilon": scene.epsilon,
            "features": self.features,
            "method": self.method,
            "setting": dict(self.setting),
            "split": "validation" if self.tuning else "test",
            "seed": self.seed,
        }


def run(job: FederatedJob) -> Record:
    """Train, and evaluate on held-out packages of the same users."""
    start = time.perf_counter()
    scene = SCENARIOS[job.scene]
    given = federation(job.dataset, scene.users, job.features, job.tuning)
    sampler = poisson(users=given.users, expected_size=scene.cohort)
    delta = scene.delta or 1 / (10 * given.users)
    sigma = _sigma(scene, given.users, delta)
    method = build(job.method, job.setting, given, sigma, scene.momentum)
    model = sparse_linear(given.typical.shape[1], given.corpus.classes, bias=False)
    torch.nn.init.zeros_(model.weight)
    shown = on_held_out(
        "held-out packages of the same users",
        given.test.features,
        given.test.targets,
        every=None if job.tuning else max(1, scene.rounds // POINTS),
        **given.corpus.metrics,
    )
    with without_delta_warning():
        result = fit(
            model,
            given.corpus.loss,
            given.train,
            method=method,
            sampler=sampler,
            steps=scene.rounds,
            delta=delta,
            evaluate=[shown],
            progress=False,
            assumed_public=["which users take part"],
        )
    private = result.privacy.private
    return {
        "job": job.describe(),
        "values": {name: result.last(name) for name in given.corpus.metrics},
        "curve": [
            [entry.step, entry.value] for entry in result.history if entry.metric == "accuracy"
        ],
        "users": given.users,
        "rows": len(given.train),
        "delta": delta,
        "noise_multiplier": sigma if scene.private else None,
        "private": private,
        "epsilon_pld": result.privacy.epsilon if private else None,
        "epsilon_rdp": epsilon_of_run(
            method, sampler, scene.rounds, delta=delta, accountant=Accountant.RDP
        )
        if private
        else None,
        "chain": result.method,
        "seconds": round(time.perf_counter() - start, 1),
    }


def build(
    method: str, setting: Setting, given: FederatedTexts, sigma: float, server_momentum: float
) -> Chain:
    """Return the chain of a method, or its counterpart without privacy if ``sigma`` is 0."""
    side, a = None, None
    if method in INFORMED:
        side, a = _informed(given, setting)
    plain, scaled = given.norm(), given.norm(a)
    if sigma:
        clip_norm = setting["length"] / (scaled if method == TWO_SIDED else plain)
        rate = clip_norm / (setting["clip"] * scaled)
        release: Any = privatize(
            clip_norm=clip_norm, noise_multiplier=sigma, groups=by_user(most=MOST_ROWS)
        )
    else:
        rate = setting["rate"] / (plain * scaled)
        release = average(groups=by_user(most=MOST_ROWS))
    local = train_locally(
        lr=rate, batch_size=LOCAL_BATCH, side=side if method in (LOCAL, TWO_SIDED) else None
    )
    before = [precondition(side)] if method == SERVER and side is not None else []
    if method == FEDADAM:
        return chain(local, release, adam(setting["server"]))
    after: list[Any] = [momentum(server_momentum)] if server_momentum else []
    if method == TWO_SIDED and side is not None:
        after.append(precondition(side))
    return chain(local, *before, release, *after, sgd(1.0))


def _informed(given: FederatedTexts, setting: Setting) -> tuple[Fixed, Array]:
    side = frequency(given.corpus.frequencies, floor=setting["floor"], power=setting["power"])
    entry = side.named["weight"]
    values = entry[0] if isinstance(entry, tuple) else entry
    return side, values.double().numpy()


@lru_cache
def _sigma(scene: FederatedScenario, users: int, delta: float) -> float:
    if scene.epsilon is None:
        return scene.noise_multiplier or 0.0
    sampler = poisson(users=users, expected_size=scene.cohort)
    return calibrate_noise(
        sampler, scene.rounds, budget=Budget(scene.epsilon, delta), accountant=Accountant.PLD
    )
