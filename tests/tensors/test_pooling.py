"""Our loop over windows gives what torch's gives, bit by bit, alone and under vmap."""

import math

import pytest
import torch
from torch import nn
from torch.func import grad, hessian, jacfwd, jvp, vmap
from torch.nn import functional

from adadps import examples, losses
from adadps.engine.passes.validation import objective
from adadps.engine.rules import pooling
from adadps.engine.rules.tape import Tape
from adadps.errors import ModelError
from support.models import Custom

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


FORWARD = {
    "jvp": lambda run, x: jvp(run, (x,), (torch.ones_like(x) + x,))[1],
    "jacfwd": lambda run, x: jacfwd(run)(x),
    "hessian": lambda run, x: hessian(lambda y: (run(y) ** 3).sum())(x),
    "jvp in vmap": lambda run, x: vmap(lambda y: jvp(run, (y,), (y.cos(),))[1])(
        torch.stack([x, x.flip(2)])
    ),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # by torch's forward mode
@pytest.mark.parametrize("name", FORWARD)
def test_forward_mode_is_that_of_torch(name):
    rows = torch.randn(2, 1, 4, 5, generator=torch.Generator().manual_seed(0))
    for layer in LAYERS[:4]:
        found = FORWARD[name](lambda x, layer=layer: ours(layer, x), rows)
        torch.testing.assert_close(found, FORWARD[name](layer, rows))


# --- windows over padding alone ---

MISSING = [
    (nn.MaxPool1d(2, 2, 1, dilation=3), (2,)),
    (nn.MaxPool2d(2, 2, 1, dilation=3), (2, 2)),
    (nn.MaxPool2d(2, 1, 1, dilation=(1, 3)), (9, 2)),
    (nn.MaxPool2d(2, 9, 1, dilation=3), (2, 7)),
    (nn.MaxPool2d((2,), (2,), (1,), dilation=(3,)), (7, 2)),
    (nn.MaxPool2d((2, 1), 2, (1, 0), dilation=3, ceil_mode=True), (2, 4)),
    (nn.MaxPool3d(2, 2, 1, dilation=(1, 1, 3)), (4, 4, 2)),
]


@pytest.mark.parametrize(("layer", "image"), MISSING, ids=str)
@pytest.mark.parametrize("in_sequence", [True, False])
def test_hazard_10_windows_over_padding_alone_are_refused(layer, image, in_sequence):
    """Torch adds the gradient of such a window to the next example's, or to foreign memory."""
    rows = torch.randn(20, 1, *image)
    model = nn.Sequential(layer, nn.Flatten(), nn.LazyLinear(2))
    model(rows)
    if not in_sequence:
        model = Custom(lambda m, x: m.inner(x), inner=model)
    with pytest.raises(ModelError, match="padding alone"):
        objective(model, losses.cross_entropy, examples(rows, torch.zeros(20, dtype=torch.int64)))


@pytest.mark.parametrize("dilation", [1, 2, 3, 4])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_exactly_the_windows_without_a_winner_are_refused(size, stride, dilation):
    """Torch itself tells: the number of its winner is beyond the image."""
    for length in range(1, 7):
        for padding in range(size // 2 + 1):
            given = (size, stride, padding, dilation)
            row = torch.arange(float(length)).view(1, 1, length)
            try:
                _, winners = functional.max_pool1d(row, *given, return_indices=True)
            except RuntimeError:  # the window is larger than the row
                continue
            layer = nn.MaxPool1d(*given)
            if int(winners.max()) < length:
                pooling.require_winners(layer, row)
            else:
                with pytest.raises(ModelError, match="padding alone"):
                    pooling.require_winners(layer, row)
