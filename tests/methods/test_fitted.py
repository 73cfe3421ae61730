"""Vectors that are fitted to public texts: what they are, where they come from, and their file."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file
from sklearn.decomposition import TruncatedSVD

from adadps.errors import DataError, SideInformationError
from adadps.methods.side import embeddings_from_texts, public_texts
from adadps.methods.side.fitted import (
    LEAST_TEXTS,
    FittedVectors,
    describe_fitted,
    load_fitted,
    save_fitted,
)

FRUIT, TOOLS = ("apples", "pears", "plums", "cherries"), ("hammers", "saws", "drills", "planes")
TOLD = {"source": "a magazine", "public_because": "printed"}


def corpus(count=1200):
    """Texts about fruit, and texts about tools; each has two of four words, and common ones."""
    made = []
    for number in range(count):
        names = (FRUIT, TOOLS)[number % 2]
        first, second = number // 2 % 4, number // 8 % 4
        kind = ("ripe", "rusty")[number % 2]
        made.append(f"the {kind} {names[first]} and the {names[second]} of {kind} days {number}")
    return made


@pytest.fixture(scope="module")
def fitted():
    return embeddings_from_texts(corpus(), width=4, **TOLD)


def test_words_of_one_topic_become_similar():
    rows = embeddings_from_texts(corpus(), width=2, **TOLD)(["apples", "pears", "hammers"])
    assert rows[0] @ rows[1] > 0.9
    assert abs(rows[0] @ rows[2]) < 0.5
    assert np.linalg.norm(rows, axis=1) == pytest.approx(1, abs=1e-5)


def test_they_are_the_singular_vectors_of_weighted_counts(fitted):
    held = fitted.embed
    rows = held.rows(corpus())
    exact = TruncatedSVD(4, algorithm="arpack").fit(rows).components_
    found = held.vectors.astype(np.float64).T
    assert np.linalg.svd(found @ exact.T)[1] == pytest.approx(1, abs=1e-2), "the same space"
    place = held.terms.index("apples")
    share = sum("apples" in text for text in corpus()) / 1200
    rarest = min(sum(f" {term} " in f" {text} " for text in corpus()) for term in held.terms)
    expected = np.log(share) / np.log(rarest / 1200)
    assert held.weights[place] == pytest.approx(expected, rel=1e-5)


def test_pairs_of_words_count_and_rare_ones_do_not(fitted):
    terms = fitted.embed.terms
    assert "ripe apples" in terms
    assert "the" in terms
    assert not any(term.isdecimal() for term in terms), "numbers stand in one text each"
    few = embeddings_from_texts(corpus(), terms=5, width=2, **TOLD).embed.terms
    assert few == terms[:5], "those that most texts have"


def test_a_text_has_the_same_vector_beside_any_others(fitted):
    texts = corpus()[:50]
    together = fitted(texts)
    alone = np.vstack([fitted([text]) for text in texts])
    assert np.array_equal(together, alone)
    assert not fitted(["", "nothing known"]).any()


def test_the_texts_are_told_apart_by_a_digest(fitted):
    origin = fitted.provenance
    assert origin.public_because == "printed"
    assert "fitted to a magazine" in origin.source
    other = embeddings_from_texts([*corpus()[:-1], "the end"], width=4, **TOLD)
    assert other.provenance.digest != origin.digest


@pytest.mark.parametrize("because", ["", "  ", None])
def test_a_reason_is_required(because):
    for make in (embeddings_from_texts, public_texts):
        with pytest.raises(SideInformationError, match="a reason why the texts of a magazine"):
            make(corpus(), source="a magazine", public_because=because)


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (corpus(LEAST_TEXTS - 1), "at least 1000 public texts"),
        ("one text", "at least 1000 public texts"),
        ([*corpus(), None], "something that is no text"),
        (["?!"] * LEAST_TEXTS, "found none. Check the column"),
        ([f"word{n}" for n in range(LEAST_TEXTS)], "found none. Check the column"),
        (["same"] * LEAST_TEXTS, "Expected different words"),
    ],
)
def test_texts_that_cannot_be_fitted_are_refused(texts, found):
    with pytest.raises(DataError, match=found):
        embeddings_from_texts(texts, **TOLD)


@pytest.mark.parametrize("texts", [[], "one", [None], [1]])
def test_public_texts_are_a_list_of_texts(texts):
    with pytest.raises(DataError, match="a list of public texts in a magazine"):
        public_texts(texts, **TOLD)


def test_few_texts_give_no_vectors_and_many_give_them_once():
    assert public_texts(corpus(20), **TOLD).vectors is None
    held = public_texts(corpus(), **TOLD)
    assert held.vectors is held.vectors
    again = pickle.loads(pickle.dumps(held))
    assert np.array_equal(again.vectors(["apples"]), held.vectors(["apples"]))


# --- the file beside a model ---


def test_a_saved_file_gives_the_same_vectors(fitted, tmp_path):
    file = tmp_path / "vectors.safetensors"
    save_fitted(fitted, file)
    again = load_fitted(json.loads(json.dumps(describe_fitted(fitted))), file)
    assert np.array_equal(again(corpus()[:20]), fitted(corpus()[:20]))
    assert again.provenance == fitted.provenance


def spoiled(fitted, file, change):
    save_fitted(fitted, file)
    with safe_open(file, framework="numpy") as stored:
        parts = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        terms = json.loads(stored.metadata()["terms"])
    parts, terms = change(parts, terms)
    save_file(parts, file, metadata={"terms": json.dumps(terms)})


@pytest.mark.parametrize(
    "change",
    [
        lambda parts, terms: (parts, terms[::-1]),
        lambda parts, terms: (parts, terms[:-1]),
        lambda parts, terms: (parts, [1, *terms[1:]]),
        lambda parts, _: (parts, {"a": 1}),
        lambda parts, terms: ({**parts, "vectors": parts["vectors"] * np.float16(2)}, terms),
        lambda parts, terms: ({**parts, "vectors": parts["vectors"] * np.float16("nan")}, terms),
        lambda parts, terms: ({**parts, "vectors": parts["vectors"][0]}, terms),
        lambda parts, terms: ({**parts, "weights": parts["weights"][:-1]}, terms),
        lambda parts, terms: ({"weights": parts["weights"]}, terms),
    ],
)
def test_other_vectors_are_refused(fitted, tmp_path, change):
    file = tmp_path / "vectors.safetensors"
    spoiled(fitted, file, change)
    with pytest.raises(SideInformationError, match="Restore the folder of the model"):
        load_fitted(describe_fitted(fitted), file)


@pytest.mark.parametrize("content", [b"", b"no safetensors", None])
def test_a_damaged_or_missing_file_is_refused(fitted, tmp_path, content):
    file = Path(tmp_path) / "vectors.safetensors"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SideInformationError, match="found none that can be read"):
        load_fitted(describe_fitted(fitted), file)


@pytest.mark.parametrize("key", ["source", "public_because", "digest", "vectors"])
def test_a_description_that_lacks_something_is_refused(fitted, tmp_path, key):
    file = tmp_path / "vectors.safetensors"
    save_fitted(fitted, file)
    described = {**describe_fitted(fitted)}
    del described[key]
    with pytest.raises(SideInformationError, match="Restore the folder of the model"):
        load_fitted(described, file)


def test_every_part_is_in_the_digest(fitted):
    held = fitted.embed
    others = [
        FittedVectors(held.terms[::-1], held.weights, held.vectors),
        FittedVectors(held.terms, held.weights * 2, held.vectors),
        FittedVectors(held.terms, held.weights, held.vectors * np.float16(2)),
    ]
    assert len({held.digest, *(other.digest for other in others)}) == 4
