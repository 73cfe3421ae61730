"""Public vectors of texts: every source, what is refused, and finding the same vectors again."""

import copy
import json
import pickle
import socket
import sys
from importlib import metadata
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from adadps.errors import DataError, SideInformationError
from adadps.methods.side import embeddings, embeddings_described
from adadps.methods.side import vectors as text_vectors
from adadps.methods.side.embeddings import CHUNK
from support.vectors import MATRIX, WORDS, save_model, small_tokenizer

LANGUAGES = [
    "🎉🎊",
    "日本語の文章",
    "Привет, мир",
    "مرحبا",
    "\x00",
    "a lone \ud800 half",
    "<unk> x",
]


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def letters(texts):
    """Shares of a few letters: a function of each text alone."""
    return np.array([[text.count(letter) + 0.5 for letter in "aeiou"] for text in texts])


def made(source):
    return embeddings(source, public_because="made up")


# wordllama


def test_vectors_of_wordllama():
    vectors = embeddings()
    assert (vectors.name, vectors.place, vectors.width) == ("wordllama", "", 256)
    origin = vectors.provenance
    assert origin.source.startswith(f"wordllama {metadata.version('wordllama')}, ")
    assert "32,000 tokens" in origin.source
    assert "LLaMA 2" in origin.source
    assert "dispute" in origin.public_because
    rows = vectors(["an excellent film", "a superb movie", "interest rates of banks"])
    assert rows.dtype == np.float32
    assert rows[0] @ rows[1] > rows[0] @ rows[2] + 0.2


def test_a_text_is_the_mean_of_its_tokens():
    """Computed in another way, from the files themselves."""
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    home = metadata.distribution("wordllama")
    files = "weights/l2_supercat_256.safetensors", "tokenizers/l2_supercat_tokenizer_config.json"
    weights, tokens = (str(home.locate_file(f"wordllama/{name}")) for name in files)
    matrix = load_file(weights)["embedding.weight"].astype(np.float64)
    text = "The film, the actors and the end of the film."
    ids = Tokenizer.from_file(tokens).encode(text, add_special_tokens=False).ids
    mean = matrix[ids].mean(axis=0)
    np.testing.assert_allclose(embeddings()([text])[0], mean / np.linalg.norm(mean), atol=1e-6)


@pytest.mark.parametrize("text", [*LANGUAGES, "word " * 20_000], ids=range(len(LANGUAGES) + 1))
def test_every_text_has_a_vector(text):
    row = embeddings()([text])
    assert np.linalg.norm(row) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("source", ["wordllama", letters], ids=["wordllama", "function"])
def test_blank_texts_are_zeros(source):
    rows = made(source)(["", "film", " \n\t"])
    assert rows.any(axis=1).tolist() == [False, True, False]


def test_a_row_depends_on_its_own_text_alone():
    """Exactly: alone, among others, in another order, and across the borders of chunks."""
    texts = [f"the film number {place} is {'very ' * (place % 7)}good" for place in range(50)]
    many = [*texts, *LANGUAGES, "", *["other"] * CHUNK, *texts]
    vectors = embeddings()
    rows = vectors(many)
    alone = np.vstack([vectors([text]) for text in texts])
    assert np.array_equal(rows[:50], alone)
    assert np.array_equal(rows[-50:], alone)
    assert np.array_equal(vectors(many[::-1])[::-1], rows)
    norms = np.linalg.norm(rows, axis=1)
    assert np.allclose(norms[norms > 0], 1, atol=1e-6)


def test_wordllama_is_read_once():
    assert embeddings().embed is embeddings().embed


def test_reasons_may_be_given_for_wordllama_too():
    vectors = embeddings(public_because="we say so", licence="other", trained_on="the web")
    described = vectors.describe()
    assert described["public_because"] == "we say so"
    assert (described["licence"], described["trained_on"]) == ("other", "the web")


@pytest.mark.parametrize("what", ["package", "files"])
def test_a_missing_package_is_reported_with_the_cure(monkeypatch, tmp_path, what):
    def nowhere(name):
        if what == "package":
            raise metadata.PackageNotFoundError(name)
        return SimpleNamespace(version="0", locate_file=lambda path: tmp_path / path)

    monkeypatch.setattr(text_vectors, "distribution", nowhere)
    text_vectors.of_wordllama.cache_clear()
    with pytest.raises(SideInformationError, match=r"found none .*pip install .*wordllama>=0\.4"):
        embeddings()
    text_vectors.of_wordllama.cache_clear()


# texts


@pytest.mark.parametrize("texts", [[], ["a", None], [1.5], "one text", None, 3, ["a", b"b"], ()])
def test_what_is_not_a_list_of_texts_is_refused(texts):
    with pytest.raises(DataError, match=r"Expected (at least one|a list of) text"):
        embeddings()(texts)


def test_columns_of_texts_are_accepted():
    import pandas as pd

    texts = ["a film", "a book"]
    rows = embeddings()(texts)
    assert np.array_equal(rows, embeddings()(pd.Series(texts, index=[7, 3])))
    assert np.array_equal(rows, embeddings()(np.array(texts)))


# functions


def test_a_function_is_normalised_and_described():
    vectors = made(letters)
    rows = vectors(["aa", "banana"])
    np.testing.assert_allclose(rows[0], np.array([5, 1, 1, 1, 1]) / np.sqrt(29), rtol=1e-6)
    assert vectors.name == "function"
    assert vectors.place.endswith(".letters")
    assert "digest of 8 outputs" in vectors.provenance.source
    assert "not stated" in vectors.provenance.source


@pytest.mark.parametrize(
    "convert",
    [
        lambda rows: rows.tolist(),
        lambda rows: torch.tensor(rows, dtype=torch.bfloat16, requires_grad=True),
        lambda rows: rows.astype(np.float16),
        lambda rows: rows * 1e300,
        lambda rows: rows * 1e-300,
    ],
    ids=["lists", "tensor", "half", "huge", "tiny"],
)
def test_any_floating_rows_are_accepted(convert):
    found = made(lambda texts: convert(letters(texts)))(["banana", "film"])
    np.testing.assert_allclose(found, made(letters)(["banana", "film"]), atol=1e-2)


WRONG = {
    "one row too few": (lambda texts: letters(texts)[1:], "Expected vectors of shape"),
    "one dimension": (lambda texts: letters(texts)[:, 0], "Expected vectors of shape"),
    "no columns": (lambda texts: letters(texts)[:, :0], "Expected vectors of shape"),
    "nothing": (print, "Expected vectors of shape"),
    "a sparse matrix": (
        lambda texts: __import__("scipy.sparse").sparse.csr_matrix(letters(texts)),
        "found shape .* of csr_matrix. Return a dense array",
    ),
    "rows of different lengths": (
        lambda texts: [[1.0] * (1 + len(text) % 2) for text in texts],
        "Expected vectors of shape",
    ),
    "integers": (lambda texts: letters(texts).astype(int), "finite floating numbers .*int64"),
    "integer tensors": (lambda texts: torch.ones(len(texts), 2, dtype=torch.int32), "int32"),
    "words": (lambda texts: [[text] for text in texts], "finite floating numbers"),
    "NaN": (lambda texts: letters(texts) * np.nan, "finite floating numbers"),
    "a width that grows": (
        lambda texts: np.ones((len(texts), len(texts) + 1)),
        r"Expected vectors of shape \(1, 9\)",
    ),
    "mixed texts": (
        lambda texts: letters(texts) - letters(texts).mean(axis=0) + 0.1,
        "own text alone.*fitted on its input is not private",
    ),
    "places": (
        lambda texts: letters(texts) + np.arange(len(texts))[:, None],
        "depend on their own text alone",
    ),
}


@pytest.mark.parametrize(("function", "message"), WRONG.values(), ids=WRONG)
def test_wrong_functions_are_refused(function, message):
    with pytest.raises(SideInformationError, match=message):
        made(function)


def test_outputs_are_checked_at_every_call():
    def spoiled(texts):
        return letters(texts) * (np.nan if "spoiled" in texts else 1)

    vectors = made(spoiled)
    with pytest.raises(SideInformationError, match="finite floating numbers"):
        vectors(["fine", "spoiled"])


def test_small_rounding_does_not_change_the_digest_of_a_function():
    known = made(letters).provenance.digest
    assert known == made(lambda texts: letters(texts) * (1 + 1e-7)).provenance.digest
    assert known == made(lambda texts: letters(texts) + 1e-8).provenance.digest
    assert known != made(lambda texts: letters(texts)[:, ::-1]).provenance.digest
    assert known != made(lambda texts: -letters(texts)).provenance.digest


# reasons and sources


@pytest.mark.parametrize("reason", [None, "", "  "])
@pytest.mark.parametrize("source", [letters, "vectors.txt", "model2vec:a/b"])
def test_a_reason_is_required(source, reason):
    with pytest.raises(SideInformationError, match=r"a reason why the vectors of .* are public"):
        embeddings(source, public_because=reason)


def test_an_empty_reason_is_refused_for_wordllama():
    with pytest.raises(
        SideInformationError,
        match=r"of wordllama .*to `adadps.side.embeddings`",
    ):
        embeddings(public_because=" ")


@pytest.mark.parametrize("source", [None, 3, "", " ", b"wordllama"])
def test_other_sources_are_refused(source):
    with pytest.raises(SideInformationError, match="Expected 'wordllama', 'model2vec:NAME'"):
        made(source)


# packages


def saved_model2vec(folder, matrix=MATRIX, **options):
    package = pytest.importorskip("model2vec")
    package.StaticModel(matrix, small_tokenizer(), **options).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalize": True, "max_length": 2},
        {"weights": np.array([1, 3, 1, 2]), "token_mapping": np.array([0, 3, 2, 1])},
    ],
    ids=["plain", "normalised", "compressed"],
)
def test_models_of_model2vec(tmp_path, options):
    from model2vec import StaticModel

    folder = saved_model2vec(tmp_path / "model", **options)
    vectors = made(f"model2vec:{folder}")
    assert (vectors.name, vectors.place, vectors.width) == ("model2vec", str(folder), 3)
    texts = ["film good bad bad", "unknown", "good", ""]
    theirs = StaticModel.from_pretrained(folder).encode(texts, normalize=True, max_length=None)
    np.testing.assert_allclose(vectors(texts), theirs, atol=1e-6)
    np.testing.assert_allclose(made(folder)(texts), theirs, atol=1e-6)


def test_a_model_of_model2vec_that_is_not_here(tmp_path, monkeypatch):
    pytest.importorskip("model2vec")
    message = r"local cache, found none.*as 'no/model'.*downloads nothing.*from_pretrained"
    with pytest.raises(SideInformationError, match=message):
        made("model2vec:no/model")
    with pytest.raises(SideInformationError, match="found none that can be read"):
        made(f"model2vec:{tmp_path}")


class FakeSentenceTransformer:
    """What is read of a model of sentence-transformers."""

    def __init__(self, name, *, local_files_only):
        assert local_files_only
        if name != "a/model":
            raise OSError("We couldn't connect to the hub")
        self.weights = torch.arange(10.0).reshape(5, 2)
        self.tokenizer = small_tokenizer(WORDS)

    def encode(self, texts, *, convert_to_numpy, show_progress_bar):
        assert convert_to_numpy
        assert not show_progress_bar
        return (letters(texts) @ self.weights.double().numpy()).astype(np.float32)

    def state_dict(self):
        return {"weights": self.weights}


def test_models_of_sentence_transformers(monkeypatch):
    fake = SimpleNamespace(SentenceTransformer=FakeSentenceTransformer)
    monkeypatch.setitem(sys.modules, "sentence_transformers", fake)
    vectors = made("sentence-transformers:a/model")
    assert (vectors.name, vectors.place) == ("sentence-transformers", "a/model")
    assert vectors(["film", ""]).any(axis=1).tolist() == [True, False]
    again = embeddings_described(json.loads(json.dumps(vectors.describe())))
    assert again.describe() == vectors.describe()
    with pytest.raises(SideInformationError, match=r"SentenceTransformer\('other'\)"):
        made("sentence-transformers:other")
    others = torch.ones(5, 2)
    monkeypatch.setattr(FakeSentenceTransformer, "state_dict", lambda _: {"weights": others})
    assert made("sentence-transformers:a/model").provenance.digest != vectors.provenance.digest


def test_a_real_model_of_sentence_transformers(tmp_path):
    package = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    module = modules.StaticEmbedding(small_tokenizer(), embedding_weights=MATRIX)
    package.SentenceTransformer(modules=[module]).save(str(tmp_path / "model"))
    vectors = made(f"sentence-transformers:{tmp_path / 'model'}")
    np.testing.assert_allclose(vectors(["film", ""]), [[1, 0, 0], [0, 0, 0]], atol=1e-6)


@pytest.mark.parametrize("package", ["model2vec", "sentence-transformers"])
def test_packages_that_are_not_installed(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package.replace("-", "_"), None)
    with pytest.raises(SideInformationError, match=rf"pip install \"adadps\[{package}\]\""):
        made(f"{package}:a/model")


# finding the same vectors again


@pytest.fixture(params=["wordllama", "words", "folder", "model2vec"])
def known(request, tmp_path):
    """Embeddings of each source that can be found again by itself."""
    if request.param == "wordllama":
        return embeddings()
    if request.param == "words":
        (tmp_path / "words.txt").write_text("film 1 0\ngood 0 1\n")
        return made(tmp_path / "words.txt")
    if request.param == "folder":
        return made(save_model(tmp_path / "model"))
    return made(f"model2vec:{saved_model2vec(tmp_path / 'model')}")


def test_the_same_vectors_are_found_again(known):
    described = json.loads(json.dumps(known.describe()))
    assert list(described) == [
        *("name", "place", "width", "source", "public_because", "digest", "licence", "trained_on"),
    ]
    again = embeddings_described(described)
    assert again.describe() == described
    texts = ["film", "good film", ""]
    assert np.array_equal(again(texts), known(texts))


@pytest.mark.parametrize("change", [{"digest": "0" * 64}, {"width": 1}])
def test_other_vectors_are_refused(known, change):
    described = {**known.describe(), **change}
    with pytest.raises(SideInformationError) as caught:
        embeddings_described(described)
    called = known.provenance.source.partition("; licence")[0]
    for part in (called, described["digest"], known.provenance.digest):
        assert part in str(caught.value)
    assert "licence" not in str(caught.value), "as it is described, which says nothing of others"


def test_vectors_that_were_moved_are_found_by_their_new_place(tmp_path):
    described = made(save_model(tmp_path / "old")).describe()
    (tmp_path / "old").rename(tmp_path / "new")
    with pytest.raises(SideInformationError, match=r"SHA-256 .* found none\. .*give their"):
        embeddings_described(described)
    assert embeddings_described(described, tmp_path / "new").place == str(tmp_path / "new")
    save_model(tmp_path / "new", embeddings=MATRIX + 1)
    with pytest.raises(SideInformationError, match="no others: put them back at"):
        embeddings_described(described, tmp_path / "new")


def test_another_version_of_wordllama_is_named_with_its_cure():
    described = {**embeddings().describe(), "digest": "0" * 64}
    with pytest.raises(SideInformationError, match=r'pip install "wordllama==0\.4'):
        embeddings_described(described)


def test_other_vectors_in_the_place_of_wordllama_are_to_be_left_out():
    with pytest.raises(SideInformationError, match="leave `source`"):
        embeddings_described(embeddings().describe(), lambda texts: [[1.0]] * len(texts))


def test_a_function_has_to_be_given_again():
    described = made(letters).describe()
    with pytest.raises(SideInformationError, match="functions are not saved"):
        embeddings_described(described)
    assert embeddings_described(described, letters).width == 5
    with pytest.raises(SideInformationError, match="give the same function"):
        embeddings_described(described, lambda texts: letters(texts)[:, ::-1])


SPOILED = [None, [], {}, {"name": "wordllama"}, *({"name": name} for name in (3, "gpt"))]
SPOILED += [{"width": "256"}, {"digest": None}, {"place": None}, {"licence": 3}]


@pytest.mark.parametrize("spoiled", SPOILED, ids=str)
def test_spoiled_descriptions_are_refused(spoiled):
    whole = embeddings().describe()
    partial = spoiled in (None, [], {}, {"name": "wordllama"})
    with pytest.raises(DataError, match="Expected a description of embeddings"):
        embeddings_described(spoiled if partial else {**whole, **spoiled})


def test_copies_share_the_vectors():
    vectors = embeddings()
    assert copy.deepcopy(vectors) is vectors


def test_embeddings_of_tokens_survive_pickling(known):
    again = pickle.loads(pickle.dumps(known))
    assert np.array_equal(again(["good film"]), known(["good film"]))
