"""Users are drawn at the declared rate, and bring uniform subsets of their own rows.

Counts are compared with exact binomial laws, as in `test_samplers`; each comparison has a
false-alarm rate below 1e-7.
"""

from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from adadps import poisson
from support.user_tables import batches, table

SIZES = [1, 2, 3, 5, 8, 40]  # rows of each user
USERS = np.repeat(np.arange(6), SIZES)
DRAWS = 6000
FALSE_ALARM = 1e-7


def require_binomial(counts, trials, rate):
    """Every count is Binomial(trials, rate): exact, two-sided, Bonferroni."""
    counts, law = np.atleast_1d(counts), stats.binom(trials, rate)
    smallest = 2 * np.minimum(law.cdf(counts), law.sf(counts - 1)).min()
    assert smallest * len(counts) > FALSE_ALARM, (counts.min(), counts.max(), trials * rate)


@pytest.fixture(scope="module")
def drawn():
    """One row a batch, one column a row of the table: 1 where it was brought."""
    found = np.zeros((DRAWS, len(USERS)), dtype=np.int64)
    sampler = poisson(users=6, expected_size=1.8)
    for line, (rows, _) in zip(
        found, batches(table(USERS), 3, DRAWS, sampler=sampler), strict=True
    ):
        line[rows] = 1
    return found


@pytest.fixture(scope="module")
def joined(drawn):
    """One row a batch, one column a user: how many rows they brought."""
    return np.stack([drawn[:, user == USERS].sum(1) for user in range(6)], axis=1)


def test_hazard_02_every_user_is_drawn_at_the_declared_rate_however_many_rows(joined):
    require_binomial((joined > 0).sum(0), DRAWS, 0.3)


def test_hazard_02_users_are_drawn_independently_of_each_other(joined):
    there = (joined > 0).astype(int)
    pairs = [(there[:, one] * there[:, other]).sum() for one, other in combinations(range(6), 2)]
    require_binomial(np.array(pairs), DRAWS, 0.09)
    require_binomial((there[0::2] * there[1::2]).sum(0), DRAWS // 2, 0.09)


def test_user_hazard_a_user_brings_all_rows_or_exactly_the_bound(joined):
    for user, size in enumerate(SIZES):
        assert set(joined[:, user].tolist()) == {0, min(size, 3)}


def test_user_hazard_every_row_of_a_user_is_brought_equally_often(drawn):
    for user, size in enumerate(SIZES):
        require_binomial(drawn[:, user == USERS].sum(0), DRAWS, 0.3 * min(1, 3 / size))


def test_user_hazard_every_subset_of_a_users_rows_is_equally_likely(drawn):
    """Ten subsets of three of the user with five rows."""
    brought = drawn[:, USERS == 3]
    subsets = [(brought[:, list(rows)].prod(1)).sum() for rows in combinations(range(5), 3)]
    require_binomial(np.array(subsets), DRAWS, 0.3 / 10)


def test_user_hazard_a_subset_is_drawn_afresh_and_apart_from_those_of_others(drawn):
    """The first row of the user with five rows, and that of the one with eight."""
    rate = 0.3 * 3 / 5 * 0.3 * 3 / 8
    first, other = drawn[:, USERS == 3][:, 0], drawn[:, USERS == 4][:, 0]
    require_binomial((first * other).sum(), DRAWS, rate)
    require_binomial((first[0::2] * first[1::2]).sum(), DRAWS // 2, (0.3 * 3 / 5) ** 2)
