"""One run of an image experiment: a job as plain data, and the record that it leaves."""

from __future__ import annotations

import base64
import math
import time
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import nn

from adadps.accounting.epsilon import Budget, calibrate_noise, epsilon_of_run
from adadps.accounting.events import without_delta_warning
from adadps.accounting.samplers import Sampler, poisson
from adadps.training.evaluation import on_held_out
from adadps.training.fit import fit
from adadps.types import Accountant
from adadps_experiments.reproduce.images.methods import (
    IMAGE_METHODS,
    PUBLIC_BATCH,
    PUBLIC_EPOCHS,
    Given,
    ImageMethod,
)
from adadps_experiments.reproduce.images.problems import SIZES, ImageProblem, problem
from adadps_experiments.reproduce.records import Record
from adadps_experiments.reproduce.results import Setting

VERSION = 1
"""Increase it when the code behind a job changes, so that older records are not reused."""
POINTS, DIGITS = 10, 10
METRIC = "score"


@dataclass(frozen=True)
class ImageJob:
    """One run of a method with a setting."""

    experiment: str
    method: str
    setting: Setting
    epsilon: float
    seed: int
    tuning: bool = False
    epochs: float | None = None
    """Other epochs than those of the experiment."""

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
    start = time.perf_counter()
    given, method, size = (
        _problem(job.experiment, job.tuning),
        job.image_method,
        SIZES[job.experiment],
    )
    data = given.public if method.only_public else given.train
    steps = job.steps(len(data))
    sampler = poisson(examples=len(data), expected_size=job.batch)
    noisy = method.private or method.label == "ideal"
    sigma = _noise(sampler, steps, job.epsilon, size.delta) if noisy else 0.0
    chain = method.build(Given(given, job.setting, sigma, steps, job.seed, job.batch))
    model = given.model(job.seed)
    shown = on_held_out(
        "validation images" if job.tuning else "test images",
        given.test.features,
        given.test.targets,
        every=None if job.tuning else max(1, steps // POINTS),
        score=given.metric,
    )
    with without_delta_warning():
        result = fit(
            model, given.loss, data, method=chain, sampler=sampler, steps=steps, delta=size.delta,
            evaluate=[shown], progress=False,
        )  # fmt: skip
    private = method.private and result.privacy.private
    return {
        "job": job.describe(),
        "values": {METRIC: _finite(result.last(METRIC))},
        "curve": [[e.step, _finite(e.value)] for e in result.history if e.metric == METRIC],
        "examples": len(data),
        "steps": steps,
        "noise_multiplier": sigma,
        "clip_norm": result.privacy.clip_norm if private else None,
        "private": private,
        "epsilon_pld": result.privacy.epsilon if private else None,
        "epsilon_rdp": epsilon_of_run(
            chain, sampler, steps, delta=size.delta, accountant=Accountant.RDP
        )
        if private
        else None,
        "chain": result.method,
        "digits": _digits(model, given) if job.experiment == "mnist-ae" else None,
        "seconds": round(time.perf_counter() - start, 1),
    }


def _finite(score: float) -> float | None:
    """Return the score, or None for that of a model that diverged."""
    return score if math.isfinite(score) else None


def _digits(model: nn.Module, given: ImageProblem) -> str:
    """Return what the model makes of the first held-out images, as bytes in base64."""
    with torch.no_grad():
        shown = model(given.test.take(torch.arange(DIGITS)).features)
    return base64.b64encode((shown.clamp(0, 1) * 255).round().byte().numpy().tobytes()).decode()


@lru_cache(maxsize=2)
def _problem(experiment: str, tuning: bool) -> ImageProblem:
    return problem(experiment, tuning=tuning)


@lru_cache
def _sigma(examples: int, batch: float, steps: int, epsilon: float, delta: float) -> float:
    sampler = poisson(examples=examples, expected_size=batch)
    return calibrate_noise(sampler, steps, budget=Budget(epsilon, delta), accountant=Accountant.PLD)


def _noise(sampler: Sampler, steps: int, epsilon: float, delta: float) -> float:
    return _sigma(sampler.examples, sampler.expected_size, steps, epsilon, delta)
