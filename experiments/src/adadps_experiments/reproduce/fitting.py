"""Problems of deep models; train the model of a tuned job and return the record of the run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from torch import nn

from adadps.accounting.epsilon import Budget, calibrate_noise, epsilon_of_run
from adadps.accounting.events import without_delta_warning
from adadps.accounting.samplers import Sampler, poisson
from adadps.data.examples import Examples, PublicExamples, public_examples
from adadps.engine.losses import Loss
from adadps.methods.stages import Chain
from adadps.training.evaluation import Metric, on_held_out
from adadps.training.fit import fit
from adadps.types import Accountant
from adadps_experiments.reproduce.records import Record
from adadps_experiments.reproduce.trials import TunedJob


@dataclass(frozen=True)
class DeepProblem:
    """Private, held-out and public rows of one kind, and what is trained on them."""

    train: Examples
    test: Examples
    public: Examples
    model: Callable[[int], nn.Module]
    loss: Loss
    metric: Metric
    kind: str
    """What the rows are, as in "600 of the training images"."""

    def public_in_batches(self, size: int, seed: int = 0) -> PublicExamples:
        """Return the public rows, to be drawn in batches of ``size``."""
        return public_examples(
            self.public.features,
            self.public.targets,
            source=f"{len(self.public.targets)} of the training {self.kind}",
            public_because="drawn once and taken as public, as in the paper",
            batch_size=size,
            seed=seed,
        )


@dataclass(frozen=True)
class Training:
    """What a job trains by."""

    chain: Chain
    data: Examples
    sampler: Sampler
    steps: int
    noise_multiplier: float
    delta: float
    private: bool
    """Does its method pay for what it learns?"""


def trained(
    job: TunedJob, given: DeepProblem, by: Training, metric: str, *, points: int
) -> tuple[nn.Module, Record]:
    """Train, and evaluate on the test rows, or on those held out for tuning.

    The score is recorded under the name ``metric``, at ``points`` steps of a run.
    """
    start, paid = time.perf_counter(), time.process_time()
    model = given.model(job.seed)
    shown = on_held_out(
        f"{'validation' if job.tuning else 'test'} {given.kind}",
        given.test.features,
        given.test.targets,
        every=None if job.tuning else max(1, by.steps // points),
        score=given.metric,
    )
    with without_delta_warning():
        result = fit(
            model, given.loss, by.data, method=by.chain, sampler=by.sampler, steps=by.steps,
            delta=by.delta, evaluate=[shown], progress=False,
        )  # fmt: skip
    private = by.private and result.privacy.private
    by_rdp = (
        epsilon_of_run(by.chain, by.sampler, by.steps, delta=by.delta, accountant=Accountant.RDP)
        if private
        else None
    )
    return model, {
        "job": job.describe(),
        "values": {metric: _finite(result.last("score"))},
        "curve": [[e.step, _finite(e.value)] for e in result.history if e.metric == "score"],
        "examples": len(by.data),
        "steps": by.steps,
        "noise_multiplier": by.noise_multiplier,
        "clip_norm": result.privacy.clip_norm if private else None,
        "private": private,
        "epsilon_pld": result.privacy.epsilon if private else None,
        "epsilon_rdp": by_rdp,
        "chain": result.method,
        "seconds": round(time.perf_counter() - start, 1),
        "processor_seconds": round(time.process_time() - paid, 1),
    }


def _finite(score: float) -> float | None:
    """Return the score, or None for that of a model that diverged."""
    return score if math.isfinite(score) else None


@lru_cache
def calibrated(examples: int, batch: float, steps: int, epsilon: float, delta: float) -> float:
    """Return the noise multiplier with which a run costs epsilon."""
    sampler = poisson(examples=examples, expected_size=batch)
    return calibrate_noise(sampler, steps, budget=Budget(epsilon, delta), accountant=Accountant.PLD)
