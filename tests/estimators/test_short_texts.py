"""Short texts lean on their embedding: by how much, in which rows, and in stored models."""

import csv
import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from adadps import PublicVectorizer, make_text_pipeline
from adadps.cli.main import app
from adadps.data.tables import Table
from adadps.errors import DataError
from adadps.estimators.planner.methods import LARGEST_SHARE, embedding_share
from adadps.estimators.short_texts import (
    FEW_WORDS,
    LEAST_SHARE,
    SHORT,
    beside_each_other,
    share_in_short_text,
    short_by_rule,
    worth_embedding,
)
from adadps.estimators.tables.features import RowFeatures, prepare_for_rows, text_features
from adadps.estimators.tables.saved_model import load_model
from adadps.estimators.tables.schema import Label, Numeric, Schema
from adadps.estimators.text import public_vocabulary
from adadps.methods.side import embeddings, word_frequencies
from adadps.types import Method
from support.commands import runner

WORDS = public_vocabulary(300)
LABEL = Label("kind", ("animals", "finance"))


def text_of(known, start=0):
    """Return a text of this many different words, all of them in the vocabulary."""
    return " ".join(WORDS[start : start + known])


def squares(rows, words=300):
    """Return the squared norms of the words and of the vectors of each row."""
    dense = rows.toarray().astype(np.float64) ** 2
    return dense[:, :words].sum(1), dense[:, words:].sum(1)


@pytest.mark.parametrize("known", [1, 5, 25, 49, 50, 51, 200])
def test_words_of_a_short_text_have_less_of_it(known):
    rows = text_features(WORDS, embeddings()).of_texts([text_of(known), f"{text_of(known)} the"])
    of_words, of_vectors = squares(rows)
    assert of_words / of_vectors == pytest.approx(min(1, known / SHORT), rel=1e-5)
    assert of_words + of_vectors == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("known", [4, 20])
def test_the_share_is_the_stated_one_once_features_are_weighted(known):
    features, frequencies = text_features(WORDS, embeddings()), word_frequencies(WORDS)
    rows = [text_of(known, start) for start in range(0, 200, 5)]

    def share(rule, features):
        side = prepare_for_rows(Method.DP_SGD_WEIGHTED, features, frequencies, rule).side
        found = features.of_texts(rows)
        found = found.multiply(1 / side.named["weight"][0].double().numpy()).tocsr()
        of_words, of_vectors = squares(found)
        return of_vectors / (of_words + of_vectors)

    alike = share(0.1, replace(features, short_below=None))
    expected = [share_in_short_text(one, known) for one in alike]
    assert share(0.1, features) == pytest.approx(expected, rel=1e-4)


def test_long_texts_are_as_they_were_bit_by_bit():
    features = text_features(WORDS, embeddings())
    rows = [text_of(SHORT), text_of(SHORT + 7) * 3, ""]
    found = features.of_texts(rows)
    assert (found != replace(features, short_below=None).of_texts(rows)).nnz == 0


def test_every_row_is_made_of_its_own_texts_alone():
    features = text_features(WORDS, embeddings())
    rows = [text_of(3), text_of(90), "", text_of(12, 7), "ξένο κείμενο"]
    together = features.of_texts(rows).toarray()
    for place, text in enumerate(rows):
        assert np.array_equal(features.of_texts([text]).toarray()[0], together[place])
    assert not together[2].any()
    assert np.linalg.norm(together[4]) == pytest.approx(1, abs=1e-6), "vectors alone"


@given(
    known=st.lists(st.integers(0, 80), min_size=1, max_size=6),
    blank=st.booleans(),
    forms=st.integers(1, 2),
    columns=st.integers(1, 3),
)
def test_a_row_is_never_longer_than_its_blocks(known, blank, forms, columns):
    """A norm of √B for B blocks: the clip and the planned norms count on it."""
    words, vectors = [], []
    for column in range(columns):
        held = np.zeros((len(known), 100), np.float32)
        for row, many in enumerate(known):
            held[row, : max(0, many - 5 * column)] = 1
        words.append(held / np.maximum(np.linalg.norm(held, axis=1, keepdims=True), 1e-9))
    for _ in range(forms * columns):
        vectors.append(np.full((len(known), 4), 0.0 if blank else 0.5, np.float32))
    found = beside_each_other([sparse.csr_matrix(one) for one in words], vectors)
    total = sum(one.multiply(one).sum(axis=1) for one in found)
    assert (total <= columns * (1 + forms) + 1e-4).all()


def test_columns_of_texts_are_counted_together():
    """A title beside a long body is no short text."""
    schema = Schema(("title", "body"), (), (), LABEL)
    features = RowFeatures(schema, WORDS, embeddings())
    rows = table(("title", "body"), (text_of(4), text_of(60)), (text_of(4), text_of(6, 100)))
    of_words, of_vectors = squares(features(rows), 2 * len(WORDS))
    assert of_words / of_vectors == pytest.approx([1, 10 / SHORT], rel=1e-5)


def test_texts_beside_numbers_are_never_short():
    """Else the numbers of a row would have what its text lacks of words."""
    schema = Schema(("title",), (Numeric("age", 0.0, 1.0),), (), LABEL)
    features, rows = RowFeatures(schema, WORDS, embeddings()), table(("title", "age"), ("the", "1"))
    assert (features(rows) != replace(features, short_below=None)(rows)).nnz == 0


def table(header, *rows):
    return Table(Path("made-up.csv"), header, [list(row) for row in rows], list(range(len(rows))))


def test_words_alone_and_embeddings_alone_have_norm_one():
    for features in (text_features(WORDS, None), text_features((), embeddings())):
        rows = features.of_texts([text_of(3)])
        assert np.linalg.norm(rows.toarray()) == pytest.approx(1, abs=1e-6)


def test_many_examples_leave_embeddings_out():
    tweets, reviews = embedding_share(5205, 2, 8.0), embedding_share(25_000, 2, 1.0)
    assert tweets < LEAST_SHARE
    assert reviews < LEAST_SHARE
    assert worth_embedding(tweets)
    assert worth_embedding(reviews)
    assert not worth_embedding(embedding_share(1_000_000, 2, 1.0))
    assert share_in_short_text(embedding_share(1_000_000, 2, 1.0), FEW_WORDS) < LEAST_SHARE
    assert not worth_embedding(tweets, texts_alone=False)


def test_a_large_share_is_for_all_texts():
    """Else a text of ten words would be almost nothing but its embedding."""
    assert short_by_rule(embedding_share(5205, 2, 8.0)) == SHORT
    assert short_by_rule(embedding_share(24_000, 100, 1.0)) is None
    shares = [share / 100 for share in range(1, 71)]
    apart = [share for share in shares if short_by_rule(share)]
    assert apart == shares[: len(apart)], "small shares"
    assert share_in_short_text(apart[-1], 10) <= LARGEST_SHARE
    assert share_in_short_text(shares[len(apart)], 10) > LARGEST_SHARE


@pytest.mark.parametrize(
    ("declared", "short"),
    [
        ({"classes": ["a", "b"], "examples": 50_000}, SHORT),
        ({"classes": np.array(["a", "b"]), "examples": np.int64(500)}, None),
        ({"classes": ["a", "b"]}, SHORT),
        ({"examples": 500}, SHORT),
        ({"classes": "paid", "examples": 500}, SHORT),
        ({"classes": ["a", "b"], "examples": 0}, SHORT),
        ({"classes": ["a", "b"], "examples": "many"}, SHORT),
    ],
)
def test_pipelines_follow_the_rule_where_it_is_declared(declared, short):
    assert make_text_pipeline(epsilon=1, **declared)[0].short_below == short


# --- models on disk ---


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("once"), epsilon=40)


@pytest.fixture
def folder(tmp_path, trained_once):
    return shutil.copytree(trained_once, tmp_path / "model")


def trained(tmp_path, epsilon):
    kinds = {"animals": "the cat and the dog sleep", "finance": "stock markets fell again"}
    rows = [(f"{text} {n}", kind) for n in range(60) for kind, text in kinds.items()]
    with (tmp_path / "data.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "kind"), *rows])
    given = [
        "train",
        tmp_path / "data.csv",
        "--text",
        "text",
        "--label",
        "kind",
        "--epsilon",
        epsilon,
    ]
    more = ["--words", "300", "--classes", "animals,finance", "--epochs", "2", "--out"]
    shown = runner.invoke(app, [str(word) for word in (*given, *more, tmp_path / "model")])
    assert shown.exit_code == 0, shown.output
    return tmp_path / "model"


def rewritten(folder, **changes):
    path = folder / "model.json"
    held = {**json.loads(path.read_text(encoding="utf-8")), **changes}
    held = {name: value for name, value in held.items() if value is not ...}
    path.write_text(json.dumps(held), encoding="utf-8")


def test_a_model_says_and_keeps_what_is_short(folder, monkeypatch):
    held = load_model(folder)
    assert held.model.short_below == SHORT
    assert "have more of texts below 50 known words" in held.result.settings["model"]
    rows = ["the cat", "markets of the world"]
    rewritten(folder, short_below=7)
    expected = replace(held.model.features, short_below=7).of_texts(rows)
    assert (load_model(folder).model.features.of_texts(rows) != expected).nnz == 0


def test_few_examples_per_class_treat_all_texts_alike(tmp_path):
    model = load_model(trained(tmp_path, epsilon=8)).model
    assert model.short_below is None
    assert json.loads((tmp_path / "model" / "model.json").read_text())["short_below"] is None
    assert model.embeddings is not None


def test_a_model_of_an_earlier_format_predicts_as_it_did(folder):
    rewritten(folder, format=5, short_below=...)
    model = load_model(folder).model
    assert model.short_below is None
    of_words, of_vectors = squares(model.features.of_texts(["the cat"]), len(model.vocabulary))
    assert of_words == pytest.approx(of_vectors)
    assert "known words" not in model.in_words


@pytest.mark.parametrize("spoiled", [..., 0, -3, True, 2.5, "50", [50]])
def test_a_spoiled_folder_is_refused(folder, spoiled):
    rewritten(folder, short_below=spoiled)
    with pytest.raises(DataError, match="Expected the columns, classes and words of a model"):
        load_model(folder)


def test_a_later_format_is_refused(folder):
    rewritten(folder, format=7)
    with pytest.raises(DataError, match="format 6"):
        load_model(folder)


# --- pipelines ---


def test_a_vectorizer_reads_short_texts_alike():
    vectorizer = PublicVectorizer(vocabulary=WORDS, features="both")
    rows = [text_of(4), text_of(80)]
    expected = text_features(WORDS, embeddings()).of_texts(rows).toarray() * np.sqrt(2)
    assert vectorizer.transform(rows).toarray() == pytest.approx(expected, abs=1e-6)
    for wrong in (0, "few", True):
        with pytest.raises(DataError, match="below which texts are short"):
            PublicVectorizer(short_below=wrong).fit()


def test_a_vectorizer_of_an_earlier_version_reads_texts_as_it_did():
    vectorizer = PublicVectorizer(vocabulary=WORDS, features="both")
    del vectorizer.short_below
    restored = pickle.loads(pickle.dumps(vectorizer))
    assert restored.short_below is None
    of_words, of_vectors = squares(restored.transform([text_of(4)]))
    assert of_words == pytest.approx(of_vectors)
