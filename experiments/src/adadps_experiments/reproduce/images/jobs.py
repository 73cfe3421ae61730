"""One run of an image experiment: a job as plain data, and the record that it leaves."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import nn

from adadps.accounting.samplers import poisson
from adadps_experiments.reproduce.fitting import DeepProblem, Training, calibrated, trained
from adadps_experiments.reproduce.images.methods import (
    IMAGE_METHODS,
    PUBLIC_BATCH,
    PUBLIC_EPOCHS,
    Given,
    ImageMethod,
)
from adadps_experiments.reproduce.images.problems import SIZES, problem
from adadps_experiments.reproduce.records import Record
from adadps_experiments.reproduce.trials import TunedJob

VERSION = 1
"""Increase it when the code behind a job changes, so that older records are not reused."""
POINTS, DIGITS = 10, 10
METRIC = "score"


@dataclass(frozen=True, kw_only=True)
class ImageJob(TunedJob):
    """One run of a method on images, at an epsilon."""

    epsilon: float

    @property
    def image_method(self) -> ImageMethod:
        """Return the method itself."""
        return IMAGE_METHODS[self.method]

    @property
    def batch(self) -> int:
        """Return the expected batch size: small where no noise has to be outweighed."""
        method, size = self.image_method, SIZES[self.experiment]
        if method.only_public:
            return PUBLIC_BATCH
        without_noise = not method.private and method.label != "ideal"
        return size.batch_without_noise if without_noise else size.batch

    def steps(self, examples: int) -> int:
        """Return the number of steps, which is smaller while tuning."""
        size = SIZES[self.experiment]
        epochs = self.epochs or (size.trial_epochs if self.tuning else size.epochs)
        if self.image_method.only_public:
            epochs = PUBLIC_EPOCHS
        return round(epochs * examples / self.batch)

    def describe(self) -> Record:
        """Return the job as it is recorded."""
        size = SIZES[self.experiment]
        return {
            "experiment": self.experiment,
            "version": VERSION,
            "method": self.method,
            "setting": dict(self.setting),
            "epsilon": self.epsilon if self.image_method.private else None,
            "delta": size.delta,
            "batch": self.batch,
            "epochs": self.epochs or (size.trial_epochs if self.tuning else size.epochs),
            "split": "validation" if self.tuning else "test",
            "seed": self.seed,
        }


def run(job: ImageJob) -> Record:
    """Train, and evaluate on the test images, or on those held out for tuning."""
    given, method = _problem(job.experiment, job.tuning), job.image_method
    delta = SIZES[job.experiment].delta
    data = given.public if method.only_public else given.train
    steps = job.steps(len(data))
    noisy = method.private or method.label == "ideal"
    sigma = calibrated(len(data), job.batch, steps, job.epsilon, delta) if noisy else 0.0
    chain = method.build(Given(given, job.setting, sigma, steps, job.seed, job.batch))
    sampler = poisson(examples=len(data), expected_size=job.batch)
    by = Training(chain, data, sampler, steps, sigma, delta, method.private)
    model, record = trained(job, given, by, METRIC, points=POINTS)
    rebuilt = job.experiment == "mnist-ae"
    return {**record, "digits": _digits(model, given) if rebuilt else None}


def _digits(model: nn.Module, given: DeepProblem) -> str:
    """Return what the model makes of the first held-out images, as bytes in base64."""
    with torch.no_grad():
        shown = model(given.test.take(torch.arange(DIGITS)).features)
    return base64.b64encode((shown.clamp(0, 1) * 255).round().byte().numpy().tobytes()).decode()


@lru_cache(maxsize=2)
def _problem(experiment: str, tuning: bool) -> DeepProblem:
    return problem(experiment, tuning=tuning)
