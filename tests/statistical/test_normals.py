"""The raw normals: the map from bits, the counters, the threads, and the law across blocks.

Every test that can fail by chance states how often it does so.
"""

import math
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from adadps.engine.noise import normals
from adadps.engine.noise.normals import BLOCK, PAGE, Normals
from adadps.engine.noise.normals import box_muller as compiled_box_muller
from adadps.tensors import loops

KEY = bytes(range(32))
SIZES = [1, 100, PAGE // 2, PAGE // 2 + 1, PAGE, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 12_345]


@pytest.fixture(autouse=True)
def _same_number_of_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def drawn(source, count):
    values = np.full(count, np.nan)

    def keep(start, part):
        values[start : start + len(part)] = part

    source.draw(count, keep)
    return values


def secret():
    return Normals(os.urandom(32))


def box_muller(integers):
    """The normals that these random integers are turned into."""
    bits = np.array(integers, dtype=np.int64).view(np.uint64)
    compiled_box_muller(bits)
    return bits.view(np.float64)


def in_a_row(*integers):
    """The pairs of normals that these integers k1, with every k2 of a circle, are turned into."""
    turns = np.array([0, 1, -1, 2**61, 2**62, 2**63 - 1, -(2**63)], dtype=np.int64)
    k1, k2 = (grid.ravel() for grid in np.meshgrid(np.array(integers, dtype=np.int64), turns))
    return box_muller(np.concatenate([k1, k2])).reshape(2, -1)


# --- from bits to normals ---


def test_hazard_18_the_extreme_integers_reach_past_nine_sigma():
    extremes = in_a_row(0, -1)
    assert np.abs(extremes).max() == pytest.approx(math.sqrt(2 * 64 * math.log(2)))
    assert np.abs(extremes).max() > 9.4


def test_every_integer_gives_finite_normals():
    integers = [0, -1, 1, -2, 2**53, 2**62, 2**63 - 1, -(2**63), -(2**63) + 1]
    assert np.isfinite(in_a_row(*integers)).all()
    assert np.abs(in_a_row(-(2**63), 2**63 - 1)).max() == 0.0


def test_the_map_is_box_muller_to_the_last_bits():
    """Against long doubles, on bits of every size."""
    rng = np.random.default_rng(3)
    bits = rng.integers(-(2**63), 2**63, 40_000) >> rng.integers(0, 62, 40_000)
    k1, k2 = bits.astype(np.longdouble).reshape(2, -1)
    radius = np.sqrt(-2 * np.log(np.abs(k1 + 0.5) * np.longdouble(2) ** -63))
    angle = k2 * (np.longdouble(math.pi) + np.longdouble(1.2246467991473532e-16)) / 2**63
    expected = np.concatenate([radius * np.sin(angle), radius * np.cos(angle)])
    error = np.abs(box_muller(bits) - expected.astype(np.float64))
    # u is known to half a unit in its last place, which is much for a tiny radius.
    bound = 1e-14 + 2.0**-52 / np.maximum(np.tile(radius.astype(np.float64), 2), 1e-8)
    assert (error < bound).all()


def test_hazard_18_beyond_six_sigma_the_law_is_that_of_the_tail():
    """Given u < 2^-28, -ln u - 28 ln 2 is exponential. Kolmogorov-Smirnov: false alarms at 1e-7."""
    bits = np.random.default_rng().integers(-(2**63), 2**63, BLOCK)
    bits[: BLOCK // 2] >>= 28
    sine, cosine = box_muller(bits).reshape(2, -1)
    squared = sine**2 + cosine**2
    assert squared.min() > 6.2**2
    assert stats.kstest(squared / 2 - 28 * math.log(2), "expon").pvalue > 1e-7


def test_the_bits_are_those_of_aes_in_counter_mode():
    """Block n holds the encrypted counters n · 2^32 + 2, n · 2^32 + 3, ..."""
    source = Normals(KEY)
    third = drawn(source, 3 * BLOCK)[2 * BLOCK :]
    counters = b"".join((2 * 2**32 + 2 + i).to_bytes(16, "big") for i in range(BLOCK // 2))
    encrypted = Cipher(algorithms.AES(KEY), modes.ECB()).encryptor().update(counters)
    assert np.array_equal(third, box_muller(np.frombuffer(encrypted, dtype=np.int64)))


# --- no counter is used twice ---


@pytest.fixture
def used(monkeypatch):
    """The numbers that are drawn with KEY, each with room for 2^32 - 2 counters."""
    loops.pools.ahead.submit(len, ()).result()  # what other tests ordered ahead is done
    numbers, draw = [], normals._BlockBuffer.draw

    def spy(desk, key, number, count):
        assert count // 2 <= 2**32 - 2
        if key == KEY:
            numbers.append(number)
        return draw(desk, key, number, count)

    monkeypatch.setattr(normals._BlockBuffer, "draw", spy)
    return numbers


def repeated(numbers):
    ordered = sorted(numbers)
    return [pair for pair in pairwise(ordered) if pair[0] == pair[1]]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("cores", [1, 8], ids=["on demand", "ahead"])
def test_requests_of_all_sizes_use_each_number_once(used, monkeypatch, workers, cores):
    monkeypatch.setattr(loops, "usable_cores", lambda: cores)
    torch.set_num_threads(workers)
    source = Normals(KEY)
    for size in SIZES + SIZES[::-1]:
        assert np.isfinite(drawn(source, size)).all()
    assert len(used) >= len(SIZES)
    assert repeated(used) == []


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("cores", [1, 8], ids=["on demand", "ahead"])
def test_threads_that_share_a_source_use_each_number_once(used, monkeypatch, workers, cores):
    monkeypatch.setattr(loops, "usable_cores", lambda: cores)
    torch.set_num_threads(workers)
    source = Normals(KEY)
    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(lambda size: drawn(source, size), SIZES * 4))
    assert all(np.isfinite(values).all() for values in taken)
    assert repeated(used) == []


def test_small_requests_share_no_number():
    """1e4 numbers, 5e7 pairs of them: false alarms below 1e-7."""
    source = secret()
    taken = np.concatenate([drawn(source, 7) for _ in range(1430)])
    assert len(np.unique(taken)) == len(taken)


# --- the same numbers, whoever draws them ---


def test_the_numbers_do_not_depend_on_the_number_of_threads():
    taken = []
    for workers in (1, 2, 4):
        torch.set_num_threads(workers)
        source = Normals(KEY)
        taken.append(np.concatenate([drawn(source, size) for size in SIZES]))
    assert np.array_equal(taken[0], taken[1])
    assert np.array_equal(taken[0], taken[2])


@pytest.mark.parametrize("workers", [1, 2])
def test_the_numbers_do_not_depend_on_what_was_drawn_ahead(monkeypatch, workers):
    torch.set_num_threads(workers)
    taken = []
    for cores in (1, 8):
        monkeypatch.setattr(loops, "usable_cores", lambda cores=cores: cores)
        source = Normals(KEY)
        parts = []
        for step, size in enumerate(SIZES * 3):
            parts.append(drawn(source, size))
            if step % 2:  # at times all is there, at times some of it
                for _, future in source._ahead:
                    future.result()
        assert bool(source._ahead) == (cores == 8)
        taken.append(np.concatenate(parts))
    assert np.array_equal(*taken)


def test_what_is_drawn_ahead_is_bounded(monkeypatch):
    monkeypatch.setattr(loops, "usable_cores", lambda: 8)
    monkeypatch.setattr(normals, "AHEAD_BYTES", 3 * 8 * BLOCK)
    source = Normals(KEY)
    for _ in range(4):
        drawn(source, 4 * BLOCK)  # all are missing at first, however fast the other thread is
        assert len(source._ahead) <= 3
    assert len(source._ahead) == 3


def test_torch_keeps_its_number_of_threads():
    torch.set_num_threads(2)
    drawn(secret(), 3 * BLOCK)
    seen = [torch.get_num_threads()]
    other = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    other.start()
    other.join()
    assert seen == [2, 2]


def test_an_error_in_a_thread_is_not_lost():
    def fail(_start, _values):
        raise ArithmeticError

    for workers in (1, 2):
        torch.set_num_threads(workers)
        with pytest.raises(ArithmeticError):
            secret().draw(3 * BLOCK, fail)


# --- the law ---


def test_hazard_18_tails_beyond_five_and_a_half_sigma_are_full():
    """Exact binomial tests at four bounds: false alarms below 4e-7.

    Of 5e8 draws 19 are expected beyond 5.5 sigma; a generator that stops there has none.
    """
    bounds, lock, chunk, chunks = (5.0, 5.25, 5.5, 6.0), threading.Lock(), 10_000_000, 50
    beyond = dict.fromkeys(bounds, 0)

    def count(_start, values):
        far = np.abs(values, out=values)[values > bounds[0]]
        with lock:
            for bound in bounds:
                beyond[bound] += int((far > bound).sum())

    source = secret()
    for _ in range(chunks):
        source.draw(chunk, count)
    for bound, found in beyond.items():
        expected = 2 * stats.norm.sf(bound)
        assert stats.binomtest(found, chunk * chunks, expected).pvalue > 1e-7, (bound, found)


def test_small_requests_have_the_law_of_large_ones():
    """Kolmogorov-Smirnov on 1e6 draws by two ways each: false alarms below 2e-7."""
    source = secret()
    for size in (1000, PAGE):
        taken = np.concatenate([drawn(source, size) for _ in range(1_000_000 // size)])
        assert stats.kstest(taken, "norm").pvalue > 1e-7


def test_a_pair_is_uniform_in_angle_and_exponential_in_squared_radius():
    """Two Kolmogorov-Smirnov tests and one of their correlation: false alarms below 3e-7."""
    sine, cosine = drawn(secret(), 4 * BLOCK).reshape(4, 2, BLOCK // 2).swapaxes(0, 1)
    angle = np.arctan2(sine, cosine).ravel() / math.pi
    halved = (sine**2 + cosine**2).ravel() / 2
    assert stats.kstest(angle, stats.uniform(-1, 2).cdf).pvalue > 1e-7
    assert stats.kstest(halved, "expon").pvalue > 1e-7
    correlation = np.mean((halved - 1) * angle * math.sqrt(3))
    assert abs(correlation) < 5.5 / math.sqrt(len(angle))


@pytest.mark.parametrize("power", [1, 2, 3], ids=["draws", "squares", "cubes"])
def test_draws_far_apart_do_not_depend_on_each_other(power):
    """Lags of a pair, a page and a block, and their neighbours: 15 bounds of 6 standard errors.

    False alarms below 1e-7 for draws (2e-9 each), below 1e-6 for powers with their heavier tails.
    """
    z = drawn(secret(), 8 * BLOCK) ** power
    z = (z - z.mean()) / z.std()
    lags = [lag + near for lag in (PAGE // 2, BLOCK // 2, BLOCK) for near in (-2, -1, 0, 1, 2)]
    found = {lag: float(np.mean(z[lag:] * z[:-lag]) * math.sqrt(len(z) - lag)) for lag in lags}
    assert {lag: error for lag, error in found.items() if abs(error) > 6} == {}


def test_borders_of_blocks_are_like_any_other_place():
    """5000 normals on each side of 40 borders: three bounds of 5.5 standard errors, below 2e-7."""
    edges = np.empty((41, 2, 5000))

    def keep(start, values):
        edges[start // BLOCK] = values[:5000], values[-5000:]

    secret().draw(41 * BLOCK, keep)
    before, after = edges[:-1, 1].ravel(), edges[1:, 0].ravel()
    count = len(before)
    assert abs(np.mean(before * after)) * math.sqrt(count) < 5.5
    assert abs(np.mean((before**2 - 1) * (after**2 - 1)) / 2) * math.sqrt(count) < 5.5
    assert abs(np.mean(edges**2) - 1) * math.sqrt(edges.size / 2) < 5.5
