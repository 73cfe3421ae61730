"""One run of an LSTM: a job as plain data, and the record that it leaves."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import lru_cache

from adadps.accounting.epsilon import Budget, calibrate_noise, epsilon_of_run
from adadps.accounting.events import without_delta_warning
from adadps.accounting.samplers import poisson
from adadps.training.evaluation import on_held_out
from adadps.training.fit import fit
from adadps.types import Accountant
from adadps_experiments.reproduce.images.methods import PUBLIC_BATCH, PUBLIC_EPOCHS, Given
from adadps_experiments.reproduce.lstm.methods import LSTM_METHODS, Longer, LstmMethod
from adadps_experiments.reproduce.lstm.problems import DELTA, SIZES, LstmProblem, problem
from adadps_experiments.reproduce.records import Record
from adadps_experiments.reproduce.results import Setting

VERSION = 1
"""Increase it when the code behind a job changes, so that older records are not reused."""
POINTS = 2
METRIC = "accuracy"


@dataclass(frozen=True)
class LstmJob:
    """One run of a method with a setting."""

    experiment: str
    method: str
    setting: Setting
    seed: int
    tuning: bool = False
    epochs: float | None = None
    """Other epochs than those of the experiment."""

    @property
    def lstm_method(self) -> LstmMethod:
        """Return the method itself."""
        return LSTM_METHODS[self.method]

    @property
    def batch(self) -> int:
        """Return the expected batch size: small where no noise has to be outweighed."""
        size = SIZES[self.experiment]
        if self.lstm_method.only_public:
            return PUBLIC_BATCH
        return size.batch if self.lstm_method.noisy else size.batch_without_noise

    @property
    def passes(self) -> float:
        """Return the number of epochs, which is smaller while tuning."""
        size, method = SIZES[self.experiment], self.lstm_method
        if method.only_public:
            return PUBLIC_EPOCHS
        if self.epochs is not None:
            return self.epochs
        if self.tuning:
            return size.trial_epochs
        return size.epochs if method.noisy else size.epochs_without_noise

    def describe(self) -> Record:
        """Return the job as it is recorded."""
        size = SIZES[self.experiment]
        return {
            "experiment": self.experiment,
            "version": VERSION,
            "method": self.method,
            "setting": dict(self.setting),
            "epsilon": size.epsilon if self.lstm_method.private else None,
            "delta": DELTA,
            "batch": self.batch,
            "epochs": self.passes,
            "words": size.words,
            "split": "validation" if self.tuning else "test",
            "seed": self.seed,
        }


def run(job: LstmJob) -> Record:
    """Train, and evaluate on the test reviews, or on those held out for tuning."""
    start, paid = time.perf_counter(), time.process_time()
    given, method = _problem(job.experiment, job.tuning), job.lstm_method
    data = given.public if method.only_public else given.train
    steps = round(job.passes * len(data) / job.batch)
    sampler = poisson(examples=len(data), expected_size=job.batch)
    epsilon = SIZES[job.experiment].epsilon
    sigma = _sigma(len(data), job.batch, steps, epsilon) if method.noisy else 0.0
    setting = method.for_run(job.setting, _longer(job, len(data)))
    chain = method.build(Given(given, setting, sigma, steps, job.seed, job.batch))
    shown = on_held_out(
        "validation reviews" if job.tuning else "test reviews",
        given.test.features,
        given.test.targets,
        every=None if job.tuning else max(1, steps // POINTS),
        score=given.metric,
    )
    with without_delta_warning():
        result = fit(
            given.model(job.seed), given.loss, data, method=chain, sampler=sampler, steps=steps,
            delta=DELTA, evaluate=[shown], progress=False,
        )  # fmt: skip
    private = method.private and result.privacy.private
    by_rdp = (
        epsilon_of_run(chain, sampler, steps, delta=DELTA, accountant=Accountant.RDP)
        if private
        else None
    )
    return {
        "job": job.describe(),
        "values": {METRIC: result.last("score")},
        "curve": [[e.step, e.value] for e in result.history if e.metric == "score"],
        "examples": len(data),
        "steps": steps,
        "noise_multiplier": sigma,
        "clip_norm": result.privacy.clip_norm if private else None,
        "private": private,
        "epsilon_pld": result.privacy.epsilon if private else None,
        "epsilon_rdp": by_rdp,
        "chain": result.method,
        "seconds": round(time.perf_counter() - start, 1),
        "processor_seconds": round(time.process_time() - paid, 1),
    }


def _longer(job: LstmJob, examples: int) -> Longer:
    """Return by what the noise of all steps together is larger than in a trial."""
    if not job.lstm_method.noisy:
        return Longer()
    size = SIZES[job.experiment]
    steps, tried = (
        round(epochs * examples / size.batch) for epochs in (job.passes, size.trial_epochs)
    )
    noise, tried_noise = (
        _sigma(examples, size.batch, count, size.epsilon) for count in (steps, tried)
    )
    root = math.sqrt(steps / tried)
    return Longer(adaptive=root, others=root * noise / tried_noise)


@lru_cache(maxsize=2)
def _problem(experiment: str, tuning: bool) -> LstmProblem:
    return problem(experiment, tuning=tuning)


@lru_cache
def _sigma(examples: int, batch: float, steps: int, epsilon: float) -> float:
    sampler = poisson(examples=examples, expected_size=batch)
    return calibrate_noise(sampler, steps, budget=Budget(epsilon, DELTA), accountant=Accountant.PLD)
