"""An audit of adaptive clipping by an observer who sees the clip norm as well as the weights.

The audits of the command line see weights only. Here half of what a step pays for is the count, and
the clip norm is observed beside the weights: a count that has too little noise is seen.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from adadps import Budget, PrivateRun, poisson, privatize
from adadps.accounting.epsilon import calibrate_noise
from adadps.accounting.events import without_delta_warning
from adadps.audit import PrivacyClaim, Released, audit_repeated, observers_along
from adadps.audit.outcome import CONSISTENT
from adadps.audit.worst_case import WIDTH, worst_case, zero_linear
from adadps.engine.losses import squared_error
from adadps.methods import dp_sgd_adaptive_clip
from adadps.methods.stages.clipping import AdaptiveClip
from adadps.types import Accountant

SHARE, RATE, LR, DELTA = 0.5, 0.2, 0.5, 0.1
SURE = 1 - 1e-6
pytestmark = pytest.mark.usefixtures("checked_once")


def trainer(sampler):
    """One step; what it releases in units of its noise: the example's weight, and log C."""
    sigma = calibrate_noise(
        sampler, 1, budget=Budget(epsilon=1.0, delta=DELTA), accountant=Accountant.PLD
    )
    privacy = privatize(clip_norm=1.0, noise_multiplier=sigma)
    method = dp_sgd_adaptive_clip(privacy, lr=LR, rate=RATE, share=SHARE)
    size = sampler.expected_size
    of_weight = LR / size * sigma / math.sqrt(1 - SHARE)
    of_log_clip = RATE / size * 0.5 * sigma / math.sqrt(SHARE)

    def train(data):
        with without_delta_warning():
            run = PrivateRun(
                zero_linear(WIDTH),
                squared_error,
                data,
                method=method,
                sampler=sampler,
                steps=1,
                delta=DELTA,
                accountant=Accountant.PLD,
            )
        run.step(next(run.batches()))
        weight = float(run.params["weight"][0, 0]) / of_weight
        log_clip = math.log(run.result().public_facts["clip_norm_at_end"]) / of_log_clip
        claim = PrivacyClaim(run.epsilon(), run.delta, sampler.relation.value)
        return Released(claim, np.array([[0.0, 0.0], [weight, log_clip]]))

    return train


def audited(runs):
    """The example pulls its weight down, and as its norm is beyond C, the clip norm up."""
    sampler = poisson(examples=2, expected_size=2)
    return audit_repeated(
        trainer(sampler),
        worst_case(sampler.relation, opposing=0),
        observers={
            **observers_along(np.array([-1.0, 1.0])),
            "clip norm": lambda seen: float(seen.weights[1, 1]),
        },
        runs=runs,
        confidence=SURE,
    )


def test_weights_and_clip_norm_together_are_within_the_claim():
    found = audited(400)
    assert found.claim.epsilon == pytest.approx(1.0, abs=0.01)
    assert found.verdict == CONSISTENT, found.describe()


def test_a_count_without_its_noise_is_seen(monkeypatch):
    quiet = property(lambda release: 0.02 * release.noise_multiplier)
    monkeypatch.setattr(AdaptiveClip, "noise_of_count", quiet)
    assert audited(250).broken
