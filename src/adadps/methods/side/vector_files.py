"""Published vectors of tokens or words, and the files that hold them.

A text is the sum of the vectors of its tokens (its direction is that of their mean). Two kinds of
files are read: matrices in safetensors with a ``tokenizer.json``, as in folders of model2vec and
in the wheel of wordllama, and text files in the format of word2vec and GloVe, one word and its
numbers per line. Nothing here uses the network.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from torch import Tensor

from adadps.data.provenance import digest_of
from adadps.errors import DataError

WORD = r"(?u)\b\w\w+\b"
"""The pattern of a word, as everywhere else in the library: single letters are ignored."""
NAMES = ("embedding.weight", "embeddings")
"""What sentence-transformers and model2vec call the matrix of vectors."""
LARGEST = 1e30
"""Sums of larger numbers could be infinite."""

Matrix = npt.NDArray[np.float32]
Finder = Callable[[Sequence[str]], Sequence[Sequence[int]]]


@dataclass(frozen=True, eq=False)
class Vectors:
    """A matrix of vectors, and a finder of the rows that belong to each text."""

    matrix: Matrix
    find: Finder
    digest: str
    kind: str

    def __call__(self, texts: Sequence[str]) -> Matrix:
        """Return the sum of the vectors of each text.

        Each row of a product of a sparse matrix is computed alone and in the same order, so that
        a text has the same vector, bit by bit, whatever the other texts are.
        """
        found = self.find(texts)
        ends = np.cumsum([0, *map(len, found)])
        places = np.concatenate([np.asarray(row, dtype=np.int64) for row in found])
        counts = sparse.csr_matrix(
            (np.ones(len(places), dtype=np.float32), places, ends),
            shape=(len(found), len(self.matrix)),
        )
        counts.sum_duplicates()
        return np.asarray(counts @ self.matrix, dtype=np.float32)

    @property
    def size(self) -> str:
        """How many vectors there are, and how wide, for people."""
        return f"{len(self.matrix):,} {self.kind} × {self.matrix.shape[1]}"


@dataclass(frozen=True, eq=False)
class _Tokens:
    """Finds the tokens of a tokenizer, except for the unknown one."""

    tokenizer: Any
    unknown: int | None

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        whole = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
        encoded = self.tokenizer.encode_batch_fast(whole, add_special_tokens=False)
        if self.unknown is None:
            return [one.ids for one in encoded]
        return [[token for token in one.ids if token != self.unknown] for one in encoded]


@dataclass(frozen=True, eq=False)
class _Words:
    """Finds words as they are written, or else in lower case."""

    index: dict[str, int]

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        found = ((self._place(word) for word in re.findall(WORD, text)) for text in texts)
        return [[place for place in places if place is not None] for places in found]

    def _place(self, word: str) -> int | None:
        place = self.index.get(word)
        return self.index.get(word.lower()) if place is None else place


def token_vectors(matrix: Tensor, tokenizer: Any, place: object, identity: str) -> Vectors:
    """Return vectors of a tokenizer's tokens; its unknown token has none.

    ``identity`` stands for the tokenizer in the digest.
    """
    held = _sound(matrix, place)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if not 0 <= largest < len(held):
        raise DataError(
            f"Expected a vector for each token in {place}, found {len(held)} vectors and "
            f"{largest + 1} tokens. Use the tokenizer that belongs to these vectors."
        )
    find = _Tokens(tokenizer, _unknown_token(tokenizer, place))
    return Vectors(held, find, digest_of([torch.from_numpy(held), identity]), "tokens")


def _unknown_token(tokenizer: Any, place: object) -> int | None:
    if hasattr(tokenizer.model, "unk_token"):
        token = tokenizer.model.unk_token
        found: int | None = None if token is None else tokenizer.token_to_id(token)
        if token is not None and found is None:  # encoding an unknown word would fail later
            raise DataError(
                f"Expected a tokenizer of {place} with its own unknown token, found that "
                f"{token[:40]!r} is not in its vocabulary. Copy the tokenizer of these vectors "
                "again."
            )
    else:  # the kind of model called Unigram has a number
        found = json.loads(tokenizer.to_str())["model"].get("unk_id")
    return found


def read_token_vectors(vectors: Path, tokenizer: Path) -> Vectors:
    """Read a safetensors file and the tokenizer that belongs to it."""
    from tokenizers import Tokenizer

    matrix = _read_matrix(vectors)
    _require_file(tokenizer, "a tokenizer")
    try:
        text = tokenizer.read_text(encoding="utf-8")
        held = Tokenizer.from_str(text)
    except Exception as error:  # tokenizers raises plain exceptions
        raise DataError(
            f"Expected a tokenizer in {tokenizer}, found something else ({error}). Copy the "
            "tokenizer.json of these vectors there."
        ) from error
    return token_vectors(matrix, held, vectors, text)


def _read_matrix(path: Path) -> Tensor:
    """Read the one matrix, and if model2vec has compressed it, undo that."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    _require_file(path, "vectors")
    try:
        held: dict[str, Tensor] = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise DataError(
            f"Expected a safetensors file in {path}, found something else ({error}). Download it "
            "again."
        ) from error
    named = [held[name] for name in NAMES if name in held]
    floating = [one for one in held.values() if one.ndim == 2 and one.is_floating_point()]
    candidates = named or floating
    if len(candidates) != 1 or candidates[0].ndim != 2:
        shapes = ", ".join(f"{name} {tuple(one.shape)}" for name, one in held.items()) or "nothing"
        raise DataError(
            f"Expected exactly one matrix of floating numbers in {path}, or one that is called "
            f"{' or '.join(NAMES)}, found {shapes[:200]}. Save the vectors of tokens alone."
        )
    return expanded(candidates[0], held.get("mapping"), held.get("weights"), path)


def expanded(
    matrix: Tensor, mapping: Tensor | None, weights: Tensor | None, place: object
) -> Tensor:
    """Return one vector per token, where tokens share rows (mapping) or have weights."""
    try:
        rows = matrix.float() if mapping is None else matrix.float()[mapping.long()]
        return rows if weights is None else rows * weights.float()[:, None]
    except (IndexError, RuntimeError) as error:
        raise DataError(
            f"Expected a mapping and weights that fit the vectors of {place}, found others "
            f"({error}). Download the model again."
        ) from error


def read_word_vectors(path: Path) -> Vectors:
    """Read a text file of words and their vectors (word2vec, GloVe), compressed or not.

    A word of a text is looked up as it is written, and then in lower case.
    """
    _require_file(path, "vectors")
    index: dict[str, int] = {}
    rows: list[Matrix] = []
    with _opened(path) as lines:
        for word, numbers, line in _entries(lines, path):
            if word in index:
                raise DataError(
                    f"Expected every word once in {path}, found {word[:40]!r} again on line {line}."
                    " Leave one of them out."
                )
            index[word] = len(rows)
            rows.append(numbers)
    if not rows:
        raise DataError(
            f"Expected words and their vectors in {path}, found none. Write one word and its "
            "numbers per line, separated by spaces."
        )
    matrix = np.stack(rows)
    return Vectors(matrix, _Words(index), digest_of([torch.from_numpy(matrix), *index]), "words")


def _opened(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="\n")
    return path.open(encoding="utf-8", newline="\n")


def _entries(lines: TextIO, path: Path) -> Iterator[tuple[str, Matrix, int]]:
    """Yield each word, its vector and its line; check the header if there is one."""
    width = count = None
    found = 0
    for line, parts in _lines(lines, path):
        if line == 1 and len(parts) == 2 and all(part.isdecimal() for part in parts):
            count, width = map(int, parts)
            continue
        width = len(parts) - 1 if width is None else width
        word, numbers = _entry(parts, width, f"line {line} of {path}")
        found += 1
        yield word, numbers, line
    if count is not None and count != found:
        raise DataError(
            f"Expected {count} words in {path}, as its first line says, found {found}. Download "
            "the file again, or correct its first line."
        )


def _lines(lines: TextIO, path: Path) -> Iterator[tuple[int, list[str]]]:
    try:
        for line, text in enumerate(lines, 1):
            if stripped := text.rstrip(" \r\n"):
                yield line, stripped.split(" ")
    except UnicodeDecodeError as error:
        raise DataError(
            f"Expected UTF-8 in {path}, found other bytes ({error.reason}). Give vectors as text, "
            "not in the binary format of word2vec, and convert the file to UTF-8."
        ) from error
    except (OSError, EOFError, zlib.error) as error:  # gzip reports damage by any of these
        raise DataError(
            f"Expected a whole file in {path}, found a damaged one ({error}). Download it again."
        ) from error


def _entry(parts: list[str], width: int, place: str) -> tuple[str, Matrix]:
    more = len(parts) - 1 - width
    if more > 0 and not _is_number(parts[more]):  # a few words of GloVe contain spaces
        parts = [" ".join(parts[: more + 1]), *parts[more + 1 :]]
    if len(parts) - 1 != width or width < 1:
        raise DataError(
            f"Expected a word and {max(width, 1)} numbers on {place}, found {len(parts) - 1} "
            "numbers. Correct the line or leave it out."
        )
    if wrong := [part for part in parts[1:] if not _is_number(part)]:
        raise DataError(
            f"Expected numbers after the word on {place}, found {wrong[0][:40]!r}. Separate them "
            "by single spaces."
        )
    numbers = np.array(parts[1:], dtype=np.float64)
    if not (np.abs(numbers) <= LARGEST).all():
        raise DataError(
            f"Expected finite numbers on {place}, at most {LARGEST:g}, found others. Correct the "
            "line or leave it out."
        )
    return parts[0], numbers.astype(np.float32)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text  # Python would read 1_0 as 10


def _sound(matrix: Tensor, place: object) -> Matrix:
    """Return the matrix in float32; refuse one that is empty, or not finite."""
    held = matrix.detach().cpu().to(torch.float32).contiguous()
    if held.ndim != 2 or 0 in held.shape:
        raise DataError(
            f"Expected vectors in {place}, found shape {tuple(held.shape)}. Give one row per token."
        )
    low, high = held.aminmax()
    if not (float(low) >= -LARGEST and float(high) <= LARGEST):  # NaN is neither
        raise DataError(
            f"Expected finite vectors in {place}, at most {LARGEST:g}, found others. Download them "
            "again."
        )
    return np.asarray(held.numpy())


def _require_file(path: Path, what: str) -> None:
    if not path.is_file():
        raise DataError(
            f"Expected {what} in {path}, found no such file. Give the path of a file that exists."
        )
