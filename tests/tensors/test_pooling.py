"""Our loop over windows gives what torch's gives, bit by bit, alone and under vmap."""

import math

import pytest
import torch
from torch import nn
from torch.func import grad, vmap

from adadps.engine.rules import pooling
from adadps.engine.rules.tape import Tape

LAYERS = [
    nn.MaxPool2d(2, 1), nn.MaxPool2d(2), nn.MaxPool2d(3, 2, 1), nn.MaxPool2d(3, 1, 1),
    nn.MaxPool2d((2, 3), (1, 2), (1, 0)), nn.MaxPool2d(3, 2, 1, dilation=2),
    nn.MaxPool2d(2, (1, 3), 1, dilation=(3, 2)), nn.MaxPool2d(2, (3, 1), 1), nn.MaxPool2d(1),
    nn.MaxPool2d(3, 3),
]  # fmt: skip
OTHERS = [nn.MaxPool2d(2, ceil_mode=True), nn.MaxPool2d(2, return_indices=True)]
KINDS = (torch.float32, torch.float64)


def images(kind, examples=5, seed=0):
    """Images with ties, rows of infinities and NaN."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn((examples, 2, 3, 9, 10), generator=generator, dtype=kind)
    drawn = drawn.mul(2).round()
    drawn[0, :, :, 2:6, 3:8] = -math.inf
    drawn[1, :, 1, 4, 4] = math.nan
    drawn[1, :, 1, 4, 5] = math.nan
    drawn[2, :, 0] = -0.0
    drawn[2, :, 0, ::2] = 0.0
    return drawn


def ours(layer, rows):
    return pooling.run_max_pool(layer, Tape(), rows)


def same(one, other):
    """Equal in value, in the sign of zeros and in the places of NaN."""
    torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(torch.signbit(one), torch.signbit(other))


def weighed(run, layer, factors):
    return lambda rows: (run(layer, rows).nan_to_num(0, 0, 0) * factors).sum()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_values_and_gradients_are_those_of_torch(layer, kind):
    given = images(kind)
    expected = torch.stack([layer(rows) for rows in given])
    same(vmap(lambda rows: ours(layer, rows))(given), expected)
    same(torch.stack([ours(layer, rows) for rows in given]), expected)
    factors = torch.randn(expected.shape[1:], generator=torch.Generator().manual_seed(1))
    factors = factors.to(kind)
    of_torch = torch.stack([grad(weighed(nn.MaxPool2d.forward, layer, factors))(x) for x in given])
    same(vmap(grad(weighed(ours, layer, factors)))(given), of_torch)


@pytest.mark.parametrize("layer", LAYERS[:3], ids=str)
def test_rows_do_not_see_their_neighbours(layer):
    given, others = images(torch.float32), images(torch.float32, seed=7)
    others[3] = given[3]
    first, second = (vmap(lambda rows: ours(layer, rows))(x) for x in (given, others))
    same(first[3], second[3])


def test_other_memory_orders_and_axes_of_examples():
    layer, given = LAYERS[2], images(torch.float32)
    moved = given.movedim(0, 3).contiguous()
    found = vmap(lambda rows: ours(layer, rows), in_dims=3)(moved)
    same(found, torch.stack([layer(rows) for rows in given]))


@pytest.mark.parametrize("layer", OTHERS, ids=["ceil", "indices"])
def test_what_the_loops_do_not_know_is_left_to_torch(layer):
    rows = images(torch.float32)[3]
    torch.testing.assert_close(ours(layer, rows), layer(rows), rtol=0, atol=0)


def test_a_window_that_is_too_large_is_refused_by_torch():
    with pytest.raises(RuntimeError, match="too small"):
        ours(nn.MaxPool2d(20), images(torch.float32)[3])


def test_a_second_derivative_is_that_of_torch():
    rows, factors = images(torch.float64)[3], torch.randn(2, 3, 8, 9).double()

    def steep(run):
        def squared(x):
            return (run(LAYERS[0], x) ** 3 * factors).sum()

        return grad(lambda x: grad(squared)(x).square().sum())(rows)

    torch.testing.assert_close(steep(ours), steep(nn.MaxPool2d.forward))


def test_torch_does_it_where_loops_are_switched_off(monkeypatch):
    rows = images(torch.float32)[3]
    monkeypatch.setattr(pooling.loops, "SWITCHED_OFF", True)
    monkeypatch.setattr(pooling, "largest", None)
    same(ours(LAYERS[0], rows), LAYERS[0](rows))
