"""Samplers draw what they are charged for. Every statistical test states its false-alarm rate.

Counts are compared with exact binomial laws; many counts at once with Bonferroni's correction.
"""

from itertools import islice

import numpy as np
import pytest
from scipy import stats

from adadps.accounting.contract import Grouping
from adadps.accounting.samplers import fixed_size, poisson, shuffled
from adadps.engine.noise.randomness import reproducible_not_private, secure
from adadps.errors import DataError
from adadps.types import Accountant

FALSE_ALARM = 1e-7  # of each call of `require_binomial`


def require_binomial(counts, trials, rate):
    """Every count is Binomial(trials, rate): exact, two-sided, Bonferroni."""
    counts = np.atleast_1d(counts)
    law = stats.binom(trials, rate)
    smallest = 2 * np.minimum(law.cdf(counts), law.sf(counts - 1)).min()
    assert smallest * len(counts) > FALSE_ALARM, (counts.min(), counts.max(), trials * rate)


def drawn(sampler, count, size=None):
    source = secure()
    return list(islice(sampler.batches(size or sampler.examples, source.generator), count))


def membership(batches, size):
    """One row a batch, one column a unit: 1 where the unit was drawn."""
    table = np.zeros((len(batches), size), dtype=np.int32)
    for row, batch in zip(table, batches, strict=True):
        row[batch] = 1
    return table


def together(table):
    """In how many batches each pair of units met."""
    pairs = (table.T.astype(np.float64) @ table).astype(int)
    return pairs[np.triu_indices(len(pairs), 1)]


# --- Poisson ---


@pytest.fixture(scope="module")
def poisson_table():
    sampler = poisson(examples=150, expected_size=15)
    return membership(drawn(sampler, 20_000), 150)


def test_hazard_02_every_unit_is_drawn_at_the_declared_rate(poisson_table):
    require_binomial(poisson_table.sum(0), len(poisson_table), 0.1)


def test_hazard_02_every_pair_of_units_is_drawn_independently(poisson_table):
    require_binomial(together(poisson_table), len(poisson_table), 0.01)


def test_hazard_02_successive_batches_are_independent(poisson_table):
    both = poisson_table[0::2] & poisson_table[1::2]
    require_binomial(both.sum(0), len(both), 0.01)


def test_hazard_02_batch_sizes_vary_as_a_binomial(poisson_table):
    """5.5 standard errors of mean and variance: false alarms below 1e-7."""
    sizes, variance = poisson_table.sum(1), 150 * 0.1 * 0.9
    assert abs(sizes.mean() - 15) < 5.5 * np.sqrt(variance / len(sizes))
    assert abs(sizes.var() / variance - 1) < 5.5 * np.sqrt(2 / len(sizes))


def test_hazard_02_the_checks_notice_a_sampler_that_is_not_independent():
    """Two units that always come together, all rates right: the pairwise check must fail."""
    table = membership(drawn(poisson(examples=20, expected_size=2), 5000), 20)
    table[:, 1] = table[:, 0]
    require_binomial(table.sum(0), len(table), 0.1)
    with pytest.raises(AssertionError):
        require_binomial(together(table), len(table), 0.01)


def test_poisson_batches_hold_no_row_twice():
    for batch in drawn(poisson(examples=50, expected_size=40), 200):
        assert len(np.unique(batch)) == len(batch)


def test_hazard_08_empty_batches_occur_as_often_as_they_should():
    """(1 - 1/1000)^1000 of all batches: about 37 %."""
    batches = drawn(poisson(examples=1000, expected_size=1), 10_000)
    empty = sum(len(batch) == 0 for batch in batches)
    require_binomial(empty, len(batches), (1 - 1e-3) ** 1000)


def test_rate_one_takes_everything():
    for batch in drawn(poisson(examples=100, expected_size=100), 20):
        assert np.array_equal(batch, np.arange(100))


@pytest.mark.parametrize("size", [500, 1000, 2000])
def test_hazard_04_the_rate_follows_the_declared_number_not_the_data(size):
    sampler = poisson(examples=1000, expected_size=100)
    batches = drawn(sampler, 2000, size)
    require_binomial(sum(len(batch) for batch in batches), size * len(batches), 0.1)


@pytest.mark.parametrize("size", [500, 2000])
def test_hazard_04_the_charge_does_not_look_at_the_data(size):
    sampler = poisson(examples=1000, expected_size=100)
    drawn(sampler, 3, size)
    event = sampler.step_event(1.0, 1, Accountant.RDP, Grouping.NONE)
    assert event.sampling_probability == 0.1
    assert sampler.expected_size == 100
    assert sampler.steps(2) == 20


# --- fixed size ---


@pytest.fixture(scope="module")
def fixed_batches():
    return drawn(fixed_size(examples=100, expected_size=20), 10_000)


def test_fixed_batches_have_exactly_the_size_and_no_row_twice(fixed_batches):
    for batch in fixed_batches:
        assert len(np.unique(batch)) == len(batch) == 20
        assert batch.min() >= 0
        assert batch.max() < 100


def test_hazard_02_fixed_batches_draw_every_unit_equally_often(fixed_batches):
    require_binomial(membership(fixed_batches, 100).sum(0), len(fixed_batches), 20 / 100)


def test_hazard_02_fixed_batches_draw_every_pair_equally_often(fixed_batches):
    rate = 20 * 19 / (100 * 99)
    require_binomial(together(membership(fixed_batches, 100)), len(fixed_batches), rate)


def test_hazard_02_successive_fixed_batches_are_independent(fixed_batches):
    table = membership(fixed_batches, 100)
    both = table[0::2] & table[1::2]
    require_binomial(both.sum(0), len(both), (20 / 100) ** 2)


# --- shuffled ---


def epochs(sampler, count):
    batches = drawn(sampler, count * sampler.steps_per_epoch)
    return [
        batches[start : start + sampler.steps_per_epoch]
        for start in range(0, len(batches), sampler.steps_per_epoch)
    ]


@pytest.mark.parametrize(("examples", "size"), [(100, 20), (103, 20), (7, 7), (5, 1)])
def test_shuffled_covers_every_row_once_an_epoch(examples, size):
    for epoch in epochs(shuffled(examples=examples, expected_size=size), 5):
        assert np.array_equal(np.sort(np.concatenate(epoch)), np.arange(examples))
        assert [len(batch) for batch in epoch[:-1]] == [size] * (len(epoch) - 1)
        assert len(epoch[-1]) == (examples % size or size)


def test_shuffled_reorders_every_epoch():
    """Any two of three orders of 100 rows are equal with probability 3/100! < 1e-150."""
    orders = [tuple(np.concatenate(e)) for e in epochs(shuffled(examples=100, expected_size=20), 3)]
    assert len({*orders, tuple(range(100))}) == 4


def test_shuffled_puts_every_unit_equally_often_into_each_batch():
    found = epochs(shuffled(examples=40, expected_size=10), 10_000)
    for position in range(4):
        table = membership([epoch[position] for epoch in found], 40)
        require_binomial(table.sum(0), len(found), 10 / 40)


def test_shuffled_draws_every_pair_into_one_batch_equally_often():
    found = epochs(shuffled(examples=40, expected_size=10), 10_000)
    table = membership([epoch[0] for epoch in found], 40)
    require_binomial(together(table), len(found), 10 * 9 / (40 * 39))


# --- all ---


@pytest.mark.parametrize("make", [fixed_size, shuffled])
@pytest.mark.parametrize("size", [99, 101])
def test_hazard_04_samplers_that_rest_on_the_number_refuse_another(make, size):
    sampler = make(examples=100, expected_size=10)
    with pytest.raises(DataError, match=rf"100 declared units, found {size}\. .*declare the true"):
        next(sampler.batches(size, secure().generator))


@pytest.mark.parametrize("make", [poisson, fixed_size, shuffled])
def test_batches_follow_the_given_randomness_alone(make):
    sampler = make(examples=100, expected_size=10)
    first, second, other = (
        np.concatenate(
            list(islice(sampler.batches(100, reproducible_not_private(seed).generator), 12))
        )
        for seed in (1, 1, 2)
    )
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)
