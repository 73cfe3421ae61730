"""From counts to features: the formulas, and that a row depends only on its own text."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import sparse
from sklearn.feature_extraction.text import TfidfTransformer

from adadps_experiments.reproduce.text.recipes import CANDIDATES, PAPER, TF_IDF, Recipe

ALL = [PAPER, TF_IDF, *CANDIDATES, Recipe(power=0.5), Recipe(binary=True, relative=True)]
WORDS = 7

rows_of_counts = arrays.arrays(
    np.float32, st.tuples(st.integers(1, 6), st.just(WORDS)), elements=st.integers(0, 9)
)
idfs = arrays.arrays(np.float64, WORDS, elements=st.floats(0.1, 12))


def by_formula(recipe, counts, idf):
    counts = counts.astype(np.float64)
    values = np.log1p(counts) if recipe.dampened else counts
    values = (counts > 0).astype(float) if recipe.binary else values
    values = values * idf**recipe.power
    size = np.abs(values).sum(1) if recipe.relative else np.sqrt((values**2).sum(1))
    return np.divide(values, size[:, None], out=np.zeros_like(values), where=size[:, None] > 0)


@given(recipe=st.sampled_from(ALL), counts=rows_of_counts, idf=idfs)
def test_features_are_those_of_the_formula(recipe, counts, idf):
    before = sparse.csr_matrix(counts)
    found = recipe(before, idf)
    np.testing.assert_allclose(found.toarray(), by_formula(recipe, counts, idf), atol=2e-6)
    np.testing.assert_array_equal(before.toarray(), counts)  # the input is unchanged
    assert found.dtype == np.float32


@given(counts=rows_of_counts, idf=idfs)
def test_relative_counts_sum_to_one(counts, idf):
    sums = np.asarray(PAPER(sparse.csr_matrix(counts), idf).sum(axis=1)).ravel()
    np.testing.assert_allclose(sums, (counts.sum(1) > 0).astype(float), atol=1e-6)


@given(recipe=st.sampled_from([TF_IDF, *CANDIDATES]), counts=rows_of_counts, idf=idfs)
def test_other_rows_have_norm_one(recipe, counts, idf):
    norms = np.linalg.norm(recipe(sparse.csr_matrix(counts), idf).toarray(), axis=1)
    np.testing.assert_allclose(norms, (counts.sum(1) > 0).astype(float), atol=1e-6)


@given(recipe=st.sampled_from(ALL), counts=rows_of_counts, other=rows_of_counts, idf=idfs)
def test_a_row_depends_on_its_own_text_alone(recipe, counts, other, idf):
    mine = recipe(sparse.csr_matrix(counts), idf).toarray()[0]
    among_others = np.concatenate([other, counts[:1]])
    np.testing.assert_array_equal(recipe(sparse.csr_matrix(among_others), idf).toarray()[-1], mine)


@pytest.mark.parametrize("recipe", ALL, ids=str)
def test_empty_rows_stay_zero(recipe):
    found = recipe(sparse.csr_matrix((3, WORDS), dtype=np.float32), np.ones(WORDS)).toarray()
    assert found.shape == (3, WORDS)
    assert np.all(found == 0)


@pytest.mark.parametrize("recipe", ALL, ids=str)
def test_a_word_that_every_public_text_has_does_no_harm(recipe):
    """Its IDF is zero; a text of only this word may become empty, but never NaN."""
    counts = sparse.csr_matrix(np.array([[2.0, 0.0], [1.0, 3.0]]))
    found = recipe(counts, np.array([0.0, 2.0])).toarray()
    assert np.all(np.isfinite(found))
    if recipe.power:
        assert found[0].tolist() == [0, 0]
        assert found[1].tolist() == pytest.approx([0, 1])


def test_tf_idf_is_that_of_scikit_learn():
    counts = sparse.csr_matrix(np.random.default_rng(0).integers(0, 4, (30, WORDS)).astype(float))
    fitted = TfidfTransformer().fit(counts)
    np.testing.assert_allclose(
        TF_IDF(counts, fitted.idf_).toarray(), fitted.transform(counts).toarray(), atol=1e-6
    )


def test_candidates_are_binary_or_log_counts_with_powers_of_idf():
    """They are binary or log counts times a power of public IDF, L2-normalised per example."""
    assert len(set(CANDIDATES)) == len(CANDIDATES) == 12
    assert {(one.binary, one.dampened) for one in CANDIDATES} == {(True, False), (False, True)}
    assert {one.power for one in CANDIDATES} >= {0.0, 1.0, 2.0}
    assert not any(one.relative for one in CANDIDATES)


def test_a_recipe_is_known_by_its_text():
    """Records of runs identify features by this text."""
    assert len({str(recipe) for recipe in ALL}) == len(set(ALL))
    assert str(PAPER) == "counts, L1 per text"
    assert str(Recipe(binary=True, power=1.5)) == "binary x public IDF^1.5, L2 per text"
