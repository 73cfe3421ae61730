"""Word counts whose frequencies are measured with noise, and a run that uses them."""

import numpy as np
from torch import nn

from adadps import (
    Accountant,
    Relation,
    adadps,
    examples,
    fit,
    poisson,
    privatize,
    side,
)
from adadps.methods import dp_sgd_weighted
from support.problems import squared

PLD, RDP = Accountant.PLD, Accountant.RDP
ADD, ZERO, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.ZERO_OUT, Relation.REPLACE_ONE
COUNTS = np.array([[2, 0, 1, 0], [1, 1, 0, 0], [3, 0, 0, 1], [0, 1, 0, 0]] * 10, dtype=np.float32)
SIGMA, STEPS, DELTA = 6.0, 4, 1e-5
PRIVACY = privatize(clip_norm=1.0, noise_multiplier=2.0)
SAMPLER = poisson(examples=40, expected_size=4)
DOORS = {"before the clip": adadps, "in the features": dp_sgd_weighted}


def measured(counts=COUNTS, **changed):
    settings = {"clip_norm": 1.0, "noise_multiplier": SIGMA, "floor": 0.1, "source": "word counts"}
    return side.noisy_frequencies(counts, **{**settings, **changed})


def data():
    return examples(COUNTS, np.ones((40, 1), np.float32))


def trained(method, *, sampler=SAMPLER, steps=STEPS, delta=DELTA, **options):
    if "budget" in options or "ledger" in options:
        delta = None
    return fit(
        nn.Linear(4, 1),
        squared,
        data(),
        method=method,
        sampler=sampler,
        steps=steps,
        delta=delta,
        **options,
    )


def is_drawn(source):
    return source._released is not None
