"""The noise of counts has the stated deviation, and a name of one unit passes τ with at most δ_τ.

Every statistical comparison has a false-alarm rate below 1e-6 (exact binomial laws).
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from adadps import Accountant, Budget
from adadps.accounting.noisy_counts.histograms import (
    LOWEST,
    OCCUPIED_PART,
    OCTAVES,
    PARTS,
    PLACES,
    NameCounts,
    OctaveCounts,
)
from adadps.accounting.noisy_counts.price import OCCUPIED, CountedColumns, Price, price_of
from adadps.engine.noise.randomness import secure
from adadps.types import Relation

FALSE_ALARM, NAMES = 1e-6, 20_000
ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE
PRICE = Price(CountedColumns(names=4), 10.0, 0.01, ADD, Accountant.RDP, alone=0.0)


def require_binomial(count, trials, rate):
    law = stats.binom(trials, rate)
    assert 2 * min(law.cdf(count), law.sf(count - 1)) > FALSE_ALARM, (count, trials * rate)


def kept_share(above):
    """How many of many names are kept whose true count is so many deviations above τ."""
    count = round(PRICE.threshold + above * PRICE.deviation)
    held = NameCounts()
    held.counts.update(dict.fromkeys(range(NAMES), count))
    distance = (count - PRICE.threshold) / PRICE.deviation
    return len(held.release(PRICE, secure())), float(stats.norm.cdf(distance))


@pytest.mark.parametrize("above", [-1.5, -0.5, 0.0, 1.0])
def test_the_noise_of_names_has_the_stated_deviation(above):
    found, rate = kept_share(above)
    require_binomial(found, NAMES, rate)


@given(
    names=st.integers(1, 50),
    numbers=st.integers(0, 20),
    sigma=st.floats(0.5, 1e4),
    delta=st.floats(1e-12, 0.2),
    relation=st.sampled_from([ADD, REPLACE]),
)
def test_a_name_of_one_unit_passes_with_no_more_than_delta(names, numbers, sigma, delta, relation):
    """1 - Φ((τ-1)/s)^k <= δ_τ, k twice as large where a unit is replaced; rounding included."""
    price = Price(CountedColumns(names, numbers), sigma, delta, relation, Accountant.RDP, alone=0.0)
    tables = names * (2 if relation is REPLACE else 1)
    rounded_up = price.deviation / 2048  # half a width of the grid
    one = stats.norm.sf((price.threshold - rounded_up - 1) / price.deviation)
    passes = -math.expm1(tables * math.log1p(-one))
    assert passes <= delta
    assert passes > delta * 0.9, "and with no more noise than that takes"


def test_names_of_one_unit_pass_as_rarely_as_was_paid_for():
    """At a large δ_τ, where it can be seen: in k columns together."""
    price = replace(PRICE, delta=0.2)
    trials = 5000
    held = [NameCounts() for _ in range(price.columns.names)]
    for counts in held:
        counts.add(["somebody"])
    source = secure()
    passed = sum(any(counts.release(price, source) for counts in held) for _ in range(trials))
    law = stats.binom(trials, price.delta)
    assert law.sf(passed - 1) > FALSE_ALARM, "not more often"
    assert passed > 0.1 * trials, "and it can happen at all"


def test_octaves_have_noise_of_the_stated_deviation():
    """An octave with 4 s + x numbers is seen with probability Φ(x/s)."""
    deviation, trials = 25.0, 4000
    counts = OctaveCounts()
    counts.octaves[OCTAVES + 30] = 4.5 * deviation
    seen, source = 0, secure()
    for _ in range(trials):
        bounds = counts.release(deviation, source)
        # others look occupied now and then, which widens bounds beyond this octave
        seen += bounds is not None and bounds[0] <= 2.0**9 and bounds[1] >= 2.0**10
    beside = 1 - stats.norm.cdf(4) ** (PLACES - 1)
    rate = stats.norm.cdf(0.5)
    low, high = (
        stats.binom.ppf(FALSE_ALARM, trials, rate - beside),
        (stats.binom.isf(FALSE_ALARM, trials, rate + beside)),
    )
    assert low <= seen <= high


def test_empty_columns_have_no_bounds_but_rarely():
    trials, source = 2000, secure()
    found = sum(OctaveCounts().release(10.0, source) is not None for _ in range(trials))
    rate = 1 - stats.norm.cdf(4) ** PLACES
    require_binomial(found, trials, rate)


def releases(values, trials=400):
    counts, source = OctaveCounts(), secure()
    counts.add(values)
    return [counts.release(30.0, source) for _ in range(trials)]


def test_bounds_of_many_numbers_are_those_of_nearly_all():
    """Empty parts of the same octave, and empty octaves, look occupied at their stated rates."""
    years = np.random.default_rng(0).integers(1990, 2024, 20_000).astype(float)
    found = releases(np.concatenate([years, [1e12, -1e12]]))
    rate = stats.norm.cdf(OCCUPIED) ** (PLACES - 1) * stats.norm.cdf(OCCUPIED_PART) ** (PARTS - 1)
    require_binomial(found.count((1984.0, 2048.0)), len(found), rate)
    assert all(low <= 1984.0 and high >= 2048.0 for low, high in found)


def test_bounds_of_numbers_down_to_zero_begin_at_zero():
    found = releases(np.random.default_rng(0).uniform(0, 10, 20_000))
    above = OCTAVES + 1 - LOWEST + 3  # the place of 8 to 16, of which four sixteenths are occupied
    empty = stats.norm.cdf(OCCUPIED) ** (PLACES - 1 - above)
    rate = empty * stats.norm.cdf(OCCUPIED_PART) ** (PARTS - 4)
    require_binomial(sum(high == 10.0 for low, high in found), len(found), rate)
    assert all(low <= 0.0 and high >= 10.0 for low, high in found)


def test_octaves_are_counted_in_sixteenths():
    assert OctaveCounts().parts.shape == (PLACES, PARTS)


@pytest.mark.parametrize("accountant", Accountant)
@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_the_price_is_a_fifth_of_epsilon_if_it_were_alone(accountant, relation):
    budget = Budget(1.0, 1e-5)
    price = price_of(
        CountedColumns(3, 2),
        units=10**6,
        what="examples",
        budget=budget,
        accountant=accountant,
        relation=relation,
    )
    assert 0.199 < price.alone <= 0.2
    assert price.delta == pytest.approx(1e-6)
    moves = price.columns.sensitivity * (math.sqrt(2) if relation is REPLACE else 1)
    assert moves / price.deviation == pytest.approx(1 / _gaussian(accountant), rel=0.01)


def _gaussian(accountant):
    """The noise multiplier of a plain Gaussian of ε = 0.2 at δ = 9e-6, under add or remove."""
    columns = CountedColumns(names=1)
    price = price_of(
        columns,
        units=10**6,
        what="examples",
        budget=Budget(1.0, 1e-5),
        accountant=accountant,
        relation=ADD,
    )
    return price.noise_multiplier
