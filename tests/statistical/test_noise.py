"""The source of private draws: its law and its independence.

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
from adadps.engine.noise.randomness import REPRODUCIBLE_MARK, reproducible_not_private, secure
from adadps.tensors import loops


def draws(source, count=10_000):
    return source.normal((count,)).numpy()


def shared(first, second):
    """Values that occur in both; two independent samples of 1e4 share one with p < 1e-7."""
    return np.intersect1d(first, second)


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
    monkeypatch.setattr(loops, "usable_cores", lambda: torch.get_num_threads() + 1)


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
