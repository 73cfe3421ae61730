"""Columns between bounds: estimators and tables scale them alike."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from adadps.data.bounds import Bounds
from adadps.data.tables import Table
from adadps.errors import SettingError
from adadps.estimators.rows import RowScaling
from adadps.estimators.tables.features import RowFeatures, Targets
from adadps.estimators.tables.schema import Label, Numeric, Schema

FINITE = st.floats(allow_nan=False, allow_infinity=False)


def test_tables_and_estimators_scale_numbers_alike():
    rows = np.random.default_rng(0).normal(20, 30, (50, 2))
    schema = Schema((), (Numeric("a", 0, 40), Numeric("b", -7, 90)), (), Label("y", ("u", "v")))
    table = Table("t.csv", ("a", "b"), rows.astype(str).tolist(), list(range(2, 52)))
    found = RowFeatures(schema, ())(table).toarray()[:, :2] * np.sqrt(2)  # beside a constant
    bounds = Bounds.given(([0, -7], [40, 90]), 2, "feature_bounds")
    np.testing.assert_allclose(
        found, RowScaling(bounds, normalised=False)(rows), rtol=1e-6, atol=1e-7
    )
    targets = Targets(Label("a", regression=True, low=0, high=40))(table)
    np.testing.assert_allclose(targets, bounds.to_unit(rows)[:, 0], rtol=1e-6, atol=1e-7)


@settings(max_examples=200, deadline=None)
@given(FINITE, FINITE, FINITE)
def test_no_bounds_and_no_number_leave_the_unit_interval(one, other, number):
    bounds = Bounds.given((min(one, other), max(one, other)), 1, "bounds")
    found = bounds.to_unit(np.array([[number]]))
    assert np.abs(found).max() <= 1
    back = bounds.from_unit(found)
    assert bounds.low <= back <= bounds.high


def test_bounds_go_to_the_ends_and_come_back():
    bounds = Bounds.given(([0.1, -3.0], [0.7, 11.0]), 2, "bounds")
    ends = np.array([[0.1, -3.0], [0.7, 11.0], [0.4, 4.0]])
    np.testing.assert_allclose(bounds.to_unit(ends), [[-1, -1], [1, 1], [0, 0]], atol=1e-15)
    np.testing.assert_allclose(bounds.from_unit(bounds.to_unit(ends)), ends)


@pytest.mark.parametrize("pair", [(-4, 4), ([-1, -9], [1, 9])])
def test_sparse_rows_are_scaled_like_dense_ones(pair):
    rows = np.array([[0.0, 12.0], [-5.0, 0.0], [0.5, 3.0]])
    bounds = Bounds.given(pair, 2, "bounds")
    found = bounds.to_unit(sparse.csr_matrix(rows))
    assert sparse.issparse(found)
    np.testing.assert_array_equal(found.toarray(), bounds.to_unit(rows))


@pytest.mark.parametrize("given", [[(17, 90), (1, 99)], [(0, 90), (1, 99)]])
def test_pairs_by_column_are_refused_with_the_cure(given):
    """They would be read as two lists of bounds, without a word."""
    with pytest.raises(SettingError, match="all lows first"):
        Bounds.given(given, 2, "feature_bounds")
