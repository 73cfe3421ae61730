"""The reviews of IMDB as numbers of words, and vectors of the words from the unlabelled reviews.

Everything that is learned from texts here, the vocabulary and the vectors, comes from the 50,000
unlabelled reviews, which are public. Training reviews that stand among them word for word are left
out. The result is computed once, and kept in the cache.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from adadps.data.identity import normalised
from adadps.estimators.text import TOKEN
from adadps.files import new_file
from adadps.methods.side import embeddings_from_texts
from adadps.methods.side.fitted import FittedVectors
from adadps_experiments.data.finding import cache_folder
from adadps_experiments.data.imdb import imdb, imdb_unlabelled

ROWS_OF_TABLE, WIDTH, LENGTH = 10_000, 64, 200
"""Words with the padding, numbers in the vector of a word, and words of a review."""
PADDING = 0
UNLABELLED_KEPT = 2_000
"""So many unlabelled reviews are enough for means and deviations."""
TERMS = 20_000
VERSION = 1
"""Increase it when what is kept changes, so that older files are not read."""

Numbers = npt.NDArray[np.int16]


@dataclass(frozen=True, eq=False)
class EncodedReviews:
    """Reviews as numbers of words, the labels, and a vector for each word."""

    train: Tensor
    labels: Tensor
    test: Tensor
    test_labels: Tensor
    unlabelled: Tensor
    vectors: Tensor


@cache
def reviews() -> EncodedReviews:
    """Return the reviews, encoded now or before."""
    kept = cache_folder() / "features" / f"imdb-lstm-{VERSION}.npz"
    if not kept.exists():
        _keep(kept)
    held = np.load(kept, allow_pickle=False)
    numbers = {name: torch.from_numpy(held[name].astype(np.int64)) for name in _NUMBERS}
    return EncodedReviews(**numbers, vectors=torch.from_numpy(held["vectors"]))


_NUMBERS = ("train", "labels", "test", "test_labels", "unlabelled")


def _keep(kept: Path) -> None:
    held, public = imdb(), imdb_unlabelled()
    words = commonest_words(public, ROWS_OF_TABLE - 1)
    fitted = embeddings_from_texts(
        public,
        source="the 50,000 unlabelled reviews of IMDB",
        public_because="published without labels, none of them is trained on",
        terms=TERMS,
        width=WIDTH,
    ).embed
    assert isinstance(fitted, FittedVectors)
    published = {normalised(text) for text in public}
    private = np.array([normalised(text) not in published for text in held.train.texts])
    kept.parent.mkdir(parents=True, exist_ok=True)
    with new_file(kept, overwrite=True) as draft, draft.open("wb") as stream:
        np.savez(
            stream,
            train=numbers_of(held.train.texts, words)[private],
            labels=np.array(held.train.labels, np.int16)[private],
            test=numbers_of(held.test.texts, words),
            test_labels=np.array(held.test.labels, np.int16),
            unlabelled=numbers_of(public[:UNLABELLED_KEPT], words),
            vectors=vectors_of(words, fitted),
        )


def commonest_words(texts: Sequence[str], count: int) -> list[str]:
    """Return the words that occur most often, the commonest first.

    >>> commonest_words(["to be or not to be", "to do"], 2)
    ['to', 'be']
    """
    counted = Counter(word for text in texts for word in _words(text))
    return sorted(counted, key=lambda word: (-counted[word], word))[:count]


def numbers_of(texts: Sequence[str], words: Sequence[str], length: int = LENGTH) -> Numbers:
    """Return the last ``length`` known words of each text as numbers from 1, with 0 before them.

    >>> numbers_of(["or not to be", "???"], ["to", "be", "not"], 2).tolist()
    [[1, 2], [0, 0]]
    """
    number = {word: index for index, word in enumerate(words, start=1)}
    rows = np.full((len(texts), length), PADDING, dtype=np.int16)
    for row, text in zip(rows, texts, strict=True):
        found = [number[word] for word in _words(text) if word in number][-length:]
        if found:
            row[-len(found) :] = found
    return rows


def vectors_of(words: Sequence[str], fitted: FittedVectors) -> npt.NDArray[np.float32]:
    """Return the vectors of the words with a root mean square of 1; zeros where there is none."""
    place = {term: index for index, term in enumerate(fitted.terms)}
    found = np.zeros((len(words) + 1, fitted.vectors.shape[1]), np.float32)
    for row, word in zip(found[1:], words, strict=True):
        if word in place:
            row[:] = fitted.vectors[place[word]]
    sizes = np.sqrt(np.square(found).mean(axis=1, keepdims=True))
    return np.asarray(found / np.maximum(sizes, 1e-12), dtype=np.float32)


def _words(text: str) -> list[str]:
    return re.findall(TOKEN, text.lower())
