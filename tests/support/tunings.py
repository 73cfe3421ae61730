"""A small problem to tune, and metrics that give known scores."""

import pytest
import torch
from torch import nn

from adadps import dp_sgd, examples, on_public, poisson, privatize, tune
from adadps.engine.noise.randomness import Randomness
from adadps.training.tuning import fixed_grid, highest
from adadps.training.tuning.trial import Trials
from support.problems import cross_entropy

FEATURES = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
LABELS = (FEATURES[:, 0] > 0).long()
DATA = examples(FEATURES, LABELS)
SAMPLER = poisson(examples=60, expected_size=6)
NOISE = privatize(clip_norm=1.0, noise_multiplier=4.0)
RATES = {"lr": [0.1, 0.2, 0.3]}
STEPS = 3


def make(setting):
    return nn.Linear(3, 2), dp_sgd(NOISE, lr=setting["lr"])


def scores(*values):
    """A public evaluation whose metric gives these numbers, one trial after the other."""
    left = iter(values)
    return on_public("pilot", FEATURES, LABELS, merit=lambda *_: next(left))


def tuned(*, values=(0.1, 0.9, 0.5), maker=make, **options):
    chosen = {
        "grid": RATES,
        "score": highest(scores(*values), "merit"),
        "selection": fixed_grid(),
        "sampler": SAMPLER,
        "steps": STEPS,
        "delta": 1e-3,
        **options,
    }
    return tune(maker, cross_entropy, DATA, **chosen)


@pytest.fixture
def nothing_drawn(monkeypatch):
    def drawn(*_args, **_kwargs):
        raise AssertionError("something was drawn")

    monkeypatch.setattr(Randomness, "generator", property(drawn))
    monkeypatch.setattr(Randomness, "release", drawn)
    monkeypatch.setattr(Trials, "perform", drawn)
