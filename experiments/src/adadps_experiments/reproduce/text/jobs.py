"""One run of a text experiment: a job as plain data, and the record that it leaves.

A job describes everything the run depends on except randomness: that description is the key under
which its record is found.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from adadps.accounting.epsilon import Budget, calibrate_noise, epsilon_of_run
from adadps.accounting.events import without_delta_warning
from adadps.accounting.samplers import Sampler, poisson
from adadps.training.evaluation import on_held_out
from adadps.training.fit import fit
from adadps.types import Accountant
from adadps_experiments.reproduce.records import Record
from adadps_experiments.reproduce.results import Setting
from adadps_experiments.reproduce.text.corpora import corpus
from adadps_experiments.reproduce.text.corpus import Corpus
from adadps_experiments.reproduce.text.methods import TEXT_METHODS, TextMethod
from adadps_experiments.reproduce.text.problem import (
    ONE_PERCENT,
    PublicSource,
    TextProblem,
    problem,
    zero_model,
)
from adadps_experiments.reproduce.text.recipes import Recipe

POINTS = 10
VERSION = 1
"""Increase it when the code behind a job changes, so that older records are not reused."""


@dataclass(frozen=True)
class TrainingSize:
    """How long a problem is trained, on how many words, and its delta."""

    words: int
    batch: int
    steps: int
    tuning_steps: int
    delta: float
    lengths: tuple[float, ...]
    """The grid of ``length`` for steps along clipped gradients."""
    tuned_at: float
    """The epsilon at which settings are chosen."""
    narrow: int | None = None
    """The number of words while tuning, those of the tags first; all if None."""


TITLES = TrainingSize(10_000, 1024, 400, 200, 1 / 30_000, (1.0, 3.0, 8.0, 20.0), 3.0, narrow=4000)
SIZES = {
    "imdb": TrainingSize(10_000, 1024, 960, 480, 1 / 25_000, (0.5, 1.5, 4.0, 10.0), 1.5),
    "imdb-private-words": TrainingSize(
        10_000, 1024, 960, 480, 1 / 25_000, (0.5, 1.5, 4.0, 10.0), 1.5
    ),
    "debian-tags": TrainingSize(2_000, 2048, 200, 100, 1 / 30_300, (1.0, 3.0, 8.0, 20.0), 3.0),
    "stackoverflow": TrainingSize(10_000, 4096, 1500, 750, 1 / 246_092, (1.0, 3.0, 8.0, 20.0), 3.0),
    "so-titles": TITLES,
    "so-titles-general-words": TITLES,
}


@dataclass(frozen=True)
class TextJob:
    """One run of a method with a setting on a problem."""

    dataset: str
    recipe: Recipe
    method: str
    setting: Setting
    epsilon: float
    seed: int
    public: PublicSource = ONE_PERCENT
    tuning: bool = False

    @property
    def text_method(self) -> TextMethod:
        """Return the method itself."""
        return TEXT_METHODS[self.method]

    @property
    def steps(self) -> int:
        """Return the number of steps, which is smaller while tuning."""
        size = SIZES[self.dataset]
        return size.tuning_steps if self.tuning else size.steps

    @property
    def words(self) -> int:
        """Return the size of the vocabulary."""
        size = SIZES[self.dataset]
        return size.narrow if self.tuning and size.narrow else size.words

    def describe(self) -> Record:
        """Return the job as it is recorded."""
        size = SIZES[self.dataset]
        return {
            "version": VERSION,
            "dataset": self.dataset,
            "features": str(self.recipe),
            "words": self.words,
            "method": self.method,
            "setting": dict(self.setting),
            "epsilon": self.epsilon if self.text_method.private else None,
            "delta": size.delta,
            "batch": size.batch,
            "steps": self.steps,
            "public": str(self.public) if self.text_method.uses_public else None,
            "split": "validation" if self.tuning else "test",
            "seed": self.seed,
        }


def run(job: TextJob) -> Record:
    """Train, and evaluate on the test texts, or on those held out for tuning."""
    start = time.perf_counter()
    given, method, size = _problem(job), job.text_method, SIZES[job.dataset]
    data = given.public.examples if method.only_public else given.train
    sampler = poisson(examples=len(data), expected_size=min(size.batch, len(data)))
    sigma = _noise(sampler, job) if method.private else 0.0
    chain = method.build(job.setting, given, sigma, job.steps)
    shown = on_held_out(
        "validation texts" if job.tuning else "test texts",
        given.test.features,
        given.test.targets,
        every=None if job.tuning else max(1, job.steps // POINTS),
        **given.corpus.metrics,
    )
    with without_delta_warning():
        result = fit(
            zero_model(given),
            given.corpus.loss,
            data,
            method=chain,
            sampler=sampler,
            steps=job.steps,
            delta=size.delta,
            evaluate=[shown],
            progress=False,
        )
    private = result.privacy.private and not given.corpus.private_words
    values = {name: result.last(name) for name in given.corpus.metrics}
    return {
        "job": job.describe(),
        "values": values,
        "curve": [
            [entry.step, entry.value] for entry in result.history if entry.metric == "accuracy"
        ],
        "examples": len(data),
        "noise_multiplier": sigma,
        "clip_norm": result.privacy.clip_norm if method.private else None,
        "private": private,
        "epsilon_pld": result.privacy.epsilon if private else None,
        "epsilon_rdp": _epsilon_by_rdp(chain, sampler, job) if private else None,
        "chain": result.method,
        "seconds": round(time.perf_counter() - start, 1),
    }


@lru_cache(maxsize=4)
def _problem_of(
    dataset: str, recipe: Recipe, public: PublicSource, seed: int, tuning: bool
) -> TextProblem:
    held = corpus(dataset)
    if tuning:
        held = _for_tuning(dataset)
    return problem(held, recipe, public, seed)


def _problem(job: TextJob) -> TextProblem:
    return _problem_of(job.dataset, job.recipe, job.public, job.seed, job.tuning)


@lru_cache(maxsize=4)
def _for_tuning(dataset: str) -> Corpus:
    held, narrow = corpus(dataset).for_tuning(), SIZES[dataset].narrow
    return held if narrow is None else held.narrowed(narrow)


@lru_cache
def _sigma(examples: int, batch: float, steps: int, epsilon: float, delta: float) -> float:
    sampler = poisson(examples=examples, expected_size=batch)
    return calibrate_noise(sampler, steps, budget=Budget(epsilon, delta), accountant=Accountant.PLD)


def _noise(sampler: Sampler, job: TextJob) -> float:
    delta = SIZES[job.dataset].delta
    return _sigma(sampler.examples, sampler.expected_size, job.steps, job.epsilon, delta)


def _epsilon_by_rdp(chain: Any, sampler: Sampler, job: TextJob) -> float:
    delta = SIZES[job.dataset].delta
    return epsilon_of_run(chain, sampler, job.steps, delta=delta, accountant=Accountant.RDP)
