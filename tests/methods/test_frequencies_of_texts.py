"""Frequencies of words and of texts: a method computes the same A from either of them."""

import csv
import math

import numpy as np
import pytest
import torch

import adadps
from adadps import side
from adadps.errors import SideInformationError
from adadps.estimators.planner.methods import prepare_method, shaped, typical_texts
from adadps.estimators.tables.schema import Label, Schema
from adadps.estimators.text import (
    BagOfWords,
    VocabularySource,
)
from adadps.types import Method

TOLD = {"source": "a corpus", "public_because": "published"}
RNG = np.random.default_rng(0)
NAMES = ["apple", "berry", "cherry", "damson", "elder"]
TEXTS = [
    " ".join(["fruit", *np.array(NAMES)[RNG.random(5) < [0.6, 0.4, 0.2, 0.1, 0.05]]])
    for _ in range(200)
]
SCHEMA = Schema(("text",), (), (), Label("y", ("yes", "no")))
INFORMED = [Method.ADADPS, Method.ADADPS_TWO_SIDED, Method.DP_SGD_WEIGHTED]


@pytest.fixture(scope="module")
def of_train(tmp_path_factory):
    """The frequencies that `adadps train --public` uses."""
    path = tmp_path_factory.mktemp("public") / "public.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["text", "y"], *([text, "yes"] for text in TEXTS)])
    source = VocabularySource(words=10, public=path, public_because="published")
    return source.read(SCHEMA, ("yes", "no"), informed=True)


@pytest.mark.parametrize("method", INFORMED)
def test_train_and_the_estimators_make_the_same_of_a_corpus(of_train, method):
    counts = BagOfWords(of_train.words)(TEXTS)
    known = side.corpus_frequencies(counts, **TOLD)
    width = len(of_train.words)
    prepared = prepare_method(method, known, width=width)
    privacy = adadps.privatize(clip_norm=1.0, noise_multiplier=1.0)
    (stage, *_) = prepared.chain(privacy, 0.1).informed
    expected = shaped(of_train.frequencies, method).named["weight"][0]
    torch.testing.assert_close(stage.side.named["weight"][0], expected)
    assert len(expected.unique()) > 3


@pytest.mark.parametrize("method", INFORMED)
def test_shares_of_texts_and_frequencies_of_words_agree(method):
    rates = torch.tensor([0.03, 0.004, 1e-5, 0.0], dtype=torch.float64)
    of_words = side.given_frequencies(rates, **TOLD)
    of_texts = side.given_frequencies(-torch.expm1(-100 * rates), **TOLD, of_texts=True)
    found = [shaped(known, method).named["weight"][0] for known in (of_words, of_texts)]
    torch.testing.assert_close(*found)
    drawn = [typical_texts(4, known).toarray() for known in (of_words, of_texts)]
    np.testing.assert_allclose(*drawn)


def test_idf_of_a_corpus_is_the_logarithm_of_its_shares():
    known = side.corpus_frequencies(
        [[1, 1, 0, 0], [2, 0, 0, 0], [1, 3, 1, 0], [1, 0, 0, 0]], **TOLD
    )
    for length in (10, 1000):
        found = side.idf(known, words_per_text=length)
        expected = [1000.0, math.log(4) / math.log(2), 1.0, 1.0]
        assert found.named["weight"][0].tolist() == pytest.approx(expected)
        assert found.provenance.source == "a corpus; A = IDF^-1", "no length is used"


def test_the_two_kinds_turn_into_each_other():
    known = side.given_frequencies([0.5, 0.2, 0.0, 1.0], **TOLD, of_texts=True)
    rates = known.per_word(50)
    assert rates.values[:3].tolist() == pytest.approx([math.log(2) / 50, -math.log(0.8) / 50, 0])
    assert math.isfinite(rates.values[3])
    assert (rates.of_texts, rates.provenance) == (False, known.provenance)
    torch.testing.assert_close(rates.per_text(50).values, known.values)
    assert rates.per_word(7) is rates
    assert known.per_text(7) is known


def test_every_source_says_what_it_counts():
    counts = [[1, 0], [1, 1]]
    assert side.corpus_frequencies(counts, **TOLD).of_texts
    assert side.frequencies_of_private_data(counts, source="mails").of_texts
    assert not side.word_frequencies(["the", "zebra"]).of_texts
    assert not adadps.PublicVectorizer(vocabulary=["the", "zebra"]).frequencies().of_texts
    assert not side.given_frequencies([9.0, 1.0], **TOLD).of_texts


def test_a_share_of_texts_is_at_most_one():
    with pytest.raises(SideInformationError, match="at most 1, found 9"):
        side.given_frequencies([9.0, 1.0], **TOLD, of_texts=True)
