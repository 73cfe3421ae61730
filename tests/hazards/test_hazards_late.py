"""Hazard 37: whether noise is drawn late is decided by public quantities."""

import pytest
import torch
from torch import nn

from adadps.engine.noise.randomness import secure
from adadps.engine.waist import NoisySum, Update, Weights
from adadps.tensors.sums import RowSparse
from support.late_tables import Changed

NAME, SHAPE = "weight", (6, 3)


def begun(start=0.0, noise=None):
    model = nn.Embedding(*SHAPE)
    nn.init.constant_(model.weight, start)
    params = {NAME: model.weight.detach()}
    return model, Weights(model, params, noise or secure())


def step(weights, *rows, size=1.0, deviation):
    change = RowSparse(torch.tensor(rows).long(), torch.full((len(rows), 3), size).double(), SHAPE)
    weights.apply(Update({NAME: NoisySum(change, deviation)}), [NAME])


@pytest.mark.parametrize("size", [1.0, 1e30])
def test_hazard_37_which_rows_were_read_does_not_decide_whether_noise_is_late(size):
    """A row has moved far. In one world a batch reads it, in the other none does so in time."""
    waits = []
    for read in (False, True):
        _, weights = begun()
        step(weights, 0, size=size, deviation=1.0)
        if read:
            weights.read({NAME: torch.tensor([0])})
        for _ in range(2):  # the grid gets finer
            step(weights, 1, deviation=0.25)
        waits.append(NAME in weights._late)
    assert waits == [size == 1.0] * 2


def test_hazard_37_weights_large_beside_their_noise_cost_no_more_than_the_rows_of_a_batch():
    """They fell back to noise for all rows at every step, when rows that were read were large."""
    noise = Changed()
    _, weights = begun(start=4.0, noise=noise)
    for _ in range(300):
        step(weights, 0, 1, size=1e-7, deviation=1e-7)
    assert NAME in weights._late
    assert noise.count == 299 * 2 * 3


@pytest.mark.parametrize("deviations", [(1e-13,), (1.0, 1e-13)])
def test_hazard_37_weights_too_large_for_48_bits_do_not_wait(deviations):
    """All rows have their noise when that is found, and get it at every step from then on."""
    model, weights = begun(start=4.0)
    for deviation in deviations:
        step(weights, 0, deviation=deviation)
    assert NAME not in weights._late
    assert type(model.weight) is nn.Parameter
    moved = (model.weight != 4).any(1)
    assert moved.tolist() == ([True] * 6 if len(deviations) == 2 else [True] + [False] * 5)
