"""Advice without a simulation: it follows from declared numbers and the kind of the rows."""

import numpy as np
import pytest
from scipy import sparse

from adadps.estimators import doctor
from adadps.estimators.doctor.further import advice_for_rows, advice_for_texts
from adadps.types import TextFeatures


def asked(**changed):
    usual = {
        "examples": 10_000, "classes": 20, "epsilon": 1.0, "features": TextFeatures.AUTO,
        "public_texts": False,
    }  # fmt: skip
    return advice_for_texts(**usual | changed)


def test_few_examples_per_class_make_embeddings_matter():
    embeddings, public = asked()
    assert embeddings.startswith("Embeddings: 50% of every text, by the rule.")
    assert "--public" in public


def test_short_texts_have_more_of_a_small_share():
    shares = "5% of a long text, 34% of one of 5 words, by the rule."
    assert asked(classes=2, examples=19_000)[0].startswith(f"Embeddings: {shares}")


@pytest.mark.parametrize("many", [{"classes": 2, "epsilon": 30.0}, {"examples": 10_000_000}])
def test_with_many_examples_per_class_words_do(many):
    assert asked(**many)[0].endswith("words alone do.")
    assert asked(**many, features=TextFeatures.BOTH)[0].endswith("leave --features out.")


@pytest.mark.parametrize(
    ("features", "begin"),
    [
        (TextFeatures.WORDS, "Embeddings: leave --features out, and they are 50%"),
        (TextFeatures.EMBEDDINGS, "Words: leave --features out"),
    ],
)
def test_an_unfortunate_choice_is_named(features, begin):
    assert asked(features=features)[0].startswith(begin)


def test_public_texts_are_asked_for_where_they_could_be_used():
    assert len(asked()) == 2
    assert len(asked(public_texts=True)) == 1
    assert len(asked(features=TextFeatures.EMBEDDINGS)) == 1, "these are not fitted to texts"


@pytest.mark.parametrize("dense", [True, False])
def test_findings_on_arrays_tell_dense_rows_from_sparse_ones(dense):
    rows = np.random.default_rng(0).integers(2, size=(60, 4)).astype(float)
    labels = np.arange(60) % 2
    given = rows if dense else sparse.csr_matrix(rows)
    found = doctor.examine(
        given, labels, candidates=[], examples=2000, epsilon=1.0, folds=3, steps=5
    )
    assert found.describe()["further"] == list(advice_for_rows(dense=dense))
    assert ("whiten" in found.further[0]) is dense
