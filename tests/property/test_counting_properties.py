"""One unit moves the counts by at most the sensitivity that the noise is calibrated for."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adadps.accounting.noisy_counts.histograms import (
    HIGHEST,
    OCTAVES,
    PLACES,
    OctaveCounts,
    bounds_of,
    places_of,
)
from adadps.data.tables import Table
from adadps.engine.noise.randomness import reproducible_not_private
from adadps.estimators.tables.paid_survey import (
    ColumnCounts,
    cells_of,
    columns_of,
    one_row_per_user,
)
from adadps.estimators.tables.schema import Categorical, Label, Numeric, Schema

SCHEMA = Schema(
    (),
    (Numeric("age"), Numeric("known", 0, 1)),
    (Categorical("country"), Categorical("ward")),
    Label("kind"),
)
HEADER = ("age", "known", "country", "ward", "kind", "user")
NAMES = st.sampled_from(["a", "b", "c", "d", "other", "nan"])
AGES = st.floats(-1e9, 1e9).map(str)
CELLS = st.tuples(AGES, st.just("0.5"), NAMES, NAMES, NAMES.filter(lambda name: name != "nan"))
USERS = st.sampled_from([f"u{number}" for number in range(4)])
ROWS = st.lists(st.tuples(CELLS, USERS), min_size=1, max_size=12)


def table(rows):
    held = [[*cells, user] for cells, user in rows]
    return Table(Path("t.csv"), HEADER, held, list(range(2, len(held) + 2)))


def counted(rows, *, by_user=False):
    """All counts as one vector, under the same randomness."""
    randomness, counts = reproducible_not_private(0), ColumnCounts.of(SCHEMA)
    if by_user:
        counts.add(one_row_per_user([table(rows)], SCHEMA, "user", randomness))
    else:
        counts.add(cells_of(table(rows), SCHEMA, randomness))
    found = {(column, name): count for column, held in counts.names.items()
             for name, count in held.counts.items()}  # fmt: skip
    for column, held in counts.numbers.items():
        for place in np.argwhere(held.parts):
            found[column, "part", *place.tolist()] = held.parts[tuple(place)]
        for place in np.flatnonzero(held.octaves):
            found[column, "octave", int(place)] = held.octaves[place]
    return found


def moved(one, other):
    keys = one.keys() | other.keys()
    return math.sqrt(sum((one.get(key, 0) - other.get(key, 0)) ** 2 for key in keys))


def test_the_columns_that_are_counted():
    columns = columns_of(SCHEMA)
    assert (columns.names, columns.numbers) == (3, 1)
    assert columns.sensitivity == pytest.approx(math.sqrt(5))


@given(ROWS, st.tuples(CELLS, USERS))
@settings(deadline=None)
def test_a_row_more_moves_the_counts_by_no_more_than_the_sensitivity(rows, more):
    assert moved(counted(rows), counted([*rows, more])) <= columns_of(SCHEMA).sensitivity + 1e-9


@given(ROWS, st.tuples(CELLS, USERS))
@settings(deadline=None)
def test_another_row_moves_them_by_root_two_of_it(rows, other):
    most = math.sqrt(2) * columns_of(SCHEMA).sensitivity
    assert moved(counted(rows), counted([*rows[:-1], other])) <= most + 1e-9


@given(ROWS, st.lists(CELLS, min_size=1, max_size=12))
@settings(deadline=None)
def test_a_user_with_many_rows_moves_them_like_one_row(rows, more):
    """Append the rows of a user at the end, so that the draws for all others are the same."""
    added = [*rows, *((cells, "the last one") for cells in more)]
    before, after = counted(rows, by_user=True), counted(added, by_user=True)
    assert moved(before, after) <= columns_of(SCHEMA).sensitivity + 1e-9


@given(st.floats(-(2.0 ** (HIGHEST + 1)), 2.0 ** (HIGHEST + 1)))
def test_a_number_lies_within_the_bounds_of_its_own_place(value):
    counts = OctaveCounts()
    counts.add(np.array([value]))
    low, high = bounds_of(100 * counts.octaves, 100 * counts.parts, 1.0)
    near_zero = 2.0**-20
    assert low - near_zero <= value <= high + near_zero
    assert low < high


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_every_number_has_a_place(values):
    places, parts = places_of(np.array(values))
    assert ((places >= 0) & (places < PLACES)).all()
    assert ((parts >= 0) & (parts < 16)).all()
    assert (np.sign(places - OCTAVES) * np.sign(values) >= 0).all()
