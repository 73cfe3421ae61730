"""Rows as features: blocks, bounds, levels, and what happens to what is missing or unseen."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from adadps.data.tables import Table
from adadps.errors import DataError
from adadps.estimators.tables.features import RowFeatures, Targets
from adadps.estimators.tables.schema import Categorical, Label, Numeric, Schema
from adadps.estimators.text import BagOfWords
from adadps.methods.side import given_frequencies

WORDS = ("apple", "pear", "plum")
LABEL = Label("y", ("a", "b"))
MIXED = Schema(
    ("title", "body"),
    (Numeric("age", 0, 100), Numeric("height", 1, 2)),
    (Categorical("country", ("de", "fr")), Categorical("kind", ("x", "other"))),
    LABEL,
)
HEADER = ("title", "body", "age", "height", "country", "kind", "y")


def chunk(*rows, header=HEADER):
    return Table("t.csv", header, [list(row) for row in rows], list(range(2, 2 + len(rows))))


ROW = ("apple apple pear", "plum", "75", "1.5", "fr", "x", "a")


def test_texts_alone_are_bags_of_words_as_ever():
    schema = Schema(("title",), (), (), LABEL)
    features, texts = RowFeatures(schema, WORDS), ["apple apple pear", "plum", "nothing known"]
    found = features(chunk(*([text] for text in texts), header=("title",)))
    expected = BagOfWords(WORDS, dampened=True)(texts)
    assert (found.toarray() == expected.toarray()).all()
    assert (features.blocks, features.width, features.has_constant) == (1, 3, False)


def test_every_block_has_its_share():
    features = RowFeatures(MIXED, WORDS)
    assert (features.blocks, features.words, features.width) == (5, 6, 6 + 2 + 4 + 1)
    row = features(chunk(ROW)).toarray()[0] * np.sqrt(5)
    counts = np.log1p([2, 1, 0])
    assert np.allclose(row[:3], counts / np.linalg.norm(counts))
    assert np.allclose(row[3:6], [0, 0, 1])
    assert np.allclose(row[6:8], np.array([0.5, 0.0]) / np.sqrt(2))
    assert np.allclose(row[8:12], np.array([0, 1, 1, 0]) / np.sqrt(2))
    assert np.isclose(row[12], 1)


@settings(max_examples=50, deadline=None)
@given(
    st.text(alphabet="apleru m", max_size=60),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["de", "fr"]),
    st.text(min_size=1, max_size=3).filter(str.strip),
)
def test_no_row_is_longer_than_one(text, number, country, kind):
    rows = RowFeatures(MIXED, WORDS)(
        chunk((text + " plum", "pear", number, -number, country, kind, "a"))
    )
    assert sparse.linalg.norm(rows, axis=1)[0] <= 1 + 1e-6


def test_numbers_beyond_their_bounds_are_clipped():
    features = RowFeatures(MIXED, WORDS)
    beyond = (*ROW[:2], "1e300", "-1e300", *ROW[4:])
    at_bounds = (*ROW[:2], "100", "1", *ROW[4:])
    assert (features(chunk(beyond)) != features(chunk(at_bounds))).nnz == 0


@pytest.mark.parametrize("value", ["", "nan", "inf", "x", None, float("nan"), [1], "1e999"])
def test_what_is_no_finite_number_is_refused_with_its_line(value):
    row = (*ROW[:2], value, *ROW[3:])
    with pytest.raises(DataError, match=r"'age' of t\.csv, found .* on line 3"):
        RowFeatures(MIXED, WORDS)(chunk(ROW, row))


def test_missing_cells_are_filled_as_declared():
    filled = Schema(
        MIXED.texts,
        (Numeric("age", 0, 100, missing=25), Numeric("height", 1, 2)),
        MIXED.categorical,
        LABEL,
        fill_missing=True,
    )
    found = RowFeatures(filled, WORDS)(chunk(("", None, "", None, "", "", "a"))).toarray()[0]
    row = found * np.sqrt(5)
    assert np.allclose(row[:6], 0), "a text without words"
    assert np.allclose(row[6:8], np.array([-0.5, 0]) / np.sqrt(2)), "25 of 100, and the middle"
    assert np.allclose(row[8:12], np.array([0, 0, 0, 1]) / np.sqrt(2)), "no country; other kind"
    with pytest.raises(DataError, match=r"something else on line 2\. Correct it or leave"):
        RowFeatures(filled, WORDS)(chunk((*ROW[:2], "inf", *ROW[3:])))


@pytest.mark.parametrize("cell", ["", " ", "nan", "NaN", "NA", "n/a", "null", None, float("nan")])
def test_all_ways_to_write_a_missing_number_are_one(cell):
    row = (*ROW[:2], cell, *ROW[3:])
    filled = RowFeatures(replace(MIXED, fill_missing=True), WORDS)
    middle = (*ROW[:2], "50", *ROW[3:])
    assert (filled(chunk(row)) != filled(chunk(middle))).nnz == 0
    with pytest.raises(DataError, match=r"on line 2\. .*--missing fill"):
        RowFeatures(MIXED, WORDS)(chunk(row))


def test_unseen_levels_are_refused_or_other_or_nothing():
    features = RowFeatures(MIXED, WORDS)
    other_kind = features(chunk((*ROW[:5], "never seen", "a"))).toarray()[0]
    assert other_kind[10] == 0
    assert other_kind[11] > 0
    unseen = chunk(ROW, (*ROW[:4], "Lummerland", *ROW[5:]))
    with pytest.raises(DataError, match="another on line 3"):
        features(unseen)
    predicted = features(unseen, refuse_unseen=False).toarray()
    assert (predicted[1, 8:10] == 0).all()
    assert (np.delete(predicted[1], [8, 9]) == np.delete(predicted[0], [8, 9])).all()


def test_typical_rows_are_like_rows_and_know_nothing_of_the_data():
    features = RowFeatures(MIXED, WORDS)
    known = given_frequencies([0.5, 0.1, 0.1], source="a list", public_because="published")
    rows = features.typical(known)
    assert rows.shape == (400, features.width)
    norms = sparse.linalg.norm(rows, axis=1)
    assert norms.max() <= 1 + 1e-6
    assert (rows != features.typical(known)).nnz == 0


# Targets


def test_classes_labels_and_numbers_become_targets():
    header, rows = ("y",), (["a"], ["b"])
    assert Targets(LABEL)(chunk(*rows, header=header)).tolist() == [0, 1]
    tags = Targets(Label("y", ("a", "b", "c"), separator=";"))
    found = tags(chunk(["c; a"], ["b"], ["a;a"], header=header))
    assert found.tolist() == [[0.5, 0, 0.5], [0, 1, 0], [1, 0, 0]]
    numbers = Targets(Label("y", regression=True, low=0, high=10))
    assert numbers(chunk(["5"], [0], [12.5], header=header)).tolist() == [0, -1, 1]


@pytest.mark.parametrize("separator", [None, ";"])
def test_a_label_outside_of_the_classes_is_refused(separator):
    targets = Targets(Label("y", ("a", "b"), separator=separator))
    with pytest.raises(DataError, match="another on line 3"):
        targets(chunk(["a"], ["z"], header=("y",)))
