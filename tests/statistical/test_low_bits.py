"""Hazard 18 in whole runs: without the grid, low bits of the weights tell who was in the data.

One step from zero weights in float64, with a learning rate equal to the batch size, releases the
noised sum itself. The example's clipped gradient is about 1/64 in each of 4096 entries.
"""

import math
from unittest import mock

import numpy as np
import pytest
import torch
from scipy import sparse

from adadps import dp_sgd, examples, fit, poisson, privatize
from adadps.audit.built_in import PATHS
from adadps.engine.losses import squared_error
from support.low_bits import excluded

WIDTH, SIZE, SIGMA = 4096, 2, 1.0
COARSE = 2.0**-10
"""The public grid for noise of deviation 1."""

paths = pytest.mark.parametrize("path", PATHS)


def released(path, present, noise_multiplier=SIGMA):
    """The noised sum over a batch with the example, or with a row of zeros instead."""
    row = np.full((1, WIDTH), float(present))
    features = sparse.csr_matrix(row) if PATHS[path].as_sparse else torch.from_numpy(row)
    model = PATHS[path].make_model(WIDTH).double()
    fit(
        model,
        squared_error,
        examples(features, torch.tensor([-100.0], dtype=torch.float64)),
        method=dp_sgd(privatize(clip_norm=1.0, noise_multiplier=noise_multiplier), lr=float(SIZE)),
        sampler=poisson(examples=SIZE, expected_size=SIZE),
        steps=1,
        progress=False,
    )
    return -model.weight.detach().flatten()


def without_a_grid():
    """Cells so small that rounding to them changes nothing."""
    finest = mock.Mock(return_value=2.0**-200)
    return mock.patch.multiple("adadps.engine.noise.randomness", grid=finest), mock.patch(
        "adadps.engine.noise.late.grid", finest
    )


def as_it_is(value):
    return value


def on_the_grid(value):
    return torch.round(value / COARSE) * COARSE


@paths
def test_hazard_18_without_the_grid_the_weights_tell_who_was_there(path):
    """At least 5 % of the entries do so; fewer than 1 % of 4096 has a probability below 1e-30."""
    pulls = released(path, present=True, noise_multiplier=0.0)
    assert float(pulls.norm()) == pytest.approx(1.0, abs=1e-4)
    first, second = without_a_grid()
    with first, second:
        with_example, without = (released(path, present=there) for there in (True, False))
    assert not excluded(with_example, pulls, as_it_is).any()
    assert float(excluded(without, pulls, as_it_is).double().mean()) > 0.01


@paths
def test_hazard_18_on_the_grid_the_weights_tell_nothing(path):
    """Every value is a multiple of one public width, and could have come from either sum."""
    pulls = released(path, present=True, noise_multiplier=0.0)
    for there in (True, False):
        seen = released(path, present=there)
        assert torch.equal(on_the_grid(seen), seen)
        assert float(seen.std()) == pytest.approx(SIGMA, abs=6 / math.sqrt(2 * WIDTH))
        for total in (pulls, torch.zeros_like(pulls)):
            assert not excluded(seen, total, on_the_grid).any()
