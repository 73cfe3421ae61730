"""The source of private draws: its law, its independence, and its low bits.

Every test that can fail by chance states how often it does so.
"""

import copy
import math
import multiprocessing
import os
import pickle
import signal
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from scipy import stats

from adadps.engine.noise.normals import BLOCK
from adadps.engine.noise.randomness import REPRODUCIBLE_MARK, grid, reproducible_not_private, secure
from adadps.errors import SettingError
from adadps.tensors import threads
from support.low_bits import excluded

SCALES = [1e-6, 0.3, 1.0, 1.9, 2.0, 12345.678]


def draws(source, count=10_000):
    return source.normal((count,)).numpy()


def shared(first, second):
    """Values that occur in both; two independent samples of 1e4 share one with p < 1e-7."""
    return np.intersect1d(first, second)


def to_grid(values, scale):
    """g · rint(values / g) with g = 2^(⌊log2 scale⌋ - 10), from the formula."""
    width = 2.0 ** (math.floor(math.log2(scale)) - 10)
    return torch.round(values / width) * width


def in_a_forked_child(action):
    """The float64 array that ``action`` returns in a child of this process."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child uses no thread of ours
        child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)  # a child that waits for a thread that is gone has failed
            with os.fdopen(write, "wb") as pipe:
                pipe.write(np.asarray(action(), dtype=np.float64).tobytes())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        content = pipe.read()
    os.waitpid(child, 0)
    assert content, "the child failed"
    return np.frombuffer(content)


# --- the law ---


def test_moments_are_those_of_a_standard_normal():
    """Four bounds of 5.5 standard errors each: false alarms below 2e-7."""
    z = draws(secure(), 4_000_000)
    errors = {
        "mean": z.mean() * math.sqrt(len(z)),
        "variance": ((z**2).mean() - 1) * math.sqrt(len(z) / 2),
        "third moment": (z**3).mean() * math.sqrt(len(z) / 15),
        "fourth moment": ((z**4).mean() - 3) * math.sqrt(len(z) / 96),
    }
    assert {name: error for name, error in errors.items() if abs(error) > 5.5} == {}


def test_the_distribution_is_normal():
    """Kolmogorov-Smirnov on 2e6 draws: false alarms at a rate of 1e-7."""
    assert stats.kstest(draws(secure(), 2_000_000), "norm").pvalue > 1e-7


def test_a_standard_deviation_two_percent_off_would_be_noticed():
    """The power of the test above: it misses this with p < 1e-6."""
    assert stats.kstest(1.02 * draws(secure(), 2_000_000), "norm").pvalue < 1e-7


def test_hazard_18_tails_are_full():
    """Exact binomial tests at 4, 4.5 and 5 sigma: false alarms below 3e-7.

    A generator that stops at 5 sigma has no draw where 23 are expected.
    """
    source, trials, beyond = secure(), 0, dict.fromkeys((4.0, 4.5, 5.0), 0)
    for _ in range(8):
        z = np.abs(draws(source, 5_000_000))
        trials += len(z)
        beyond = {bound: count + int((z > bound).sum()) for bound, count in beyond.items()}
    for bound, count in beyond.items():
        expected = 2 * stats.norm.sf(bound)
        assert stats.binomtest(count, trials, expected).pvalue > 1e-7, (bound, count)


def test_hazard_18_draws_carry_float64_bits():
    """A normal drawn in float32 would survive the round trip; in float64, one in 2^29 does.

    More than 100 of 1e5 do so with probability far below 1e-100.
    """
    z = secure().normal((100_000,))
    assert z.dtype is torch.float64
    assert int((z.float().double() == z).sum()) < 100


@pytest.mark.parametrize("power", [1, 2], ids=["draws", "squares"])
def test_draws_do_not_depend_on_earlier_ones(power):
    """20 lags, 5.8 standard errors each: false alarms below 2e-7 (squares: below 1e-6)."""
    z = draws(secure(), 2_000_000) ** power
    z = (z - z.mean()) / z.std()
    correlations = {lag: float(np.mean(z[lag:] * z[:-lag])) for lag in range(1, 21)}
    bound = 5.8 / math.sqrt(len(z))
    assert {lag: c for lag, c in correlations.items() if abs(c) > bound} == {}


def test_tensors_drawn_one_after_the_other_are_uncorrelated():
    """One bound of 5.5 standard errors: false alarms below 4e-8."""
    source = secure()
    first, second = draws(source, 1_000_000), draws(source, 1_000_000)
    assert abs(float(np.mean(first * second))) < 5.5 / math.sqrt(1_000_000)


# --- nothing is ever drawn twice ---


def test_two_secure_sources_share_no_draw():
    """False alarms below 1e-7."""
    assert shared(draws(secure()), draws(secure())).size == 0


def test_two_secure_sources_draw_different_batches():
    """False alarms below 1e-7."""
    assert shared(secure().generator.random(10_000), secure().generator.random(10_000)).size == 0


def test_sources_made_in_threads_share_no_draw():
    """1.2e8 pairs of values: false alarms below 1e-7."""
    with ThreadPoolExecutor(4) as pool:
        taken = np.concatenate(list(pool.map(lambda _: draws(secure(), 4000), range(4))))
    assert len(np.unique(taken)) == len(taken)


def test_threads_that_share_one_source_share_no_draw():
    """1.2e8 pairs of values: false alarms below 1e-7."""
    source = secure()
    with ThreadPoolExecutor(4) as pool:
        taken = np.concatenate(list(pool.map(lambda _: draws(source, 500), range(32))))
    assert len(np.unique(taken)) == len(taken)


SOURCES = {"secure": secure, "reproducible": lambda: reproducible_not_private(3)}


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_hazard_16_a_forked_child_repeats_no_noise(make):
    """False alarms below 1e-7."""
    source = make()
    child = in_a_forked_child(lambda: draws(source))
    assert shared(child, draws(source)).size == 0


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_hazard_16_a_forked_child_repeats_no_batches(make):
    """False alarms below 1e-7."""
    source = make()
    child = in_a_forked_child(lambda: source.generator.random(10_000))
    assert shared(child, source.generator.random(10_000)).size == 0


@pytest.fixture
def many_cores(monkeypatch):
    """Blocks are drawn ahead, whatever the machine."""
    monkeypatch.setattr(threads, "usable_cores", lambda: torch.get_num_threads() + 1)


def large(source):
    """Some of the numbers of a draw of several blocks, and of what follows it."""
    block = source.normal((3 * BLOCK,)).numpy()[:: BLOCK // 1000]
    return np.concatenate([block, draws(source, 1000)])


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_hazard_16_a_child_repeats_nothing_that_waits_in_its_parent(make, many_cores):
    """Threads, the rest of a page and blocks drawn ahead are there. False alarms below 1e-7."""
    source = make()
    large(source)
    assert len(source._own().noise._ahead) == 3
    child = in_a_forked_child(lambda: large(source))
    assert shared(child, large(source)).size == 0


def test_hazard_16_a_child_can_draw_while_its_parent_does(many_cores):
    """What others held at the fork stays held for ever. False alarms below 1e-7."""
    source, inside, done = secure(), threading.Event(), threading.Event()

    def wait(_start, _values):
        inside.set()
        done.wait(60)

    parent = threading.Thread(target=source.draw, args=(3 * BLOCK, wait))
    parent.start()
    inside.wait(60)
    child = in_a_forked_child(lambda: large(source))
    done.set()
    parent.join()
    assert shared(child, large(source)).size == 0


def test_hazard_16_a_process_number_that_comes_back_repeats_nothing(monkeypatch):
    """A grandchild may get the number of its grandfather. False alarms below 1e-7."""
    source, number = secure(), os.getpid()

    def draw_under_the_old_number():
        monkeypatch.setattr(os, "getpid", lambda: number)
        return draws(source)

    assert shared(in_a_forked_child(draw_under_the_old_number), draws(source)).size == 0


def test_a_process_that_is_spawned_repeats_no_draw():
    """False alarms below 1e-7."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        spawned = pool.apply(_draws_of_a_new_source)
    assert shared(spawned, draws(secure())).size == 0


def _draws_of_a_new_source():
    return draws(secure())


def test_hazard_16_two_children_differ_from_each_other():
    """False alarms below 1e-7."""
    source = secure()
    first, second = (in_a_forked_child(lambda: draws(source)) for _ in range(2))
    assert shared(first, second).size == 0


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda source: pickle.loads(pickle.dumps(source))}


@pytest.mark.parametrize("duplicate", COPIES.values(), ids=COPIES)
def test_hazard_16_a_copy_is_refused_or_draws_afresh(duplicate):
    """A copy that repeats the noise lets anyone subtract it. False alarms below 1e-7."""
    source = secure()
    try:
        copied = duplicate(source)
    except TypeError:
        return
    assert shared(draws(copied), draws(source)).size == 0


# --- the reproducible source ---


def test_the_same_seed_gives_the_same_draws():
    first, second = reproducible_not_private(7), reproducible_not_private(7)
    assert np.array_equal(draws(first), draws(second))
    assert np.array_equal(first.generator.random(100), second.generator.random(100))


def test_another_seed_gives_other_draws():
    first, second = reproducible_not_private(7), reproducible_not_private(8)
    assert shared(draws(first), draws(second)).size == 0
    assert shared(first.generator.random(100), second.generator.random(100)).size == 0


def test_noise_and_batches_come_from_different_streams():
    source = reproducible_not_private(7)
    assert shared(draws(source), source.generator.standard_normal(10_000)).size == 0


def test_batches_do_not_shift_the_noise():
    first, second = reproducible_not_private(7), reproducible_not_private(7)
    second.generator.random(1000)
    assert np.array_equal(draws(first), draws(second))


def test_only_the_reproducible_source_carries_the_mark():
    assert reproducible_not_private(7).mark == REPRODUCIBLE_MARK
    assert "not private" in REPRODUCIBLE_MARK
    assert secure().mark is None


# --- what is released ---


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
