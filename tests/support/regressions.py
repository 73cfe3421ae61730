"""Private regressions on made-up rows, and a ledger that remembers every event."""

import numpy as np
from torch import nn

from adadps import (
    dp_sgd,
    examples,
    fit,
    poisson,
    privatize,
)
from adadps.accounting.ledger import MemoryLedger
from support.problems import squared


def rows(size=40, width=4, seed=0):
    rng = np.random.default_rng(seed)
    return examples(
        rng.normal(size=(size, width)).astype(np.float32),
        rng.normal(size=(size, 1)).astype(np.float32),
    )


def model(width=4):
    layer = nn.Linear(width, 1)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def method(clip_norm=1.0, noise_multiplier=1.0, lr=0.1, **options):
    return dp_sgd(
        privatize(clip_norm=clip_norm, noise_multiplier=noise_multiplier, **options), lr=lr
    )


class SpyLedger(MemoryLedger):
    """Remembers every event, in order."""

    def __init__(self, budget=None):
        super().__init__(budget)
        self.events = []

    def authorise(self, event, **options):
        super().authorise(event, **options)
        self.events.append(event)


def trained(data=None, steps=5, sampler=None, chosen=None, layer=None, **options):
    data = data or rows()
    layer = layer or model()
    sampler = sampler or poisson(examples=len(data), expected_size=10)
    result = fit(
        layer, squared, data, method=chosen or method(), sampler=sampler, steps=steps, **options
    )
    return layer, result
