"""Texts as words, embeddings, or both: in tables, in models on disk, and in pipelines."""

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from adadps import AdaDPSClassifier, PublicVectorizer, make_text_pipeline
from adadps.cli.main import app
from adadps.errors import DataError, SideInformationError
from adadps.estimators.planner.methods import LARGEST_SHARE, embedding_share
from adadps.estimators.tables.features import RowFeatures, prepare_for_rows, text_features
from adadps.estimators.tables.saved_model import TableModel, load_model
from adadps.estimators.tables.schema import Label, Numeric, Schema
from adadps.estimators.text import NAME_SCALE, directions_of, public_vocabulary
from adadps.methods.side import embeddings, word_frequencies
from adadps.types import Method
from support.commands import runner

WORDS = public_vocabulary(300)
TEXTS = ("the cat sat on the mat", "stock markets fell", "", "42 !!")
KINDS = {"animals": "the cat and the dog sleep", "finance": "stock markets fell again"}


@pytest.fixture
def table(tmp_path):
    return written(tmp_path / "data.csv", 120)


def written(path, count):
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = [(f"{text} {n}", kind) for n in range(count // 2) for kind, text in KINDS.items()]
        csv.writer(file).writerows([("text", "kind"), *rows])
    return path


def train(table, *more):
    given = ["--text", "text", "--label", "kind", "--epsilon", "8", "--words", "300"]
    out = ["--out", table.parent / "model", "--classes", "animals,finance", "--epochs", "2"]
    return runner.invoke(app, [str(word) for word in ("train", table, *given, *out, *more)])


def told(shown):
    assert shown.exit_code == 0, shown.output
    return json.loads(shown.stdout)


# --- features ---


def test_each_form_has_norm_one_and_shares_are_equal():
    vectors = embeddings()
    for words, held in ((WORDS, None), ((), vectors), (WORDS, vectors)):
        rows = text_features(words, held).of_texts(TEXTS)
        assert rows.shape == (4, len(words) + (256 if held else 0))
        norms = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
        assert (norms <= 1 + 1e-6).all()
        assert norms[0] == pytest.approx(1, abs=1e-6)
        assert norms[2] == 0, "an empty text has no feature"
    rows = text_features(WORDS, vectors, short_below=None).of_texts(TEXTS[:1]).toarray()[0]
    halves = np.linalg.norm(rows[: len(WORDS)]), np.linalg.norm(rows[len(WORDS) :])
    assert halves == pytest.approx((math.sqrt(0.5), math.sqrt(0.5)), abs=1e-6)


def test_a_row_with_everything_has_norm_at_most_one():
    schema = Schema(("a", "b"), (Numeric("age", 0.0, 1.0),), (), Label("kind", ("x", "y")))
    features = RowFeatures(schema, WORDS, embeddings())
    assert features.blocks == 6
    assert features.width == 2 * 300 + 2 * 256 + 1 + 1
    rows = features.typical(word_frequencies(WORDS))
    norms = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
    assert (norms <= 1 + 1e-6).all()


@pytest.mark.parametrize("share", [0.1, 0.5, 0.7])
def test_the_share_is_that_of_the_squared_norm(share):
    """After the weights of features, as rows are trained on."""
    features = text_features(WORDS, embeddings())
    known = word_frequencies(WORDS)
    prepared = prepare_for_rows(Method.DP_SGD_WEIGHTED, features, known, share)
    a = prepared.side.named["weight"][0].double().numpy()
    rows = features.typical(known).toarray() / a
    squares = (rows[:, len(WORDS) :] ** 2).sum(1) / (rows**2).sum(1)
    assert np.median(squares) == pytest.approx(share, abs=0.03)


def test_other_methods_leave_the_shares_equal():
    features, known = text_features(WORDS, embeddings()), word_frequencies(WORDS)
    prepared = prepare_for_rows(Method.ADADPS_TWO_SIDED, features, known, 0.1)
    a = prepared.side.named["weight"][0].double().numpy()
    assert len(set(a[len(WORDS) :])) == 1
    rows = features.typical(known).toarray() / a
    squares = (rows[:, len(WORDS) :] ** 2).sum(1) / (rows**2).sum(1)
    assert np.median(squares) == pytest.approx(0.5, abs=0.05)


def test_more_examples_per_class_mean_more_words():
    shares = [embedding_share(n, 10, 1.0) for n in (100, 1000, 10_000, 100_000)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == LARGEST_SHARE
    assert 0 < shares[-1] < 0.1
    assert embedding_share(2000, 10, 1.0) == embedding_share(1000, 10, 2.0)
    assert embedding_share(2000, 20, 1.0) == embedding_share(1000, 10, 1.0)


# --- the start ---


def test_weights_start_at_the_names_of_the_classes():
    vectors = embeddings()
    start = directions_of(["animals", "finance"], vectors)
    scores = vectors(["the cat and the dog", "stock markets fell"]) @ start.T
    assert scores.argmax(1).tolist() == [0, 1]
    assert np.abs(start.sum(0)).max() < 1e-5, "centred"
    assert np.linalg.norm(start, axis=1).max() <= NAME_SCALE


@pytest.mark.parametrize("names", [("0", "1"), ("a1", "b_2"), ("alone", "7")])
def test_names_without_words_start_at_zero(names):
    assert not directions_of(names, embeddings()).any()


def test_names_of_several_words_and_signs():
    start = directions_of(["rec.sport.hockey", "sci_space", "3"], embeddings())
    assert not start[2].any()
    scores = embeddings()(["the goalkeeper of the hockey team", "a rocket to the moon"]) @ start.T
    assert scores.argmax(1).tolist() == [0, 1]


def test_the_layer_of_a_model_starts_there():
    schema = Schema(("one", "two"), (), (), Label("kind", ("animals", "finance")))
    layer = TableModel(schema, WORDS, embeddings()).layer()
    words = 2 * len(WORDS)
    assert not layer.weight[:, :words].any()
    assert torch.equal(layer.weight[:, words : words + 256], layer.weight[:, words + 256 :])
    regression = replace(schema, label=Label("age", regression=True, low=0.0, high=1.0))
    assert not TableModel(regression, WORDS, embeddings()).layer().weight.any()


# --- the command and its model ---


@pytest.mark.parametrize(
    ("features", "width"), [("auto", 860), ("both", 860), ("words", 604), ("embeddings", 256)]
)
def test_every_form_by_name(table, features, width):
    result = told(train(table, "--features", features, "--json"))
    held = load_model(table.parent / "model")
    assert held.model.features.width == width
    sources = " ".join(known["source"] for known in result["side_information"])
    assert ("wordllama" in sources) is (features != "words")
    assert ("wordfreq" in sources) is (features != "embeddings")
    card = (table.parent / "model" / "card.md").read_text(encoding="utf-8")
    assert ("some dispute" in card) is (features != "words")
    labelled = table.parent / "labelled.csv"
    given = ("predict", table.parent / "model", table, "--out", labelled)
    shown = runner.invoke(app, [str(word) for word in given])
    assert shown.exit_code == 0, shown.output


def test_texts_without_negation(table):
    told(train(table, "--without-negation", "--features", "words", "--json"))
    assert load_model(table.parent / "model").model.features.width == 302


def changed(table, **facts):
    path = table.parent / "model" / "model.json"
    held = json.loads(path.read_text(encoding="utf-8"))
    held["embeddings"] = {**held["embeddings"], **facts}
    path.write_text(json.dumps(held), encoding="utf-8")


def test_a_model_names_its_vectors_and_refuses_others(table):
    told(train(table, "--json"))
    described = load_model(table.parent / "model").model.embeddings.describe()
    assert described == embeddings().describe()
    changed(table, digest="0" * 64)
    out = str(table.parent / "labelled.csv")
    shown = runner.invoke(app, ["predict", str(table.parent / "model"), str(table), "--out", out])
    assert shown.exit_code == 1
    assert "no others" in " ".join(shown.stderr.split())


def vector_file(path, width=3):
    words = ("cat", "dog", "stock", "markets", "fell", "animals", "finance")
    rng = np.random.default_rng(0)
    lines = [f"{word} {' '.join(map(str, rng.normal(size=width).round(3)))}" for word in words]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_vectors_of_a_file(table):
    vectors = vector_file(table.parent / "vectors.txt")
    because = ("--embeddings", vectors, "--embeddings-because", "they were published")
    result = told(train(table, *because, "--json"))
    assert any(known["public_because"] == "they were published"
               for known in result["side_information"])  # fmt: skip
    assert load_model(table.parent / "model").model.embeddings.width == 3
    vector_file(table.parent / "vectors.txt", width=4)
    with pytest.raises(DataError, match="no others"):
        load_model(table.parent / "model")
    vectors.unlink()
    with pytest.raises(DataError, match="found none"):
        load_model(table.parent / "model")


REFUSED = {
    "no such file": (("--embeddings", "nowhere.txt", "--embeddings-because", "x"), "nowhere.txt"),
    "no reason": (("--embeddings", "nowhere.txt"), "why"),
    "words alone": (("--features", "words", "--embeddings", "x.txt"), "--features auto"),
    "a blank reason": (
        ("--embeddings", "wordllama", "--embeddings-because", " "),
        "Add --embeddings-because",
    ),
    "public texts without words": (
        ("--features", "embeddings", "--public", "p.csv", "--public-because", "x"),
        "Use --features both",
    ),
    "a reason alone": (("--embeddings-because", "x"), "--embeddings SOURCE"),
    "weights of words": (
        ("--features", "embeddings", "--method", "dp-sgd-weighted"),
        "--features both",
    ),
    "frequencies of words": (("--features", "embeddings", "--side", "wordfreq"), "--side wordfreq"),
    "not installed": (
        ("--embeddings", "sentence-transformers:nobody/nothing", "--embeddings-because", "x"),
        "pip install",
    ),
}


@pytest.mark.parametrize(("more", "expected"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_is_refused_and_nothing_is_spent(table, more, expected):
    shown = train(table, *more)
    assert shown.exit_code in (1, 2)
    assert expected in " ".join(shown.stderr.split())
    assert sorted(path.name for path in table.parent.iterdir()) == ["data.csv"]


def test_numbers_alone_have_no_embeddings(tmp_path):
    path = tmp_path / "numbers.csv"
    path.write_text("x,kind\n" + "1,a\n0,b\n" * 30, encoding="utf-8")
    given = ["--numeric", "x=0,1", "--label", "kind", "--classes", "a,b", "--epsilon", "4"]
    out = ["--out", str(tmp_path / "model")]
    assert runner.invoke(app, ["train", str(path), *given, *out]).exit_code == 0
    assert load_model(tmp_path / "model").model.embeddings is None
    shown = runner.invoke(app, ["train", str(path), *given, *out, "--features", "both"])
    assert shown.exit_code == 2


def test_models_of_the_second_format_are_read(table):
    told(train(table, "--features", "words", "--json"))
    path = table.parent / "model" / "model.json"
    held = json.loads(path.read_text(encoding="utf-8"))
    assert held.pop("embeddings") is None
    path.write_text(json.dumps({**held, "format": 2}), encoding="utf-8")
    assert load_model(table.parent / "model").model.features.width == 604


# --- scikit-learn ---

DATA = (list(KINDS.values()) * 60, list(KINDS) * 60)


@pytest.mark.parametrize(
    ("features", "width"), [("auto", 856), ("both", 856), ("words", 600), ("embeddings", 256)]
)
def test_pipelines_of_every_form(features, width):
    model = make_text_pipeline(
        epsilon=8, words=300, features=features, classes=["animals", "finance"], examples=120
    )
    model.fit(*DATA)
    assert model.score(*DATA) > 0.9
    assert model[0].transform(DATA[0][:1]).shape == (1, width)
    assert len(model[0].get_feature_names_out()) == width
    sources = " ".join(known["source"] for known in model["model"].result_.side_information)
    assert ("wordllama" in sources) is (features != "words")
    facts = " ".join(model["model"].privacy_.assumed_public)
    assert ("wordllama embeddings" in facts) is (features != "words")


def test_a_pipeline_and_the_command_make_the_same_of_texts():
    schema = Schema(("text",), (), (), Label("kind", tuple(KINDS)))
    rows = TableModel(schema, WORDS, embeddings()).features.of_texts(DATA[0][:2])
    vectorizer = PublicVectorizer(vocabulary=WORDS, features="both")
    assert np.allclose(rows.toarray(), vectorizer.transform(DATA[0][:2]).toarray() / math.sqrt(2))


def test_features_of_another_vectorizer_are_refused():
    model = AdaDPSClassifier(
        epsilon=8, side=PublicVectorizer(words=300, features="both"), classes=list(KINDS)
    )
    with pytest.raises(SideInformationError, match="556 features of the vectorizer"):
        model.fit(PublicVectorizer(words=300).transform(DATA[0]), DATA[1])


def test_unknown_forms_and_unused_vectors_are_refused():
    with pytest.raises(DataError, match="features among auto, words"):
        PublicVectorizer(features="letters").fit()
    with pytest.raises(SideInformationError, match="words alone"):
        PublicVectorizer(embeddings="wordllama").fit()
    with pytest.raises(SideInformationError, match="embeddings alone"):
        PublicVectorizer(features="embeddings").frequencies()


def test_an_array_is_no_source_of_vectors():
    with pytest.raises(SideInformationError, match="as source of embeddings, found array"):
        PublicVectorizer(features="both", embeddings=np.zeros((3, 2))).fit()


def test_a_function_of_texts_may_be_the_source():
    vectors = embeddings(lambda texts: [[len(t), t.count("s"), 1.0] for t in texts],
                         public_because="it counts letters")  # fmt: skip
    model = make_text_pipeline(
        epsilon=8, features="embeddings", embeddings=vectors, classes=list(KINDS), examples=120
    ).fit(*DATA)
    assert model["model"].result_.params["weight"].shape == (2, 3)


def test_nothing_is_downloaded(table, monkeypatch):
    def refuse(*_given, **_named):
        raise OSError("no network")

    monkeypatch.setattr("socket.socket.connect", refuse)
    assert Path(table).exists()
    told(train(table, "--json"))
