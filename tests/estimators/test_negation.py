"""Negated words: which words of a text are negated, and that nothing else about a row changes."""

import json
import pickle
import re
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adadps import PublicVectorizer, make_text_pipeline
from adadps.errors import DataError
from adadps.estimators.tables.frequency_file import frequencies_from_file
from adadps.estimators.tables.request import TrainingRequest
from adadps.estimators.tables.saved_model import load_model
from adadps.estimators.tables.schema import Label, Schema
from adadps.estimators.tables.training import train_from_table
from adadps.estimators.text import (
    TOKEN,
    BagOfWords,
    Negation,
    VocabularySource,
    is_negated,
    listed_frequencies,
    negation_in,
    negation_of,
    plain_form,
    public_vocabulary,
    share_negated,
    with_negated,
)
from adadps.methods.side import word_frequencies
from adadps.types import TextFeatures

ENGLISH = negation_in("en")
KNOWN = frozenset(with_negated(["good", "film", "bad", "it", "like", "very", "one", "two", "three",
                                "four", "five", "merit"]))  # fmt: skip


def negated(text):
    """Return the words that are read as negated, without the others."""
    return [word.removeprefix("not ") for word in ENGLISH.words(text, KNOWN) if is_negated(word)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a good film", []),
        ("This is not good", ["good"]),
        ("NOT GOOD", ["good"]),
        ("not a very good film", ["very", "good", "film"]),
        ("not one two three four five", ["one", "two", "three", "four"]),
        ("it isn't good", ["good"]),
        ("it isn’t good", ["good"]),
        ("it isnʼt good", ["good"]),
        ("it isn＇t good", ["good"]),
        ("it isnt good", ["good"]),
        ("I CAN’T like it", ["like", "it"]),
        ("cannot like it", ["like", "it"]),
        ("not good. bad film", ["good"]),
        ("not good, bad film", ["good"]),
        ("not good; bad (film)", ["good"]),
        ("not good<br />bad film", ["good"]),
        ("not good 。bad film", ["good"]),
        ("not. good", []),
        ("good, not", []),
        ("not", []),
        ("not not good", ["good"]),
        ("not very, not good", ["very", "good"]),
        ("not without merit", ["merit"]),
        ("not one two never three four five", ["one", "two", "three", "four", "five"]),
        ("not 'good'", ["good"]),
        ("not “good”", ["good"]),
        ("not-good", ["good"]),
        ("not\ngood", ["good"]),
        ("nothing good", ["good"]),
        ("knot good, notable film, snot bad", []),
        ("not_good", []),
        ("want good, front film", []),
        ("not unheard good", ["good"]),
        ("", []),
        ("   ", []),
        ("!!! ' - ’", []),
        ("nicht good, kein film", []),
    ],
)
def test_what_is_negated(text, expected):
    assert negated(text) == expected


def test_words_keep_their_number_and_order():
    text = "I don’t like it at all: not a good film, never! Two"
    plain = [word.removeprefix("not ") for word in ENGLISH.words(text, KNOWN)]
    assert plain == ENGLISH.words(text, ())
    assert plain == ["don", "like", "it", "at", "all", "not", "good", "film", "never", "two"]


def test_words_without_a_negated_form_stay_as_they_are():
    assert ENGLISH.words("not good awful", {"not good"}) == ["not", "not good", "awful"]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from([*"ab.,!? '’-\n<(İßé", "not", "no ", " don't ", "good", " film "])))
def test_the_words_of_any_text_are_those_of_before(parts):
    """Only which form of a word is counted may change."""
    text = "".join(parts)
    found = ENGLISH.words(text, KNOWN)
    assert [plain_form(word) for word in found] == re.findall(TOKEN, text.lower())
    assert set(found) <= KNOWN | set(re.findall(TOKEN, text.lower()))


TEXTS = ["It is not a good film.", "A good film, isn't it?", "", "no", "don’t like it", "ünïcode"]


def test_each_row_depends_on_its_own_text_alone():
    bag = BagOfWords(with_negated(public_vocabulary(300)), dampened=True, negation=ENGLISH)
    together = bag(TEXTS).toarray()
    for place, text in enumerate(TEXTS):
        assert np.array_equal(bag([text]).toarray()[0], together[place])
    assert np.array_equal(bag(TEXTS[::-1]).toarray(), together[::-1])


def test_rows_have_norm_one_or_no_word():
    bag = BagOfWords(with_negated(public_vocabulary(300)), dampened=True, negation=ENGLISH)
    norms = np.linalg.norm(bag(TEXTS).toarray(), axis=1)
    assert norms == pytest.approx([1, 1, 0, 1, 1, 0], abs=1e-6)


def test_counts_of_plain_and_negated_words_add_up_to_those_of_before():
    words = public_vocabulary(500)
    texts = [*TEXTS, "no good, not one of them, and nothing that I would not like to see again"]
    before = PublicVectorizer(vocabulary=words).transform(texts)
    bag = BagOfWords(with_negated(words), negation=ENGLISH)
    plain, denied = np.split(bag(texts).toarray(), 2, axis=1)
    whole = BagOfWords(words)(texts).toarray()
    found = plain + denied
    assert denied.any()
    assert np.array_equal(found > 0, whole > 0)
    assert np.array_equal(before.toarray() > 0, whole > 0)


@pytest.mark.parametrize("length", [1000, 200_000])
def test_long_and_odd_texts_take_no_time(length):
    for text in ("not " + " " * length + "good", "not " * (length // 4), "a " * length,
                 "not" + "x" * length, "n" * length + "'t", "not " + "a " * length):  # fmt: skip
        assert len(ENGLISH.words(text, KNOWN)) <= length


def test_other_languages_have_none():
    assert negation_in("de") is None
    german = PublicVectorizer(words=50, language="de", negation=True)
    assert german.public_words() == public_vocabulary(50, "de")
    found = VocabularySource(words=50, language="de").read(
        Schema(("text",), (), (), Label("kind")), (), informed=True
    )
    assert found.negation is None
    assert found.words == public_vocabulary(50, "de")


def test_a_vectorizer_has_both_forms_of_every_word():
    bag = PublicVectorizer(words=50, negation=True)
    assert bag.public_words() == with_negated(public_vocabulary(50))
    assert bag.transform(["not the one"]).shape == (1, 100)
    assert PublicVectorizer(words=50).public_words() == public_vocabulary(50)


def test_a_vocabulary_that_is_given_stays_as_it_is():
    bag = PublicVectorizer(vocabulary=["good", "bad", "not good"], negation=True)
    assert bag.public_words() == ("good", "bad", "not good")
    expected = [[1, 0, 0], [0, 0, 1], [0, 1, 0]]
    assert bag.transform(["good", "not good", "not bad"]).toarray().tolist() == expected
    without = PublicVectorizer(vocabulary=["good", "bad", "not good"])
    assert without.transform(["not good"]).toarray().tolist() == [[1, 0, 0]]


def test_a_saved_vectorizer_of_before_has_no_negated_words():
    bag = PublicVectorizer(words=50)
    state = {name: value for name, value in bag.__getstate__().items() if name != "negation"}
    restored = PublicVectorizer.__new__(PublicVectorizer)
    restored.__setstate__(state)
    assert restored.transform(TEXTS).shape == (len(TEXTS), 50)
    again = pickle.loads(pickle.dumps(PublicVectorizer(words=50, negation=True)))
    assert again.transform(TEXTS).shape == (len(TEXTS), 100)


def test_weights_of_negated_words_are_public():
    """They follow from the word list alone: the share of words that a negation reaches."""
    words = with_negated(["good", "bad"])
    plain = word_frequencies(["good", "bad"]).values.numpy()
    found = listed_frequencies(words, negation=ENGLISH)
    share = share_negated(ENGLISH, "en")
    assert 0.02 < share < 0.1
    assert found.values.tolist() == pytest.approx([*plain, *(share * plain)])
    assert found.provenance.source == "wordfreq, language en, with negated words"
    assert listed_frequencies(["good"], negation=ENGLISH).provenance.source == (
        "wordfreq, language en"
    )


def test_a_file_of_frequencies_may_list_negated_words(tmp_path):
    path = tmp_path / "words.csv"
    path.write_text("word,frequency\ngood,0.01\nbad,0.02\nnot bad,0.005\n", encoding="utf-8")
    told = {"source": "made up", "public_because": "made up"}
    found = frequencies_from_file(path, with_negated(["good", "bad"]), **told, negated=0.1)
    assert found.values.tolist() == pytest.approx([0.01, 0.02, 0.001, 0.005])


def test_public_texts_say_how_often_words_are_negated(tmp_path):
    path = tmp_path / "public.csv"
    rows = ["good film", "not good", "not a good film", "bad film"]
    path.write_text("\n".join(["text", *rows]) + "\n", encoding="utf-8")
    source = VocabularySource(words=10, public=path, public_because="published")
    found = source.read(Schema(("text",), (), (), Label("kind")), (), informed=True)
    share = dict(zip(found.words, found.frequencies.values.tolist(), strict=True))
    assert share["good"] == 0.25
    assert share["not good"] == 0.5
    assert share["not bad"] == 0


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("negation") / "data.csv"
    kinds = {"well": "a good film", "badly": "not a good film"}
    rows = [f"{place} {text},{kind}" for place in range(60) for kind, text in kinds.items()]
    path.write_text("\n".join(["text,kind", *rows]) + "\n", encoding="utf-8")
    return path


def trained(table, out, **options):
    request = TrainingRequest(
        data=table, epsilon=8.0, out=out, texts=("text",), label="kind", classes="badly,well",
        examples=120, words=200, features=TextFeatures.WORDS, epochs=4, **options,
    )  # fmt: skip
    return train_from_table(request, lambda _: None)


def test_a_model_says_how_it_reads_texts(table, tmp_path):
    result = trained(table, tmp_path / "model")
    assert "402 public words, 201 of them negated" in result.settings["model"]
    assert any("negated words apart" in fact for fact in result.privacy.assumed_public)
    held = json.loads((tmp_path / "model" / "model.json").read_text(encoding="utf-8"))
    assert held["format"] == 6
    assert held["negation"] == ENGLISH.describe()
    assert load_model(tmp_path / "model").model.negation == ENGLISH
    plain = trained(table, tmp_path / "plain", negation=False)
    assert plain.settings["model"].endswith("texts as log(1 + count) of 201 public words")
    assert load_model(tmp_path / "plain").model.negation is None


def test_a_model_reads_texts_as_it_was_trained(table, tmp_path, monkeypatch):
    """Whatever lists a later version has, and wherever the folder is."""
    trained(table, tmp_path / "model")
    rows = ["not a good film", "no good, dull", "isn’t good"]
    before = load_model(tmp_path / "model").model.features.of_texts(rows).toarray()
    monkeypatch.setattr("adadps.estimators.text._OPENERS", {"en": ("dull",)})
    moved = shutil.copytree(tmp_path / "model", tmp_path / "elsewhere" / "copy")
    assert np.array_equal(load_model(moved).model.features.of_texts(rows).toarray(), before)


def test_an_older_model_reads_texts_as_before(table, tmp_path):
    trained(table, tmp_path / "model", negation=False)
    path = tmp_path / "model" / "model.json"
    held = json.loads(path.read_text(encoding="utf-8"))
    older = {name: value for name, value in held.items() if name != "negation"} | {"format": 4}
    path.write_text(json.dumps(older), encoding="utf-8")
    model = load_model(tmp_path / "model").model
    found = model.features.of_texts(["not a good film"])
    assert model.negation is None
    expected = BagOfWords(model.vocabulary, dampened=True)(["not a good film"])
    assert np.array_equal(found.toarray(), expected.toarray())


@pytest.mark.parametrize(
    "spoiled",
    [
        {"openers": [], "reach": 4}, {"openers": "not", "reach": 4},
        {"openers": ["Not"], "reach": 4},
        {"openers": ["not"], "reach": 0}, {"openers": ["not"], "reach": "4"}, {"openers": ["not"]},
        {"openers": [1], "reach": 4}, {"openers": ["not"], "reach": True}, ["not"], "not", 4,
        {"openers": ["not"], "reach": 10**9},
    ],
)  # fmt: skip
def test_a_spoiled_negation_is_refused(table, tmp_path, spoiled):
    with pytest.raises(DataError):
        negation_of(spoiled)


def test_a_folder_with_a_spoiled_negation_is_refused(table, tmp_path):
    trained(table, tmp_path / "model")
    path = tmp_path / "model" / "model.json"
    held = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**held, "negation": {"openers": []}}), encoding="utf-8")
    with pytest.raises(DataError, match="Expected the columns, classes and words of a model"):
        load_model(tmp_path / "model")


def test_a_negation_needs_words_and_a_reach():
    with pytest.raises(DataError, match="open a negation"):
        Negation(())
    assert Negation(("a.b", "c|d")).words("xaxb good, a.b good", {"not good"})[-1] == "not good"


def test_a_pipeline_tells_praise_from_blame_by_negation():
    rows = ["a good film", "not a good film"] * 60
    model = make_text_pipeline(
        epsilon=20, words=200, features="words", classes=["badly", "well"], examples=120
    )
    model.fit(rows, ["well", "badly"] * 60)
    assert model.predict(["a good film", "not a good film"]).tolist() == ["well", "badly"]
    assert "400 public words, 200 of them negated" in str(model["model"].privacy_.assumed_public)
