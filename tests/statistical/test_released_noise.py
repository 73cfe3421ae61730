"""Noise as it is released: its standard deviation, and the public grid that hides low bits.

Every test that can fail by chance states how often it does so.
"""

import math

import numpy as np
import pytest
import torch

from adadps.engine.noise.normals import BLOCK
from adadps.engine.noise.randomness import grid, reproducible_not_private, secure
from adadps.errors import SettingError
from support.low_bits import excluded

SCALES = [1e-6, 0.3, 1.0, 1.9, 2.0, 12345.678]


def to_grid(values, scale):
    """g · rint(values / g) with g = 2^(⌊log2 scale⌋ - 10), from the formula."""
    width = 2.0 ** (math.floor(math.log2(scale)) - 10)
    return torch.round(values / width) * width


@pytest.mark.parametrize("scale", SCALES)
def test_released_noise_has_the_stated_standard_deviation(scale):
    """Two bounds of 5.5 standard errors for each of six scales: false alarms below 5e-7."""
    total = torch.full((400_000,), 3.7 * scale, dtype=torch.float64)
    z = (secure().release(total, standard_deviation=scale) - total) / scale
    assert abs(float(z.mean())) < 5.5 / math.sqrt(len(z))
    assert abs(float(z.square().mean()) - 1) < 5.5 * math.sqrt(2 / len(z))


def test_the_sum_is_noised_before_it_is_rounded():
    """Rounding the sum first would add to its sensitivity."""
    total = torch.linspace(-1, 1, 1001, dtype=torch.float64) / 700
    released = reproducible_not_private(5).release(total, standard_deviation=1.5)
    z = reproducible_not_private(5).normal((1001,))
    assert torch.equal(released, to_grid(total + 1.5 * z, 1.5))
    assert not torch.equal(released, to_grid(total, 1.5) + to_grid(1.5 * z, 1.5))


def test_without_noise_the_sum_is_what_it_is():
    total = torch.tensor([0.1, 1 / 3])
    assert torch.equal(secure().release(total, standard_deviation=0.0), total.double())


def test_a_float32_sum_is_released_in_float64():
    total = torch.zeros(1000, dtype=torch.float32)
    released = secure().release(total, standard_deviation=1.0)
    assert released.dtype is torch.float64


@pytest.mark.parametrize("scale", SCALES)
def test_the_grid_is_a_power_of_two_made_of_the_public_scale_alone(scale):
    assert grid(scale) == 2.0 ** (math.floor(math.log2(scale)) - 10)


SHAPES = [(), (0,), (3, 0), (1,), (7, 5), (300, 401), (BLOCK // 2, 5)]


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_released_is_the_sum_and_its_noise_on_the_grid(shape):
    total = torch.randn(shape)
    released = reproducible_not_private(5).release(total, standard_deviation=1.5)
    z = reproducible_not_private(5).normal(shape)
    assert released.shape == shape
    assert torch.equal(released, to_grid(total.double() + 1.5 * z, 1.5))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_sum_can_be_released_in_place(shape):
    total = torch.randn(shape, dtype=torch.float64)
    expected = reproducible_not_private(5).release(total, standard_deviation=0.3)
    assert reproducible_not_private(5).release(total, standard_deviation=0.3, out=total) is total
    assert torch.equal(total, expected)


def layouts(shape, dtype):
    """Two tensors of each kind with the same values, that lie in memory in different ways."""
    value = torch.randn(shape).to(dtype)
    sliced = torch.zeros((*shape[:-1], 2 * shape[-1]), dtype=dtype)[..., ::2].copy_(value)
    turned = value.transpose(0, -1).contiguous().transpose(0, -1)
    return {"in a row": value.clone(), "turned": turned, "with gaps": sliced}


@pytest.mark.parametrize("of_total", ["in a row", "turned", "with gaps"])
@pytest.mark.parametrize("of_weights", ["in a row", "turned", "with gaps"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 4), (4, 3, 5), (400, 301)])
def test_release_into_adds_a_multiple_of_what_is_released(shape, dtype, of_weights, of_total):
    weights = layouts(shape, dtype)[of_weights].requires_grad_()
    total = layouts(shape, torch.float32)[of_total]
    released = reproducible_not_private(5).release(total, standard_deviation=1.5)
    expected = (weights.detach().double() + -0.37 * released).to(dtype)
    reproducible_not_private(5).release_into(
        [(weights, total)], standard_deviation=1.5, factor=-0.37
    )
    assert torch.equal(weights.detach(), expected)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("deviation", [0.0, 2.0])
@pytest.mark.parametrize("inference", [False, True])
def test_release_into_takes_any_shape(shape, deviation, inference):
    with torch.inference_mode(inference):
        weights, total = torch.randn(shape), torch.randn(shape, dtype=torch.float64)
        released = reproducible_not_private(5).release(total, standard_deviation=deviation)
        expected = (weights.double() + 0.1 * released).float()
        reproducible_not_private(5).release_into(
            [(weights, total)], standard_deviation=deviation, factor=0.1
        )
    assert torch.equal(weights, expected)


def test_a_graph_notices_that_its_weights_were_noised():
    weights = torch.ones(3, requires_grad=True)
    loss = weights.square().sum()
    secure().release_into([(weights, torch.zeros(3))], standard_deviation=1.0, factor=1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


ROWS = {"short": (40_000, 5), "long": (7, 40_000), "flat": (150_000,), "deep": (500, 20, 30)}


@pytest.mark.parametrize("layout", ["in a row", "turned", "with gaps"])
@pytest.mark.parametrize("shape", ROWS.values(), ids=ROWS)
def test_each_row_can_have_its_own_standard_deviation(shape, layout):
    total = layouts(shape, torch.float32)[layout]
    deviations = torch.rand(len(total), dtype=torch.float64) + 0.5
    deviations[::3] = 0
    released = reproducible_not_private(5).release(
        total, standard_deviation=deviations, grid_width=grid(0.5)
    )
    spread = deviations.view(-1, *[1] * (len(shape) - 1))
    noised = total.double() + spread * reproducible_not_private(5).normal(shape)
    expected = torch.where(spread == 0, total.double(), to_grid(noised, 0.5))
    assert torch.equal(released, expected)


def test_rows_are_released_in_place_and_when_there_are_none():
    total = torch.randn(30_000, 7, dtype=torch.float64)
    settings = {"standard_deviation": torch.rand(30_000).double(), "grid_width": 2.0**-12}
    expected = reproducible_not_private(5).release(total, **settings)
    reproducible_not_private(5).release(total, out=total, **settings)
    assert torch.equal(total, expected)
    nothing = secure().release(torch.zeros(0, 3), standard_deviation=torch.zeros(0), grid_width=1.0)
    assert nothing.shape == (0, 3)


def test_each_rows_noise_has_its_standard_deviation():
    """Two bounds of 5.5 standard errors for three rows: false alarms below 3e-7."""
    deviations = torch.tensor([0.1, 1.0, 30.0]).double()
    noise = secure().release(
        torch.zeros(3, 200_000), standard_deviation=deviations, grid_width=grid(0.1)
    )
    for z in noise / deviations.unsqueeze(1):
        assert abs(float(z.mean())) < 5.5 / math.sqrt(len(z))
        assert abs(float(z.square().mean()) - 1) < 5.5 * math.sqrt(2 / len(z))


BAD = {
    "rows without a grid": ({"standard_deviation": torch.ones(4).double()}, "grid_width"),
    "too few rows": (
        {"standard_deviation": torch.ones(3).double(), "grid_width": 1.0},
        "for each row",
    ),
    "a negative row": (
        {"standard_deviation": -torch.ones(4).double(), "grid_width": 1.0},
        "0 or more",
    ),
    "a negative deviation": ({"standard_deviation": -1.0}, "0 or more"),
    "no number": ({"standard_deviation": math.nan}, "0 or more"),
    "an infinite deviation": ({"standard_deviation": math.inf}, "finite"),
    "a grid of thirds": ({"standard_deviation": 1.0, "grid_width": 1 / 3}, "power of two"),
    "out in float32": ({"standard_deviation": 1.0, "out": torch.zeros(4, 3)}, "float64"),
    "out of another shape": (
        {"standard_deviation": 1.0, "out": torch.zeros(3, 4).double()},
        "shape",
    ),
}


@pytest.mark.parametrize(("settings", "words"), BAD.values(), ids=BAD)
def test_what_cannot_be_released_is_refused(settings, words):
    with pytest.raises(SettingError, match=words):
        secure().release(torch.zeros(4, 3), **settings)


def test_weights_of_another_shape_are_refused():
    with pytest.raises(SettingError, match="weights in the shape"):
        secure().release_into(
            [(torch.zeros(3), torch.zeros(4, 3))], standard_deviation=1.0, factor=1.0
        )


# --- hazard 18: the low bits ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", SCALES)
def test_hazard_18_every_released_value_lies_on_the_public_grid(scale, dtype):
    totals = scale * torch.randn(10_000, dtype=torch.float64).to(dtype) * math.pi
    released = secure().release(totals, standard_deviation=scale)
    assert not torch.equal(to_grid(totals.double(), scale), totals.double())
    assert torch.equal(to_grid(released, scale), released)


@pytest.mark.parametrize("shape", [(10,), (700, 300)])
def test_hazard_18_rows_lie_on_the_grid_they_share(shape):
    totals = torch.randn(shape, dtype=torch.float64) * math.pi
    deviations = torch.rand(shape[0], dtype=torch.float64) + 0.01
    released = secure().release(totals, standard_deviation=deviations, grid_width=2.0**-17)
    assert torch.equal(torch.round(released * 2.0**17), released * 2.0**17)


NEIGHBOURS = [(0.0, 1.0), (0.1, -0.9), (1e-3, 1.0), (2.0**-40, 0.7)]


@pytest.mark.parametrize(("total", "neighbour"), NEIGHBOURS)
def test_hazard_18_without_the_grid_low_bits_tell_neighbours_apart(total, neighbour):
    """Why there is a grid: more than one coordinate in a hundred gives the secret away.

    At least 5 % do so; fewer than 1 % of 1e5 has a probability far below 1e-100.
    """
    released = total + secure().normal((100_000,))
    assert int(excluded(released, total, rounded=lambda value: value).sum()) == 0
    assert float(excluded(released, neighbour, rounded=lambda value: value).double().mean()) > 0.01


@pytest.mark.parametrize(("total", "neighbour"), NEIGHBOURS)
def test_hazard_18_on_the_grid_low_bits_tell_nothing(total, neighbour):
    """Every released value could have come from either sum."""
    sums = torch.full((100_000,), total, dtype=torch.float64)
    released = secure().release(sums, standard_deviation=1.0)
    for candidate in (total, neighbour):
        assert not excluded(released, candidate, rounded=lambda value: to_grid(value, 1.0)).any()


@pytest.mark.parametrize(("total", "neighbour"), NEIGHBOURS)
def test_hazard_18_neighbours_are_released_on_the_same_lattice(total, neighbour):
    """The values that both sums give are the same multiples of one public width.

    8192 cells hold all but a sliver of both: of 1e5 released values of each, thousands of cells are
    hit by both (fewer than 1000 has a probability far below 1e-100).
    """
    cells = [
        np.unique(
            secure().release(torch.full((100_000,), value).double(), standard_deviation=1.0).numpy()
        )
        for value in (total, neighbour)
    ]
    assert np.intersect1d(*cells).size > 1000
