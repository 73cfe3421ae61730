"""Late noise in tables whose weights are large beside it: reading rounds nothing away.

A weight of 5 in float32 moves by units of 2^-21. Noise of a 32nd of that, rounded to float32 at
each read, would never move it; over 1,024 steps it has a standard deviation of one unit. So a row
that is read at every step must end with the same law as one that is read at the end, whatever the
type. False alarms: chi-square and KS tests at 1e-9, bounds of 7 standard errors below 3e-12 each.
"""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from adadps.engine.noise.late import LateRows
from adadps.engine.noise.randomness import grid, secure
from adadps.tensors.sums import RowSparse
from support.late_tables import BOUND

COLUMNS, STEPS, START = 10_000, 1024, 5.0
UNIT = 2.0**-21  # of a float32 between 4 and 8
NOISE = UNIT / 32
OFTEN, AT_THE_END = 0, 1


def no_change():
    return RowSparse(torch.empty(0).long(), torch.empty(0, COLUMNS).double(), (2, COLUMNS))


def both_change(size):
    values = torch.full((2, COLUMNS), size, dtype=torch.float64)
    return RowSparse(torch.tensor([0, 1]), values, (2, COLUMNS))


def in_memory():
    return torch.full((2, COLUMNS), START)


def out_of_reach():
    """A table that compiled loops cannot reach: its rows are brought to main memory and back."""
    return torch.full((2, 2 * COLUMNS), START)[:, ::2]


def trained(table, keep):
    """A change of both rows, and then noise: row 0 is read at every step, row 1 at the end."""
    late = LateRows(table, 0, secure())
    assert late.can_hold(NOISE)
    for step in range(STEPS):
        change = both_change(100 * NOISE) if step == 0 else no_change()
        late.add(change, deviation=NOISE, keep=keep)
        late.settle(torch.tensor([OFTEN]))
    late.settle()
    return table.double().numpy() + late._residual


@pytest.mark.parametrize("table", [in_memory, out_of_reach])
@pytest.mark.parametrize("keep", [1.0, 1 - 2.0**-14])
def test_rows_that_are_read_often_and_rarely_have_the_same_law(table, keep):
    weights = table()
    state = trained(weights, keep)
    mean = START * keep**STEPS + 100 * NOISE * keep ** (STEPS - 1)
    deviation = NOISE * math.sqrt(sum(keep ** (2 * step) for step in range(STEPS)))
    z = (state - mean) / deviation
    assert np.abs(z.mean(1)).max() < BOUND / math.sqrt(COLUMNS)
    assert np.abs(z.var(1) - 1).max() < BOUND * math.sqrt(2 / COLUMNS)
    assert stats.ks_2samp(*z, method="asymp").pvalue > 1e-9
    assert abs(np.corrcoef(z)[0, 1]) < BOUND / math.sqrt(COLUMNS)


@pytest.mark.parametrize("row", [OFTEN, AT_THE_END])
def test_the_parameter_has_the_law_of_the_rounded_sum(row):
    """P(k units) = Φ(k + ½) - Φ(k - ½) around 5 + 100 c, at a standard deviation of one unit."""
    weights = in_memory()
    trained(weights, 1.0)
    units = np.clip((weights[row].double().numpy() - START) / UNIT, 0, 6)
    edges = (np.arange(8) - 0.5) - 100 * NOISE / UNIT
    edges[0], edges[-1] = -math.inf, math.inf
    expected = COLUMNS * np.diff(stats.norm.cdf(edges))
    found = np.bincount(units.round().astype(int), minlength=7)
    assert stats.chisquare(found, expected).pvalue > 1e-9


@pytest.mark.parametrize("table", [in_memory, out_of_reach])
def test_the_parameter_is_the_rounding_of_multiples_of_the_grid(table):
    weights = table()
    state = trained(weights, 1.0)
    cells = state / grid(NOISE)
    assert np.array_equal(cells, np.rint(cells))
    assert np.abs(cells).min() > 2**24  # more than a float32 can hold
    assert np.array_equal(state.astype(np.float32), weights.numpy())
    assert not np.array_equal(state, weights.double().numpy())


def test_the_size_of_a_weight_takes_no_digit_from_change_and_noise():
    """Change and noise meet first: the same normals move a large weight as they move 0, exactly."""
    large, small = torch.full((1, 50), 2.0**30), torch.zeros(1, 50)
    moved = []
    for table in (large, small):
        begin = table.double().numpy()
        late = LateRows(table, 0, _Fixed())
        change = RowSparse(torch.tensor([0]), torch.full((1, 50), 1 / 3).double(), (1, 50))
        late.add(change, deviation=0.01, keep=1.0)
        late.settle()
        moved.append(table.double().numpy() + late._residual - begin)
    assert np.array_equal(*moved)


class _Fixed:
    """The same normals every time."""

    def draw(self, count, use):
        use(0, np.random.default_rng(1).standard_normal(count))
