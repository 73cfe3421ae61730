"""One run of the federated comparison: a job that is plain data, and its record.

Debian's packages by maintainer, tags to be predicted; a maintainer's packages are split into
training and test by source package. (Stack Overflow's posts by user, where its files are.)

Settings are free of scale: ``length`` is how far an output moves in a round if all users agree,
``clip`` the norm at which a user's update is clipped, relative to that of a typical row, ``rate``
the learning rate on the device in the same units.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from scipy import sparse

from adadps.accounting import Budget, calibrate_noise, epsilon_of_run
from adadps.data.examples import Examples, examples
from adadps.evaluation import on_held_out
from adadps.layout import sparse_linear
from adadps.reproduce.corpora import corpus
from adadps.reproduce.keeping import Record
from adadps.reproduce.labelled import Array, Corpus, Labelled
from adadps.reproduce.problem import Features, typical_counts
from adadps.reproduce.recipes import PAPER, Recipe
from adadps.sampling import poisson
from adadps.side import frequency
from adadps.side.fixed import Fixed
from adadps.stages import (
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
from adadps.training import fit
from adadps.types import Accountant
from adadps.typical_texts import median_norm

DATASET, PUBLISHED_DATASET = "debian-tags", "stackoverflow"
"""Debian's packages come with adadps; the paper's posts are used where their files are."""
LOCAL_BATCH, MOST_ROWS, POINTS = 100, 1000, 11
VERSION = 1
"""Raise it when what is behind a job changes; records of older versions are run again."""
FEATURES = {"paper": PAPER, "best for DP-SGD": Recipe(dampened=True, power=1.0)}
"""The second is what DP-SGD was best with on these texts (`recorded/text.json`)."""

Setting = dict[str, float]


@dataclass(frozen=True)
class Scene:
    """Who takes part, how many a round, and what it may cost; with neither, no privacy."""

    name: str
    cohort: int
    rounds: int
    users: int | None = None
    """The users with the most packages; None: everybody."""
    noise_multiplier: float | None = None
    epsilon: float | None = None
    delta: float | None = None
    momentum: float = 0.0

    @property
    def private(self) -> bool:
        """Is there noise?"""
        return self.noise_multiplier is not None or self.epsilon is not None


PUBLISHED = Scene("400 users", 20, 33, users=400, noise_multiplier=0.3, delta=1 / 400)
WITHOUT_NOISE = Scene("400 users, no privacy", 20, 33, users=400, momentum=0.9)
EVERYBODY = Scene("all users", 80, 25, epsilon=8.0)
SCENES = {scene.name: scene for scene in (PUBLISHED, EVERYBODY, WITHOUT_NOISE)}

FEDAVG, FEDADAM, LOCAL, SERVER = "fedavg", "fedadam", "adadps-local", "adadps-server"


@dataclass(frozen=True)
class FederatedJob:
    """A method with a setting in a scene, once."""

    scene: str
    features: str
    method: str
    setting: Setting
    seed: int
    tuning: bool
    dataset: str = DATASET

    def describe(self) -> Record:
        """The job as it is kept."""
        scene = SCENES[self.scene]
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


@dataclass(frozen=True)
class Federation:
    """Users with their rows, held-out rows of the same users, and public scales."""

    corpus: Corpus
    train: Examples
    test: Examples
    users: int
    typical: sparse.csr_matrix

    def norm(self, a: Array | None = None) -> float:
        """Of a typical row, or of x / A, over rows that are made of public frequencies."""
        return median_norm(self.typical, a)


def run(job: FederatedJob) -> Record:
    """Train, and measure on packages of the same users that were held out."""
    start = time.perf_counter()
    scene = SCENES[job.scene]
    given = _federation(job.dataset, scene.users, job.features, job.tuning)
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
    method: str, setting: Setting, given: Federation, sigma: float, server_momentum: float
) -> Chain:
    """The chain of a method; without noise, its twin."""
    side, a = None, None
    if method in (LOCAL, SERVER):
        side, a = _informed(given, setting)
    plain, scaled = given.norm(), given.norm(a)
    if sigma:
        clip_norm = setting["length"] / plain
        rate = clip_norm / (setting["clip"] * scaled)
        release: Any = privatize(
            clip_norm=clip_norm, noise_multiplier=sigma, groups=by_user(most=MOST_ROWS)
        )
    else:
        rate = setting["rate"] / (plain * scaled)
        release = average(groups=by_user(most=MOST_ROWS))
    local = train_locally(lr=rate, batch_size=LOCAL_BATCH, side=side if method == LOCAL else None)
    before = [precondition(side)] if method == SERVER and side is not None else []
    if method == FEDADAM:
        return chain(local, release, adam(setting["server"]))
    after = [momentum(server_momentum)] if server_momentum else []
    return chain(local, *before, release, *after, sgd(1.0))


def _informed(given: Federation, setting: Setting) -> tuple[Fixed, Array]:
    side = frequency(given.corpus.frequencies, floor=setting["floor"], power=setting["power"])
    entry = side.named["weight"]
    values = entry[0] if isinstance(entry, tuple) else entry
    return side, values.double().numpy()


@lru_cache(maxsize=4)
def _federation(dataset: str, users: int | None, features: str, tuning: bool) -> Federation:
    """The same users whether settings are tuned or not."""
    whole = corpus(dataset)
    chosen = _chosen(whole.train, users)
    held = whole.for_tuning() if tuning else whole
    train = held.train.take(np.isin(_users(held.train), chosen))
    test = held.test.take(np.isin(_users(held.test), np.unique(_users(train))))
    made = Features(held, FEATURES[features])
    return Federation(
        corpus=held,
        train=examples(made.rows(train.counts), train.targets, users=train.users),
        test=examples(made.rows(test.counts), test.targets),
        users=len(np.unique(_users(train))),
        typical=made.rows(typical_counts(held)),
    )


def _chosen(train: Labelled, users: int | None) -> Array:
    numbers, sizes = np.unique(_users(train), return_counts=True)
    found: Array = numbers[np.argsort(-sizes, kind="stable")]
    return found if users is None else found[:users]


def _users(labelled: Labelled) -> Array:
    assert labelled.users is not None  # packages have maintainers
    return labelled.users


@lru_cache
def _sigma(scene: Scene, users: int, delta: float) -> float:
    if scene.epsilon is None:
        return scene.noise_multiplier or 0.0
    sampler = poisson(users=users, expected_size=scene.cohort)
    return calibrate_noise(
        sampler, scene.rounds, budget=Budget(scene.epsilon, delta), accountant=Accountant.PLD
    )
