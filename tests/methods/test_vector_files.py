"""Files of vectors: what is read from them, and what is refused."""

import gzip

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import Unigram, WordLevel

from adadps.errors import DataError, SideInformationError
from adadps.estimators.text import TOKEN
from adadps.methods.side import embeddings
from adadps.methods.side.vector_sources import WORD
from support.vectors import MATRIX, WORDS, save_model, small_tokenizer

LINES = "film 1 0 0\nGood 0 2 0\ngood 0 1 1\nbad 0 0 -4\n"


def of_file(place):
    return embeddings(place, public_because="made up")


def written(folder, content, name="vectors.txt"):
    path = folder / name
    raw = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(raw, mtime=0) if name.endswith(".gz") else raw)
    return path


def test_words_are_those_of_the_rest_of_the_library():
    assert WORD == TOKEN


@pytest.mark.parametrize("name", ["vectors.txt", "vectors.vec", "vectors.txt.gz"])
@pytest.mark.parametrize("header", ["", "4 3\n"])
def test_a_text_is_the_mean_of_its_words(tmp_path, name, header):
    vectors = of_file(written(tmp_path, header + LINES, name))
    assert (vectors.name, vectors.width) == ("file", 3)
    rows = vectors(["film, bad!", "unknown words", "x"])
    np.testing.assert_allclose(rows[0], np.array([1, 0, -4]) / np.sqrt(17), rtol=1e-6)
    assert not rows[1:].any()


@pytest.mark.parametrize("name", ["vectors.txt", "vectors.txt.gz"])
@pytest.mark.parametrize("header", ["", "4 3\n"])
def test_the_mark_that_some_editors_put_first_is_no_part_of_a_word(tmp_path, name, header):
    marked = of_file(written(tmp_path, "\ufeff" + header + LINES, name))
    plain = of_file(written(tmp_path, LINES, "plain.txt"))
    assert marked.provenance.digest == plain.provenance.digest


def test_case_matters_where_the_file_has_both(tmp_path):
    vectors = of_file(written(tmp_path, LINES))
    assert vectors(["Good", "good", "GOOD", "FILM"]).round(3).tolist() == pytest.approx(
        np.array([[0, 1, 0], [0, 0.707, 0.707], [0, 0.707, 0.707], [1, 0, 0]]), abs=1e-3
    )


def test_what_text_files_also_contain_is_read(tmp_path):
    """Spaces at the end of lines, line ends of Windows, empty lines, and words with spaces."""
    content = "film 1 0 0 \r\n\r\n. . . 0 1 0\r\nnon\u00a0breaking 0 0 1\r\nbad 1e0 -2.5E-1 .5\n"
    vectors = of_file(written(tmp_path, content))
    assert "4 words × 3" in vectors.provenance.source
    np.testing.assert_allclose(vectors(["film"]), [[1, 0, 0]])


def test_the_digest_is_that_of_words_and_vectors(tmp_path):
    def digest(content, name="a.txt"):
        return of_file(written(tmp_path, content, name)).provenance.digest

    known = digest(LINES)
    assert known == digest("4 3\n" + LINES, "b.txt.gz")
    assert known != digest(LINES.replace("film", "movie"))
    assert known != digest(LINES.replace("-4", "-5"))


REFUSED = {
    "fewer numbers": ("film 1 0 0\ngood 1 0\n", "3 numbers on line 2 .*found 2 numbers"),
    "more numbers": ("film 1 0\ngood 1 0 3\n", "2 numbers on line 2 .*found 3 numbers"),
    "another width than the header": ("1 2\nfilm 1 0 0\n", "2 numbers on line 2 .*found 3"),
    "no numbers": ("film\ngood\n", "a word and its numbers on line 1 .*found 0"),
    "tabs": ("film\t1\t0\ngood\t0\t1\n", "single spaces .*not tabs"),
    "zeros": ("film 0 0\ngood 0 0\n", "tell texts apart in .*found zeros alone"),
    "not a number": ("film 1 0\ngood 1 x\n", "numbers after the word on line 2 .*found 'x'"),
    "two spaces": ("film 1 0\ngood 1  0\n", "line 2"),
    "underscores": ("film 1 1_0\n", "found '1_0'"),
    "NaN": ("film 1 0\ngood nan 0\n", "finite numbers on line 2"),
    "infinite": ("film 1 0\ngood 1 -inf\n", "finite numbers on line 2"),
    "huge": ("film 1 1e31\n", "finite numbers on line 1"),
    "a word twice": ("film 1 0\ngood 0 1\nfilm 1 0\n", "'film' again on line 3"),
    "empty": ("", "words and their vectors in .*found none"),
    "blank": ("\n \n", "words and their vectors in .*found none"),
    "a header alone": ("0 3\n", "words and their vectors in .*found none"),
    "cut": ("3 2\nfilm 1 0\n", "3 words in .*as its first line says, found 1"),
    "not UTF-8": (b"film 1 0\n\xff\xfe 1 0\n", "Expected UTF-8"),
}


@pytest.mark.parametrize(("content", "message"), REFUSED.values(), ids=REFUSED)
def test_wrong_text_files_are_refused(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        of_file(written(tmp_path, content))


WHOLE = gzip.compress(LINES.encode(), mtime=0)


@pytest.mark.parametrize("raw", [WHOLE[:-9], WHOLE[5:], WHOLE[:12] + b"x" * 30, b"no"])
def test_damaged_archives_are_refused(tmp_path, raw):
    path = tmp_path / "vectors.gz"
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"a whole file in .*Download it again"):
        of_file(path)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(SideInformationError, match=r"'wordllama', .*which does not exist"):
        of_file(tmp_path / "nothing.txt")


@pytest.mark.parametrize("name", ["embeddings", "embedding.weight", "anything"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_matrix_and_its_tokenizer(tmp_path, name, dtype):
    folder = save_model(tmp_path / "model", **{name: MATRIX.astype(dtype)})
    for place in (folder, str(folder), folder / "model.safetensors"):
        vectors = of_file(place)
        rows = vectors(["film bad", "unknown", "film unknown", ""])
        np.testing.assert_allclose(rows[0], np.array([1, 0, -4]) / np.sqrt(17), rtol=1e-6)
        np.testing.assert_allclose(rows[2], [1, 0, 0])
        assert not rows[[1, 3]].any()
        assert "4 tokens × 3" in vectors.provenance.source


def test_a_named_matrix_among_others(tmp_path):
    folder = save_model(tmp_path / "model", embeddings=MATRIX, other=MATRIX + 1)
    np.testing.assert_allclose(of_file(folder)(["film"]), [[1, 0, 0]])


def test_compressed_matrices_are_expanded(tmp_path):
    """Tokens may share rows, and have weights of their own."""
    mapping = np.array([0, 1, 1, 2])
    weights = np.array([1, 3, 1, 2], dtype=np.float32)
    folder = save_model(
        tmp_path / "model", embeddings=MATRIX[[0, 1, 3]], mapping=mapping, weights=weights
    )
    np.testing.assert_allclose(
        of_file(folder)(["film bad"]), [np.array([3, 0, -8]) / np.sqrt(73)], rtol=1e-6
    )


def test_truncation_and_padding_of_a_tokenizer_are_switched_off(tmp_path):
    tokenizer = small_tokenizer()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=8, pad_id=3)
    vectors = of_file(save_model(tmp_path / "model", tokenizer=tokenizer))
    np.testing.assert_allclose(vectors(["film film film good"]), [[3, 2, 0] / np.sqrt(13)])


def test_the_unknown_token_of_another_kind_of_model_has_no_vector(tmp_path):
    tokenizer = Tokenizer(Unigram([("<unk>", 0.0), ("a", -1.0), ("b", -1.0)], unk_id=0))
    folder = save_model(tmp_path / "model", tokenizer=tokenizer, embeddings=MATRIX)
    np.testing.assert_allclose(of_file(folder)(["aaz", "z"]), [[1, 0, 0], [0, 0, 0]])


def test_the_digest_is_that_of_matrix_and_tokenizer(tmp_path):
    known = of_file(save_model(tmp_path / "a")).provenance.digest
    assert known == of_file(save_model(tmp_path / "b")).provenance.digest
    assert known != of_file(save_model(tmp_path / "c", embeddings=MATRIX + 1)).provenance.digest
    other = small_tokenizer((*WORDS[:3], "worse"))
    assert known != of_file(save_model(tmp_path / "d", tokenizer=other)).provenance.digest


MATRICES = {
    "two matrices": ({"a": MATRIX, "b": MATRIX}, "exactly one matrix .*found a .4, 3., b"),
    "two names": ({"embeddings": MATRIX, "embedding.weight": MATRIX}, "exactly one matrix"),
    "a vector": ({"embeddings": MATRIX[0]}, "exactly one matrix"),
    "integers": ({"a": MATRIX.astype(np.int64)}, "exactly one matrix"),
    "too few rows": ({"a": MATRIX[:2]}, "a vector for each token in .*2 vectors and 4 tokens"),
    "no columns": ({"a": MATRIX[:, :0]}, "Expected vectors in .*found shape"),
    "NaN": ({"a": MATRIX * np.nan}, "Expected finite vectors"),
    "infinite": ({"a": MATRIX - np.inf}, "Expected finite vectors"),
    "zeros": ({"a": MATRIX * 0}, "tell texts apart in .*found zeros alone"),
    "another mapping": (
        {"embeddings": MATRIX, "mapping": np.array([0, 1, 2, 9])},
        "mapping and weights that fit",
    ),
    "other weights": (
        {"embeddings": MATRIX, "weights": np.ones(3, dtype=np.float32)},
        "mapping and weights that fit",
    ),
}


@pytest.mark.parametrize(("tensors", "message"), MATRICES.values(), ids=MATRICES)
def test_wrong_matrices_are_refused(tmp_path, tensors, message):
    with pytest.raises(DataError, match=message):
        of_file(save_model(tmp_path / "model", **tensors))


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("content", [None, b"", b"nonsense", b"\xff\xff"])
def test_folders_with_other_files_are_refused(tmp_path, name, content):
    folder = save_model(tmp_path / "model")
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    found = "found no such file" if content is None else "found something else"
    with pytest.raises(DataError, match=f"{name}, {found}"):
        of_file(folder)


def test_a_tokenizer_without_its_unknown_token_is_refused(tmp_path):
    """Otherwise the first unknown word would fail, long after the vectors were read."""
    tokenizer = Tokenizer(WordLevel({"film": 0, "good": 1}, unk_token="[NONE]"))
    with pytest.raises(DataError, match=r"'\[NONE\]' is not in its vocabulary"):
        of_file(save_model(tmp_path / "model", tokenizer=tokenizer))
