"""One run of an LSTM: a job as plain data, and the record that it leaves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from adadps.accounting.samplers import poisson
from adadps_experiments.reproduce.fitting import DeepProblem, Training, calibrated, trained
from adadps_experiments.reproduce.images.methods import PUBLIC_BATCH, PUBLIC_EPOCHS, Given
from adadps_experiments.reproduce.lstm.methods import LSTM_METHODS, Longer, LstmMethod
from adadps_experiments.reproduce.lstm.problems import DELTA, SIZES, problem
from adadps_experiments.reproduce.records import Record
from adadps_experiments.reproduce.trials import TunedJob

VERSION = 1
"""Increase it when the code behind a job changes, so that older records are not reused."""
POINTS = 2
METRIC = "accuracy"


@dataclass(frozen=True, kw_only=True)
class LstmJob(TunedJob):
    """One run of a method on reviews."""

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
    given, method = _problem(job.experiment, job.tuning), job.lstm_method
    data = given.public if method.only_public else given.train
    steps = round(job.passes * len(data) / job.batch)
    epsilon = SIZES[job.experiment].epsilon
    sigma = calibrated(len(data), job.batch, steps, epsilon, DELTA) if method.noisy else 0.0
    setting = method.for_run(job.setting, _longer(job, len(data)))
    chain = method.build(Given(given, setting, sigma, steps, job.seed, job.batch))
    sampler = poisson(examples=len(data), expected_size=job.batch)
    by = Training(chain, data, sampler, steps, sigma, DELTA, method.private)
    return trained(job, given, by, METRIC, points=POINTS)[1]


def _longer(job: LstmJob, examples: int) -> Longer:
    """Return by what the noise of all steps together is larger than in a trial."""
    if not job.lstm_method.noisy:
        return Longer()
    size = SIZES[job.experiment]
    steps, tried = (
        round(epochs * examples / size.batch) for epochs in (job.passes, size.trial_epochs)
    )
    noise, tried_noise = (
        calibrated(examples, size.batch, count, size.epsilon, DELTA) for count in (steps, tried)
    )
    root = math.sqrt(steps / tried)
    return Longer(adaptive=root, others=root * noise / tried_noise)


@lru_cache(maxsize=2)
def _problem(experiment: str, tuning: bool) -> DeepProblem:
    return problem(experiment, tuning=tuning)
