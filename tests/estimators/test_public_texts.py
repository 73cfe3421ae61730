"""Public texts of the same kind as the private ones: a third part of every text, by fitted vectors.

They are in the features of tables and pipelines, in the folder of a model, and on its card; private
texts that are among them are left out of training.
"""

import csv
import json
import math
import pickle
import shutil

import numpy as np
import pytest
from sklearn.base import clone

from adadps import AdaDPSClassifier, PublicVectorizer, make_text_pipeline
from adadps.cli.main import app
from adadps.data.examples import private_rows
from adadps.errors import DataError, SettingError, SideInformationError
from adadps.estimators import base
from adadps.estimators.planner.methods import WORDS_BESIDE_FITTED
from adadps.estimators.tables.features import prepare_for_rows, text_features
from adadps.estimators.tables.public_start import why_labels_are_unused
from adadps.estimators.tables.saved_model import VECTORS_FILE, load_model
from adadps.estimators.tables.schema import Label
from adadps.methods.side import corpus_frequencies, embeddings, public_texts
from adadps.types import Method
from support.commands import plain, runner

KINDS = {
    "animals": ["cats", "dogs", "cows", "hens", "pigs"],
    "finance": ["bonds", "banks", "loans", "debts"],
}
OTHERS = ["today", "many", "people", "here", "saw", "some", "more", "of", "these", "again"]
TOLD = {"source": "a newspaper", "public_because": "printed"}


def sentences(count, seed=0):
    """Texts of nine words, of which three tell the kind."""
    rng = np.random.default_rng(seed)
    kinds = rng.choice(list(KINDS), count)
    drawn = (
        " ".join(rng.permutation([*rng.choice(KINDS[kind], 3), *rng.choice(OTHERS, 6)]))
        for kind in kinds
    )
    return list(drawn), kinds.tolist()


CORPUS = sentences(1100)[0]
TEXTS, LABELS = sentences(300, seed=1)


@pytest.fixture(scope="module")
def corpus():
    return public_texts(CORPUS, **TOLD)


def written(path, texts, labels=None):
    with path.open("w", newline="", encoding="utf-8") as file:
        header = ("text",) if labels is None else ("text", "kind")
        rows = zip(texts, strict=True) if labels is None else zip(texts, labels, strict=True)
        csv.writer(file).writerows([header, *rows])
    return path


def command(*words):
    shown = runner.invoke(app, [str(word) for word in words])
    assert shown.exit_code == 0, shown.output
    return shown


def train(folder, *more, texts=TEXTS, labels=LABELS, public=CORPUS, public_labels=None):
    table = written(folder / "data.csv", texts, labels)
    other = written(folder / "public.csv", public, public_labels)
    given = ["--text", "text", "--label", "kind", "--classes", "animals,finance", "--epochs", "4"]
    known = ["--public", other, "--public-because", "they were printed", "--words", "100"]
    out = ["--epsilon", "8", "--examples", len(texts), "--out", folder / "model", "--json"]
    return json.loads(command("train", table, *given, *known, *out, *more).stdout)


# --- features ---


def test_a_text_has_three_parts_of_equal_norm(corpus):
    words = PublicVectorizer(words=50, public_texts=corpus).public_words()
    features = text_features(words, embeddings(), corpus.vectors, short_below=None)
    row = features.of_texts(TEXTS[:1]).toarray()[0]
    ends = np.cumsum([features.words, features.embedded, features.of_fitted])
    norms = [np.linalg.norm(part) for part in np.split(row, ends)[:3]]
    assert norms == pytest.approx([math.sqrt(1 / 3)] * 3, abs=1e-4)
    assert features.width == ends[-1]
    assert features.blocks == 3


@pytest.mark.parametrize("vectors", [True, False], ids=["beside embeddings", "alone"])
def test_shares_of_the_three_parts(corpus, vectors):
    bag = PublicVectorizer(words=50, public_texts=corpus)
    known = corpus_frequencies(bag.transform(CORPUS), **TOLD)
    features = text_features(bag.public_words(), embeddings() if vectors else None, corpus.vectors)
    prepared = prepare_for_rows(Method.DP_SGD_WEIGHTED, features, known, 0.3)
    rows = features.typical(known).toarray() / prepared.side.named["weight"][0].double().numpy()
    ends = np.cumsum([features.words, features.embedded])
    squares = [np.median((part**2).sum(1)) for part in np.split(rows, ends, axis=1)]
    expected = [0.7 * WORDS_BESIDE_FITTED, 0.3 * vectors, 0.7 * (1 - WORDS_BESIDE_FITTED)]
    found = np.array(squares) / sum(squares)
    assert found == pytest.approx(np.array(expected) / sum(expected), abs=0.03)


def test_other_methods_have_equal_shares(corpus):
    bag = PublicVectorizer(words=50, public_texts=corpus)
    known = corpus_frequencies(bag.transform(CORPUS), **TOLD)
    features = text_features(bag.public_words(), embeddings(), corpus.vectors)
    a = prepare_for_rows(Method.ADADPS, features, known, 0.3).side.named["weight"][0]
    assert len(set(a[features.words :].tolist())) == 1


# --- the command and its model ---


def test_the_command_fits_vectors_and_the_model_holds_them(tmp_path):
    result = train(tmp_path)
    held = load_model(tmp_path / "model").model
    assert held.fitted.width == min(256, len(held.fitted.embed.terms) - 1)
    assert held.features.vectors == (held.embeddings, held.fitted)
    sources = [known["source"] for known in result["side_information"]]
    assert any("fitted to 1100 public texts in public.csv" in source for source in sources)
    card = (tmp_path / "model" / "card.md").read_text(encoding="utf-8")
    assert "vectors fitted to 1100 public texts" in card
    assert "they were printed" in card
    assert "fitted to public texts" in result["settings"]["model"]


def test_predictions_need_the_folder_alone(tmp_path):
    train(tmp_path)
    table = written(tmp_path / "new.csv", TEXTS)
    command("predict", tmp_path / "model", table, "--out", tmp_path / "here.csv")
    for gone in ("public.csv", "data.csv"):
        (tmp_path / gone).unlink()
    moved = tmp_path / "elsewhere"
    shutil.move(tmp_path / "model", moved)
    command("predict", moved, table, "--out", tmp_path / "there.csv")
    here, there = ((tmp_path / name).read_text() for name in ("here.csv", "there.csv"))
    assert here == there
    predicted = [row["prediction"] for row in csv.DictReader(here.splitlines())]
    assert np.mean([one == two for one, two in zip(predicted, LABELS, strict=True)]) > 0.8


def test_other_vectors_in_the_folder_are_refused(tmp_path):
    train(tmp_path)
    file = tmp_path / "model" / VECTORS_FILE
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(DataError, match="Expected vectors with SHA-256"):
        load_model(tmp_path / "model")
    file.unlink()
    with pytest.raises(DataError, match="Restore the folder"):
        load_model(tmp_path / "model")


@pytest.mark.parametrize(
    ("more", "public"),
    [(("--features", "words"), CORPUS), ((), CORPUS[:999])],
    ids=["words alone", "few texts"],
)
def test_where_nothing_is_fitted(tmp_path, more, public):
    train(tmp_path, *more, public=public)
    assert load_model(tmp_path / "model").model.fitted is None
    assert not (tmp_path / "model" / VECTORS_FILE).exists()


def test_models_of_the_third_format_are_read(tmp_path):
    train(tmp_path, public=CORPUS[:10])
    path = tmp_path / "model" / "model.json"
    held = json.loads(path.read_text(encoding="utf-8"))
    assert held.pop("fitted") is None
    path.write_text(json.dumps({**held, "format": 3}), encoding="utf-8")
    assert load_model(tmp_path / "model").model.embeddings is not None


# --- vectors that have moved ---


def test_predict_finds_vectors_that_have_moved(tmp_path):
    vectors = tmp_path / "vectors.txt"
    lines = [f"{word} {n} {n % 3} 1" for n, word in enumerate(["cats", "dogs", "bonds"])]
    vectors.write_text("\n".join(lines), encoding="utf-8")
    given = ("--embeddings", vectors, "--embeddings-because", "made up")
    train(tmp_path, *given, public=CORPUS[:10])
    moved = tmp_path / "moved.txt"
    shutil.move(vectors, moved)
    line = ["predict", tmp_path / "model", tmp_path / "data.csv", "--out", tmp_path / "new.csv"]
    shown = runner.invoke(app, [str(word) for word in line])
    assert shown.exit_code == 1
    told = " ".join(shown.stderr.split())
    assert "If they are somewhere else now" in told
    assert "adadps predict --embeddings SOURCE" in told
    command(*line, "--embeddings", moved)
    moved.write_text("\n".join(lines[::-1]), encoding="utf-8")
    again = [str(word) for word in (*line, "--force", "--embeddings", moved)]
    shown = runner.invoke(app, again)
    assert shown.exit_code == 1
    assert "no others" in " ".join(shown.stderr.split())


def test_vectors_for_a_model_without_are_refused(tmp_path):
    train(tmp_path, "--features", "words", public=CORPUS[:10])
    line = ["predict", tmp_path / "model", tmp_path / "data.csv", "--out", tmp_path / "new.csv"]
    shown = runner.invoke(app, [str(word) for word in (*line, "--embeddings", "wordllama")])
    assert shown.exit_code == 2
    assert "Leave it out" in " ".join(shown.stderr.split())


# --- scikit-learn ---


def test_a_pipeline_with_public_texts(corpus):
    model = make_text_pipeline(
        epsilon=8, words=50, public_texts=corpus, classes=list(KINDS), examples=300
    ).fit(TEXTS, LABELS)
    assert model.score(*sentences(200, seed=2)) > 0.9
    sources = [known["source"] for known in model["model"].result_.side_information]
    assert any("fitted to" in source for source in sources)
    width = len(model[0].get_feature_names_out())
    assert model[0].transform(TEXTS[:2]).shape == (2, width)
    assert "a newspaper" in " ".join(sources)
    facts = " ".join(model["model"].privacy_.assumed_public)
    assert "fitted to 1100 public texts in a newspaper (" in facts
    assert "wordllama embeddings and fitted embeddings)" in facts
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict_proba(TEXTS), model.predict_proba(TEXTS))
    assert clone(model)[0].public_texts is corpus, "nothing is fitted twice"


def test_private_texts_that_are_public_are_left_out(corpus, monkeypatch):
    seen = []

    def recorded(_model, _loss, data, *, method, **_more):
        seen.append(private_rows(data, method.public_rows))
        raise SystemExit

    monkeypatch.setattr(base, "train", recorded)
    mixed = [*TEXTS[:50], *CORPUS[:10], *(f"{text.upper()}!" for text in CORPUS[10:20])]
    model = make_text_pipeline(
        epsilon=8, words=50, public_texts=corpus, classes=list(KINDS), examples=70
    )
    with pytest.raises(SystemExit):
        model.fit(mixed, LABELS[:70])
    assert seen[0].tolist() == [True] * 50 + [False] * 20


def test_the_command_leaves_them_out_too(tmp_path, monkeypatch):
    from adadps.estimators.tables import training

    seen = []

    def recorded(_model, _loss, data, *, method, **_more):
        seen.append(private_rows(data, method.public_rows))
        raise SettingError("Expected nothing more, found enough. Stop.")

    monkeypatch.setattr(training, "fit", recorded)
    with pytest.raises(AssertionError, match="found enough"):
        train(tmp_path, texts=[*TEXTS[:50], *(t.upper() for t in CORPUS[:20])], labels=LABELS[:70])
    assert seen[0].tolist() == [True] * 50 + [False] * 20


@pytest.mark.parametrize("other", ["data.csv", "held-out.csv"])
def test_private_and_held_out_rows_are_not_public(tmp_path, other):
    written(tmp_path / "held-out.csv", TEXTS, LABELS)
    again = ["--test", tmp_path / "held-out.csv", "--public", tmp_path / other]
    with pytest.raises(AssertionError, match="Expected public rows of their own"):
        train(tmp_path, *again)
    assert not (tmp_path / "model").exists()


def test_what_could_not_be_left_out_is_refused(corpus):
    with pytest.raises(SideInformationError, match="Expected words beside public texts"):
        PublicVectorizer(features="embeddings", public_texts=corpus).fit()
    side = PublicVectorizer(words=50, features="both", public_texts=corpus)
    model = AdaDPSClassifier(epsilon=8, side=side, method="dp-sgd", classes=list(KINDS))
    with pytest.raises(SideInformationError, match="Use method='auto'"):
        model.fit(side.transform(TEXTS), LABELS)
    few = PublicVectorizer(
        words=50, features="both", public_texts=public_texts(CORPUS[:99], **TOLD)
    )
    with pytest.raises(SideInformationError, match="Use method='auto'"):
        model.set_params(side=few).fit(few.transform(TEXTS), LABELS)


@pytest.mark.parametrize("texts", [CORPUS, "a text", 3])
def test_texts_without_an_origin_are_refused(texts):
    with pytest.raises(SideInformationError, match=r"adadps.side.public_texts\(texts"):
        PublicVectorizer(public_texts=texts).fit()


# --- labelled public rows ---


def started(folder, *more, labels=None, **given):
    """Train with labels beside the public texts; return the result and the weights at the start."""
    from adadps.estimators.tables import training

    seen = []
    real = training.fit

    def recorded(layer, *rest, **options):
        seen.append(layer.weight.detach().clone())
        return real(layer, *rest, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "fit", recorded)
        result = train(folder, *more, public_labels=labels, **given)
    return result, seen[0]


def test_weights_start_at_a_model_of_labelled_public_rows(tmp_path):
    """Public knowledge alone then tells the kinds apart, before any private row is used."""
    texts, kinds = sentences(1100)
    result, start = started(tmp_path, labels=kinds, public=texts)
    assert result["settings"]["start"].endswith("on 1100 labelled rows of public.csv")
    card = (tmp_path / "model" / "card.md").read_text("utf-8")
    assert "starting weights: a logistic regression on 1100 labelled rows" in " ".join(card.split())
    held = load_model(tmp_path / "model")
    rows = held.model.features.of_texts(TEXTS).toarray() * held.result.feature_weights.numpy()
    guessed = (rows @ start.numpy().T).argmax(1)
    assert np.mean(np.array(list(KINDS))[guessed] == np.array(LABELS)) > 0.95


def test_without_labels_words_start_at_zero(tmp_path):
    result, start = started(tmp_path)
    assert "start" not in result["settings"]
    assert not start[:, :20].any()


@pytest.mark.parametrize(
    "labels",
    [["animals"] * 1100, ["neither"] * 1100, ["animals", "neither"] * 550],
    ids=["one class", "unknown", "one known class"],
)
def test_labels_that_tell_nothing_change_nothing(tmp_path, labels):
    result, start = started(tmp_path, labels=labels)
    assert "start" not in result["settings"]
    assert not start[:, :20].any()
    why = why_labels_are_unused(tmp_path / "public.csv", Label("kind", ("animals", "finance")))
    assert "Check how classes are spelled" in why


def test_labels_that_tell_nothing_are_said(tmp_path):
    table = written(tmp_path / "data.csv", TEXTS, LABELS)
    other = written(tmp_path / "public.csv", CORPUS[:50], ["Animals"] * 50)
    given = ["--text", "text", "--label", "kind", "--classes", "animals,finance", "--epochs", "1"]
    known = ["--public", other, "--public-because", "they were printed", "--words", "20"]
    shown = command("train", table, *given, *known, "--epsilon", 8, "--out", tmp_path / "model")
    assert "0 of the 2 classes occur among them" in plain(shown.stderr)


@pytest.mark.parametrize(
    ("label", "why"),
    [
        (Label("kind", separator=";"), "rows have several"),
        (Label("kind", regression=True), "the label is a number"),
        (Label("absent"), None),
        (Label("kind", ("animals", "finance")), None),
    ],
)
def test_what_is_said_about_public_labels(tmp_path, label, why):
    file = written(tmp_path / "public.csv", ["a cat", "a bond"], ["animals", "finance"])
    said = why_labels_are_unused(file, label)
    assert said is None if why is None else why in said


def test_held_out_rows_are_looked_for_among_public_texts(tmp_path):
    table = written(tmp_path / "data.csv", TEXTS, LABELS)
    other = written(tmp_path / "public.csv", CORPUS)
    test = written(tmp_path / "test.csv", [CORPUS[0].upper(), "quite another text"], LABELS[:2])
    shown = command(
        "train", table, "--text", "text", "--label", "kind", "--epsilon", 1, "--test", test,
        "--public", other, "--public-because", "printed", "--out", tmp_path / "model",
        "--check-overlap",
    )  # fmt: skip
    assert "The texts of 1 of 2 held-out rows stand in the public file." in plain(shown.stderr)
    assert "0 of 2 held-out rows stand in the training table" in plain(shown.stderr)


def test_rows_of_other_classes_are_ignored(tmp_path):
    texts, kinds = sentences(1100)
    others = ["neither"] * 50 + [" "] * 50
    result, _ = started(tmp_path, labels=[*kinds[:1000], *others], public=texts)
    assert result["settings"]["start"].endswith("on 1000 labelled rows of public.csv")


def test_classes_without_public_rows_keep_their_start(tmp_path):
    texts, kinds = sentences(1100)
    given = ("--classes", "animals,finance,weather", "--features", "words")
    _, start = started(tmp_path, *given, labels=kinds, public=texts)
    assert start[:2].any()
    assert not start[2].any()


def test_other_methods_start_there_too(tmp_path):
    texts, kinds = sentences(1100)
    _, start = started(
        tmp_path, "--method", "adadps", "--features", "words", labels=kinds, public=texts
    )
    held = load_model(tmp_path / "model").model
    guessed = (held.features.of_texts(TEXTS).toarray() @ start.numpy().T).argmax(1)
    assert np.mean(np.array(list(KINDS))[guessed] == np.array(LABELS)) > 0.95


# --- other tables ---


def test_a_federation_reads_fitted_vectors_too(tmp_path):
    texts, kinds = sentences(120, seed=3)
    path = tmp_path / "users.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = [
            (text, kind, f"u{n % 30}")
            for n, (text, kind) in enumerate(zip(texts, kinds, strict=True))
        ]
        csv.writer(file).writerows([("text", "kind", "who"), *rows])
    public = written(tmp_path / "public.csv", CORPUS)
    given = ("--text", "text", "--label", "kind", "--classes", "animals,finance", "--words", "50")
    known = ("--public", public, "--public-because", "printed", "--user", "who", "--users", "30")
    more = ("--epsilon", "8", "--rounds", "3", "--cohort", "10", "--out", tmp_path / "model")
    command("federate", path, *given, *known, *more)
    assert load_model(tmp_path / "model").model.fitted is not None


def test_several_columns_of_texts(tmp_path):
    path, public = tmp_path / "data.csv", tmp_path / "public.csv"
    for file, texts, kinds in ((path, TEXTS, LABELS), (public, CORPUS, ["?"] * len(CORPUS))):
        with file.open("w", newline="", encoding="utf-8") as opened:
            rows = [
                (t.rpartition(" ")[0], t.rpartition(" ")[2], k)
                for t, k in zip(texts, kinds, strict=True)
            ]
            csv.writer(opened).writerows([("title", "body", "kind"), *rows])
    given = ("--text", "title", "--text", "body", "--label", "kind", "--classes", "animals,finance")
    known = ("--public", public, "--public-because", "printed", "--words", "50", "--epochs", "2")
    command("train", path, *given, *known, "--epsilon", "8", "--out", tmp_path / "model")
    features = load_model(tmp_path / "model").model.features
    assert features.blocks == 6
    assert features.of_fitted == 2 * features.fitted.width
    command("predict", tmp_path / "model", path, "--out", tmp_path / "new.csv")
