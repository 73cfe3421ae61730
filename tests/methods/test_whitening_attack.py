"""Attacks on whitening: what one unit moves, under matrices near the limits of float32."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from adadps.data.examples import Examples
from adadps.engine.waist import Step, Units
from adadps.methods.stages import clip_adaptively, clip_automatically, privatize
from adadps.tensors.sums import SinglePrecision
from support.neighbouring_sums import Silent
from support.zoo import SIZE
from support.zoo_attention import ATTENTION
from support.zoo_checks import OF_TORCH, Compared
from support.zoo_convolution import CONVOLUTIONS
from support.zoo_plain import PLAIN
from support.zoo_recurrent import RECURRENT

ZOO = PLAIN | RECURRENT | CONVOLUTIONS | ATTENTION
SOME = sorted(ZOO)[::8]
SIGMA = 4.0
SLACK = 1e-6
"""Rows move up by one place where another is missing, and float32 products can then differ in their
last bits."""
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])
pytestmark = [pytest.mark.filterwarnings(warning) for warning in OF_TORCH]


def matrices(batch, rng, spread):
    """Symmetric P and Q with eigenvalues from 10^-spread to 10^spread."""

    def draw(size):
        vectors, _ = np.linalg.qr(rng.normal(size=(size, size)))
        values = 10 ** rng.uniform(-spread, spread, size=size)
        return torch.from_numpy((vectors * values) @ vectors.T).float()

    held = batch.moments()
    return tuple({n: draw(len(m)) for n, m in side.items()} for side in (held.inputs, held.outputs))


def spoilt(batch, rng):
    """Rows of zeros, large, tiny and not finite values, where rows are numbers."""
    features, targets = batch.features.clone(), batch.targets.clone()
    if features.is_floating_point():
        features[0], features[4] = 0.0, rng.choice([math.nan, math.inf, 3e38])
        features[1] *= 1e5
        features[2] *= 1e-10
    elif targets.is_floating_point():
        targets[1] *= 1e6
        targets[4] = math.nan
    return Examples(features, targets)


def released(case, batch, units, release, maps):
    """What is added up for a batch, and the noise that each sum would get."""
    single = SinglePrecision.for_batches(SIZE, release.clip_norm)
    gradients = maps(case.held.per_unit(case.params, batch, units, None, single))
    noise = Silent()
    step = Step(index=1, expected_size=4.0, noise=noise, mean_gradient=lambda _batch: {})
    release.apply(gradients, release.init(case.params), step)
    return noise


def distance(one, other):
    """How far two releases are apart, in units of 1/σ."""
    pairs = zip(one.totals, other.totals, one.asked, strict=True)
    squares = (float((a - b).square().sum()) / deviation**2 for a, b, (_, deviation) in pairs)
    return SIGMA * math.sqrt(sum(squares))


def worlds(grouping):
    """The rows that are left when one example, or one user, is taken away."""
    if grouping == "users":
        return [torch.nonzero(user != LABELS).flatten() for user in range(3)]
    return [torch.nonzero(torch.arange(SIZE) != row).flatten() for row in range(SIZE)]


def units_of(grouping, rows):
    if grouping == "groups":
        return Units(LABELS[rows], 4, 0.5)
    if grouping == "users":
        present, labels = torch.unique(LABELS[rows], return_inverse=True)
        return Units(labels, len(present), None)
    return None


@pytest.mark.parametrize("grouping", ["examples", "groups", "users"])
@pytest.mark.parametrize("name", SOME)
def test_one_unit_moves_every_release_by_what_is_paid_for(name, grouping):
    """Sum and count together: 1/σ, and 2/σ for an example of a labelled group."""
    case = Compared(ZOO[name], name=name)
    rng = np.random.default_rng([SOME.index(name), len(grouping)])
    batch = spoilt(case.batch, rng)
    inputs, outputs = matrices(case.per_unit(), rng, spread=5)
    diagonal = {
        n: torch.as_tensor(10 ** rng.uniform(-4, 4, size=tuple(p.shape)))
        for n, p in case.params.items()
    }

    def maps(gradients):
        return gradients.whiten(inputs, outputs).scale(diagonal)

    plain = privatize(clip_norm=10 ** rng.uniform(-6, 6), noise_multiplier=SIGMA)
    paid = 2 if grouping == "groups" else 1
    everyone = torch.arange(SIZE)
    for release in (
        plain,
        clip_automatically(plain, stability=1e-6),
        clip_adaptively(plain, share=0.5),
    ):
        whole = released(case, batch, units_of(grouping, everyone), release, maps)
        moves = [
            distance(
                whole,
                released(case, batch.take(rows), units_of(grouping, rows), release, maps),
            )
            for rows in worlds(grouping)
        ]
        assert max(moves) <= paid * (1 + SLACK), release
        assert max(moves) > 0, "the test changed nothing"
