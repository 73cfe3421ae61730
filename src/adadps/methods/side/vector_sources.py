"""Where public vectors of texts come from, if not from wordllama: files, packages, and functions.

Each source ends in a `Found`: a function from texts to rows, its width, what it is, and a digest by
which other vectors are noticed. Nothing is downloaded. Vectors of words are read from text files in
the format of word2vec and GloVe, one word and its numbers per line.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt
import torch

from adadps.data.provenance import digest_of
from adadps.errors import DataError, SideInformationError
from adadps.methods.side.vectors import (
    LARGEST,
    Found,
    Function,
    Matrix,
    Vectors,
    expanded,
    numbers,
    read_token_vectors,
    require_file,
    require_not_zero,
    token_vectors,
    unit,
)

WORD = r"(?u)\b\w\w+\b"
"""The pattern of a word, as everywhere else in the library: single letters are ignored."""
PROBES = (
    "The film was wonderful, and I would watch it again.",
    "A terrible book; I want my money back!",
    "How do I sort a list of numbers in Python?",
    "The patient has a fever and a dry cough.",
    "Prices rose by 3.5 percent in March.",
    "Der Zug nach München fährt um acht Uhr ab.",
    "今日はいい天気ですね。",
    "ok",
)
"""Public texts, by whose vectors a function is recognised."""
PROJECTIONS, DECIMALS = 4, 2
"""So few and coarse numbers per probe are hashed that rounding on another machine changes none."""
TOLERANCE = 1e-3
"""The vector of a text may differ by this much if other texts are embedded with it (rounding)."""


def of_path(path: Path) -> Found:
    """Read a text file of vectors, or a safetensors file or folder with its tokenizer."""
    if path.is_dir():
        held = read_token_vectors(path / "model.safetensors", path / "tokenizer.json")
    elif not path.exists():
        raise SideInformationError(
            f"Expected 'wordllama', 'model2vec:NAME', 'sentence-transformers:NAME', a file of "
            f"vectors or a function, found '{path}', which does not exist. Correct the path."
        )
    elif path.suffix == ".safetensors":
        held = read_token_vectors(path, path.with_name("tokenizer.json"))
    else:
        held = read_word_vectors(path)
    return Found.vectors(held, f"vectors in {path.name}")


def of_model2vec(name: str) -> Found:
    """Take the vectors of a model2vec model that is on this machine."""
    package = _imported("model2vec", "model2vec")
    try:
        folder = name if Path(name).is_dir() else _cached_folder(name)
        model = package.StaticModel.from_pretrained(folder)
        parts = [
            None if part is None else torch.from_numpy(np.ascontiguousarray(part))
            for part in (model.embedding, model.token_mapping, model.weights)
        ]
    except Exception as error:
        raise _not_here("model2vec", name, f"StaticModel.from_pretrained('{name}')") from error
    matrix = expanded(parts[0], parts[1], parts[2], name)  # type: ignore[arg-type]
    words = json.dumps(sorted(model.tokenizer.get_vocab().items()))
    return Found.vectors(token_vectors(matrix, model.tokenizer, name, words), f"model2vec {name}")


def _cached_folder(name: str) -> str:
    hub = _imported("huggingface_hub", "model2vec")  # which needs it
    return str(hub.snapshot_download(name, local_files_only=True))


@dataclass(frozen=True, eq=False)
class _Encoder:
    """The one method of a sentence-transformers model that is needed."""

    model: Any

    def __call__(self, texts: Sequence[str]) -> Any:
        return self.model.encode(list(texts), convert_to_numpy=True, show_progress_bar=False)


def of_sentence_transformers(name: str) -> Found:
    """Take a sentence-transformers model that is on this machine; it cuts long texts."""
    package = _imported("sentence_transformers", "sentence-transformers")
    try:
        model = package.SentenceTransformer(name, local_files_only=True)
    except Exception as error:
        call = f"SentenceTransformer('{name}')"
        raise _not_here("sentence-transformers", name, call) from error
    embed = _Encoder(model)
    weights = sorted(model.state_dict().items())
    words = json.dumps(sorted(model.tokenizer.get_vocab().items()))
    digest = digest_of([*(part for pair in weights for part in pair), words])
    width = probed(embed, f"sentence-transformers:{name}").shape[1]
    return Found(embed, width, f"sentence-transformers {name}: width {width}", digest)


def of_function(function: Function, name: str) -> Found:
    """Take a function, and recognise it by its rounded outputs for a few public texts."""
    rows = probed(function, name)
    directions = np.cos(np.outer(np.arange(1, rows.shape[1] + 1), np.arange(1, PROJECTIONS + 1)))
    coarse = np.round(rows @ directions, DECIMALS) + 0.0  # no negative zeros
    digest = digest_of([f"width {rows.shape[1]}", torch.from_numpy(coarse)])
    what = f"the function {name}, width {rows.shape[1]}"
    return Found(function, rows.shape[1], f"{what} (digest of {len(PROBES)} outputs)", digest)


def probed(function: Function, name: str) -> npt.NDArray[np.float64]:
    """Return the unit vectors of the probes; refuse a function that mixes texts.

    If a text's vector depends on other texts, a change of one person's text changes the features of
    others, and clipping bounds nobody's influence any more.
    """
    together = unit(numbers(function(list(PROBES)), len(PROBES), None, name))
    apart = [function([text]) for text in reversed(PROBES)]
    alone = np.vstack([unit(numbers(rows, 1, together.shape[1], name)) for rows in apart[::-1]])
    if (difference := float(np.abs(together - alone).max())) > TOLERANCE:
        raise SideInformationError(
            f"Expected vectors from {name} that depend on their own text alone, found one that "
            f"changes by {difference:.2g} if other texts are embedded with it. Use a function with "
            "fixed, public vectors; one that is fitted on its input is not private."
        )
    return together


def _imported(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise SideInformationError(
            f"Expected the package {package}, found none ({error}). Install it: "
            f'pip install "adadps[{package}]"'
        ) from error


def _not_here(package: str, name: str, call: str) -> SideInformationError:
    module = package.replace("-", "_")
    return SideInformationError(
        f"Expected a model of {package} in a local folder or in the local cache, found none that "
        f"can be read as '{name}'. adadps downloads nothing: where there is a network, run "
        f'python -c "from {module} import *; {call}" once, or give the path of its folder.'
    )


# --- text files of words ---


def read_word_vectors(path: Path) -> Vectors:
    """Read a text file of words and their vectors (word2vec, GloVe), compressed or not.

    A word of a text is looked up as it is written, and then in lower case.
    """
    require_file(path, "vectors")
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
    require_not_zero(matrix, path)
    return Vectors(matrix, _Words(index), digest_of([torch.from_numpy(matrix), *index]), "words")


def _opened(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="\n")
    return path.open(encoding="utf-8-sig", newline="\n")


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
            f"Expected a word and {width or 'its'} numbers on {place}, found {len(parts) - 1} "
            "numbers. Correct the line or leave it out; single spaces stand between words and "
            "numbers, not tabs."
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
