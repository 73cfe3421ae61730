"""Vectors of texts that are fitted to public texts of the same kind as the private ones.

The words and pairs of neighbouring words that most public texts have are counted in every text, as
log(1 + count), and weighted by their inverse document frequency there. The first right singular
vectors V of the public texts' matrix then turn the row x of any text into x V: texts with other
words for the same things become similar, and a private model has few weights to learn.

Only public texts are read here. Private examples that occur among them have to be left out of
training: anyone who fits vectors to a corpus also gives its rows to the run, as
`adadps.side.corpus_frequencies` does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from scipy import sparse
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.preprocessing import normalize
from sklearn.utils.extmath import randomized_svd

from adadps.data.provenance import Provenance, digest_of
from adadps.errors import DataError, SideInformationError
from adadps.files import parse_json
from adadps.methods.side.embeddings import Embeddings
from adadps.methods.side.vector_sources import WORD

FITTED = "fitted"
TERMS, WIDTH = 20_000, 256
LEAST_IN_TEXTS = 5
"""A word or pair that fewer public texts have says too little about others."""
LEAST_TEXTS = 1000
"""Singular vectors of fewer texts are mostly chance."""
_ROUNDS = 4
"""Power iterations of the randomised decomposition: more change nothing that matters."""
_TENSORS = ("weights", "vectors")

Matrix = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class FittedVectors:
    """Words and pairs of words, the weight of each, and its vector; a function of texts."""

    terms: tuple[str, ...]
    weights: Matrix
    vectors: npt.NDArray[np.float16]

    def __call__(self, texts: Sequence[str]) -> Matrix:
        """Return x V for every text; each row is computed from its own text alone."""
        return np.asarray(self.rows(texts) @ self._matrix, dtype=np.float32)

    def rows(self, texts: Sequence[str]) -> sparse.csr_matrix:
        """Return the weighted counts of each text, of norm 1."""
        counts = sparse.csr_matrix(self._counter.transform(texts), dtype=np.float32)
        counts.data = np.log1p(counts.data) * self.weights[counts.indices]
        return sparse.csr_matrix(normalize(counts))

    @cached_property
    def _matrix(self) -> Matrix:
        return self.vectors.astype(np.float32)

    @cached_property
    def _counter(self) -> CountVectorizer:
        return CountVectorizer(
            vocabulary=list(self.terms), token_pattern=WORD, ngram_range=(1, 2), dtype=np.float32
        )

    @property
    def digest(self) -> str:
        """Return a digest of everything: other vectors have another one."""
        parts = (torch.from_numpy(self.weights), torch.from_numpy(self.vectors))
        return digest_of([*parts, *self.terms])


@dataclass(frozen=True, eq=False)
class PublicTexts:
    """Public texts with their origin, and the vectors that are fitted to them, once."""

    texts: tuple[str, ...] = field(repr=False)
    source: str
    public_because: str

    @cached_property
    def vectors(self) -> Embeddings | None:
        """Return vectors that are fitted to the texts; None if there are too few."""
        if len(self.texts) < LEAST_TEXTS:
            return None
        return embeddings_from_texts(
            self.texts, source=self.source, public_because=self.public_because
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> PublicTexts:
        """Return the same texts: nothing about them can change, and they are many."""
        return self


def public_texts(texts: Sequence[str], *, source: str, public_because: str) -> PublicTexts:
    """Declare texts of the same kind as the private ones to be public.

    Vocabulary, word frequencies and, from 1,000 texts on, vectors of texts come from them.
    Private examples that are among them are left out of training.

    >>> public_texts(["good", "bad"], source="a magazine", public_because="printed")
    PublicTexts(source='2 public texts in a magazine', public_because='printed')
    """
    _require_reason(source, public_because)
    held = () if isinstance(texts, str) else tuple(texts)
    if not held or not all(isinstance(text, str) for text in held):
        raise DataError(
            f"Expected a list of public texts in {source}, found none, or something that is no "
            "text. Give one text per document, in a list."
        )
    return PublicTexts(held, f"{len(held)} public texts in {source}", public_because)


def embeddings_from_texts(
    texts: Sequence[str],
    *,
    source: str,
    public_because: str,
    terms: int = TERMS,
    width: int = WIDTH,
) -> Embeddings:
    """Fit vectors to *public* texts: singular vectors of their TF-IDF of words and pairs of words.

    ``source`` says what the texts are, ``public_because`` why anyone may know them; both are stated
    in the result, with a digest of the texts. Vectors that are fitted to private texts are *not*
    public.

    >>> corpus = [f"{fruit} in a {dish}" for fruit in ("apples", "pears") for dish in
    ...           ("pie", "cake", "salad")] * 200
    >>> fitted = embeddings_from_texts(corpus, source="made up", public_because="made up", width=3)
    >>> fitted.width, fitted(["apples", "no such word"]).shape
    (3, (2, 3))
    """
    held = _public(texts, source, public_because)
    names, shares = _commonest(held, terms, source)
    most = min(len(names), len(held)) - 1
    if most < 1:
        raise DataError(
            f"Expected different words in the public texts of {source}, found one. Give real texts."
        )
    idf = -np.log(shares)
    weights = np.maximum(idf / max(float(idf.max()), 1e-12), 1e-3).astype(np.float32)
    counted = FittedVectors(names, weights, np.zeros((len(names), 1), np.float16))
    found = randomized_svd(
        counted.rows(held), min(width, most), n_iter=_ROUNDS, random_state=0, flip_sign=True
    )[2]
    vectors = np.ascontiguousarray(found.T, dtype=np.float16)
    made = f"vectors fitted to {source}: {len(names):,} words and pairs × {vectors.shape[1]}"
    origin = Provenance(made, public_because, digest_of(held))
    return _embeddings(FittedVectors(names, weights, vectors), origin)


def _embeddings(held: FittedVectors, origin: Provenance) -> Embeddings:
    return Embeddings(FITTED, "", held.vectors.shape[1], origin, None, None, held)


def _public(texts: Sequence[str], source: str, public_because: str) -> list[str]:
    _require_reason(source, public_because)
    held = [] if isinstance(texts, str) else list(texts)
    if not all(isinstance(text, str) for text in held) or len(held) < LEAST_TEXTS:
        raise DataError(
            f"Expected at least {LEAST_TEXTS} public texts in {source} to fit vectors to, found "
            f"{len(held)}, or something that is no text. Give more, or words alone."
        )
    return held


def _require_reason(source: str, public_because: str) -> None:
    if not isinstance(public_because, str) or not public_because.strip():
        raise SideInformationError(
            f"Expected a reason why the texts of {source} are public, found none. Give "
            "`public_because`: it is stated in the result."
        )


def _commonest(
    texts: Sequence[str], most: int, source: str
) -> tuple[tuple[str, ...], npt.NDArray[np.float64]]:
    """Return the words and pairs that most texts have, and the share of texts that have them."""
    least = {"min_df": LEAST_IN_TEXTS, "binary": True, "dtype": np.int8}
    try:
        words = CountVectorizer(**least, token_pattern=WORD).fit(texts).vocabulary_
        counter = CountVectorizer(**least, analyzer=_Pairs(frozenset(words)))
        counts = counter.fit_transform(texts)
    except ValueError as error:  # sklearn's answer where no word is left
        raise DataError(
            f"Expected words that at least {LEAST_IN_TEXTS} of the public texts in {source} have, "
            "found none. Check the column of the texts."
        ) from error
    names = counter.get_feature_names_out()
    found = np.bincount(counts.indices, minlength=len(names))
    lower = np.array([name == name.lower() for name in names])
    order = [place for place in np.argsort(-found, kind="stable") if lower[place]][:most]
    return tuple(names[order]), found[order] / len(texts)


@dataclass(frozen=True)
class _Pairs:
    """Splits a text into its known words and the pairs of neighbours that are both known.

    A pair of words is no more frequent than either, so no frequent pair is missed, and rare ones,
    most of all, need no memory.
    """

    known: frozenset[str]

    def __call__(self, text: str) -> list[str]:
        words = _SPLIT(text.lower())
        pairs = (
            f"{left} {right}"
            for left, right in pairwise(words)
            if left in self.known and right in self.known
        )
        return [*(word for word in words if word in self.known), *pairs]


_SPLIT = CountVectorizer(token_pattern=WORD).build_tokenizer()


def save_fitted(fitted: Embeddings, file: Path) -> None:
    """Write vectors that were fitted to public texts, so that a model can predict anywhere."""
    held = _vectors_of(fitted)
    save_file(
        {"weights": held.weights, "vectors": held.vectors},
        file,
        metadata={"terms": json.dumps(held.terms, ensure_ascii=True)},
    )


def describe_fitted(fitted: Embeddings) -> dict[str, Any]:
    """Return what a saved model says about them; `load_fitted` compares the digest."""
    return {**fitted.provenance.describe(), "vectors": _vectors_of(fitted).digest}


def load_fitted(described: Mapping[str, Any], file: Path) -> Embeddings:
    """Read the vectors that were described, and refuse others."""
    try:
        origin = Provenance(described["source"], described["public_because"], described["digest"])
        expected = described["vectors"]
        with safe_open(file, framework="numpy") as stored:
            weights, vectors = (stored.get_tensor(name) for name in _TENSORS)
            terms = parse_json((stored.metadata() or {})["terms"])
        held = FittedVectors(tuple(terms), weights, vectors)
        sound = _fits(held) and held.digest == expected
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise SideInformationError(
            f"Expected the vectors that the model was trained on in {file}, found none that can be "
            f"read ({error}). Restore the folder of the model from a copy."
        ) from error
    if not sound:
        raise SideInformationError(
            f"Expected vectors with SHA-256 {expected} in {file}, found others. Restore the folder "
            "of the model from a copy."
        )
    return _embeddings(held, origin)


def _fits(held: FittedVectors) -> bool:
    """Return whether terms, weights and vectors belong together, before anything is computed."""
    shapes = held.weights.shape == (len(held.terms),) and held.vectors.ndim == 2
    kinds = held.weights.dtype == np.float32 and held.vectors.dtype == np.float16
    return (
        bool(held.terms)
        and all(isinstance(term, str) for term in held.terms)
        and len(set(held.terms)) == len(held.terms)
        and shapes
        and kinds
        and len(held.vectors) == len(held.terms)
        and bool(np.isfinite(held.weights).all() and np.isfinite(held.vectors).all())
    )


def _vectors_of(fitted: Embeddings) -> FittedVectors:
    held = fitted.embed
    assert isinstance(held, FittedVectors)  # made in this module
    return held
