"""Texts to features without looking at private text: public vocabulary, one row at a time.

Everything here is either public (the vocabulary and its frequencies, from wordfreq, a file, or
public texts) or depends on one document alone (its counts and its norm), so that nothing is fitted
on private data. The words in the names of declared classes belong to the vocabulary, because
classes are public.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.preprocessing import normalize

from adadps.data.examples import as_features
from adadps.data.identity import public_rows
from adadps.errors import DataError, SideInformationError
from adadps.estimators.negation import (
    Negation,
    is_negated,
    listed_frequencies,
    negation_in,
    with_negated,
)
from adadps.methods.side import (
    Embeddings,
    Frequencies,
    PublicTexts,
    corpus_frequencies,
    embeddings,
)
from adadps.methods.side.vector_sources import WORD
from adadps.types import TextFeatures

TOKEN = WORD
"""The pattern of a word, in texts and in vocabularies."""


@dataclass(frozen=True)
class BagOfWords:
    """Counts of public words in each text, L2-normalised per text.

    ``dampened`` counts are log(1 + count), so that repetitions of a word weigh less. With a
    ``negation``, a word that it reaches counts as the negated form, if the vocabulary has that.

    >>> BagOfWords(("apple", "pear"))(["Apple, apple!", "no fruit"]).toarray().tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    >>> BagOfWords(("good", "not good"), negation=negation_in("en"))(["Not a good one."]).toarray()
    array([[0., 1.]], dtype=float32)
    """

    vocabulary: tuple[str, ...]
    dampened: bool = False
    negation: Negation | None = None

    def __post_init__(self) -> None:
        words = self.vocabulary
        texts = isinstance(words, Sequence) and all(isinstance(word, str) for word in words)
        if not texts or isinstance(words, str) or len(set(words)) != len(words):
            raise DataError(
                "Expected a vocabulary of different words, found one text, a repeated word, or "
                "something else. Give a tuple of words."
            )
        if not self.vocabulary or any(word != word.lower() for word in self.vocabulary):
            raise DataError(
                "Expected a vocabulary of lower-case words, found none or upper case, which would "
                "never match. Convert it to lower case."
            )

    def __call__(self, texts: Sequence[str]) -> sparse.csr_matrix:
        """Return one sparse row per text."""
        if len(texts) == 0 or not all(isinstance(text, str) for text in texts):
            raise DataError(
                "Expected at least one text and nothing else, found none or a missing value. Check "
                "the file, and fill empty texts with ''."
            )
        counter = CountVectorizer(vocabulary=list(self.vocabulary), **self._splitting())
        counts = sparse.csr_matrix(counter.transform(texts), dtype=np.float32)
        if self.dampened:
            counts.data = np.log1p(counts.data)
        return sparse.csr_matrix(normalize(counts, norm="l2"))

    def _splitting(self) -> dict[str, Any]:
        """Return what splits a text into words."""
        negation, known = self.negation, frozenset(filter(is_negated, self.vocabulary))
        if negation is None or not known:
            return {"token_pattern": TOKEN}
        return {"analyzer": lambda text: negation.words(text, known)}


def public_vocabulary(size: int, language: str = "en") -> tuple[str, ...]:
    """Return the ``size`` most frequent words of a language that the tokeniser can produce.

    >>> public_vocabulary(2)
    ('the', 'to')
    """
    from wordfreq import top_n_list

    if size < 1:
        raise DataError(f"Expected a vocabulary of at least one word, found {size}. Ask for more.")
    word = re.compile(TOKEN)
    try:
        candidates = top_n_list(language, 4 * size + 100)
    except (LookupError, ValueError) as error:  # langcodes refuses what is not a language tag
        raise DataError(
            f"Expected a language that wordfreq knows, found '{language}' ({error}). Use a code "
            "such as en, de or fr."
        ) from error
    words = [candidate for candidate in candidates if word.fullmatch(candidate)]
    if len(words) < size:
        raise DataError(
            f"Expected {size} words of language '{language}', found {len(words)}. Ask for fewer."
        )
    return tuple(words[:size])


class PublicVectorizer(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Texts to log counts of public words, to public embeddings, or to both; `fit` reads no text.

    The vocabulary consists of the ``words`` most frequent words of a ``language`` in the wordfreq
    package, or is given as ``vocabulary``, which must be public too. Every row depends on its own
    text alone, so that nothing here costs privacy; a fitted ``CountVectorizer`` or
    ``TfidfVectorizer`` puts words and statistics of private texts into the model, outside of
    epsilon.

    ``features`` is words, embeddings or both (auto and choose are both). Words and embeddings of a
    text have norm 1 each, and the embeddings come last. ``embeddings`` is what
    `adadps.side.embeddings` returns, or a source for it; by default, the vectors of the package
    wordllama.

    ``public_texts`` are what `adadps.side.public_texts` returns: texts like the private ones that
    anyone may know. The vocabulary and its frequencies then come from them, and beside embeddings
    a text has a third part, by vectors that are fitted to them.

    With ``negation``, each word of the vocabulary also has a negated form, "not good" beside
    "good", where we know how the language negates (English). A ``vocabulary`` that is given stays
    as it is: negated forms in it are then counted.

    As ``side`` of `AdaDPSClassifier`, it gives the public frequencies of its words.

    >>> rows = PublicVectorizer(words=1000).fit_transform(["To be, or not to be", "???"])
    >>> rows.shape, rows.nnz
    ((2, 1000), 4)
    """

    def __init__(
        self,
        words: int = 10_000,
        language: str = "en",
        vocabulary: Sequence[str] | None = None,
        features: str = "words",
        embeddings: Any = None,
        public_texts: PublicTexts | None = None,
        negation: bool = False,
    ) -> None:
        self.words = words
        self.language = language
        self.vocabulary = vocabulary
        self.features = features
        self.embeddings = embeddings
        self.public_texts = public_texts
        self.negation = negation

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a vectorizer; those that were saved before there were negated words have none."""
        super().__setstate__({"negation": False, **state})

    def fit(self, X: Any = None, y: Any = None) -> Self:  # noqa: ARG002
        """Check the settings; the texts are not read."""
        self.public_words()
        self.public_vectors()
        return self

    def transform(self, X: Any) -> sparse.csr_matrix:
        """Return one sparse row per text."""
        if isinstance(X, str) or not hasattr(X, "__iter__") or getattr(X, "ndim", 1) != 1:
            raise DataError(
                "Expected a list or column of texts, found one text, a table or something else. "
                "Give one text per example: a list, a pandas Series, an array of texts."
            )
        texts, parts = list(X), []
        if self._form is not TextFeatures.EMBEDDINGS:
            parts.append(self._bag()(texts))
        parts += [sparse.csr_matrix(vectors(texts)) for vectors in self.public_vectors()]
        return sparse.csr_matrix(sparse.hstack(parts, format="csr"), dtype=np.float32)

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[np.object_]:  # noqa: ARG002
        """Return the words and the numbers of the embedding, in the order of the columns."""
        width = sum(vectors.width for vectors in self.public_vectors())
        numbers = [f"embedding {place}" for place in range(width)]
        return np.asarray([*self.public_words(), *numbers], dtype=object)

    def public_words(self) -> tuple[str, ...]:
        """Return the words that are counted; none where texts become embeddings alone."""
        return () if self._form is TextFeatures.EMBEDDINGS else self._bag().vocabulary

    def public_embeddings(self) -> Embeddings | None:
        """Return the vectors behind the embeddings; None where texts become words alone."""
        if self._form is TextFeatures.WORDS:
            if self.embeddings is not None:
                raise SideInformationError(
                    "Expected no embeddings where texts become words alone, found some. Give "
                    "features='both', or leave `embeddings` out."
                )
            return None
        given = self.embeddings
        if isinstance(given, Embeddings):
            return given
        return embeddings("wordllama" if given is None else given)

    def fitted_vectors(self) -> Embeddings | None:
        """Return the vectors that are fitted to the public texts, if they are used."""
        given = self._given_texts()
        return None if given is None or self._form is TextFeatures.WORDS else given.vectors

    def public_vectors(self) -> tuple[Embeddings, ...]:
        """Return all public vectors of texts, in the order of the columns."""
        both = (self.public_embeddings(), self.fitted_vectors())
        return tuple(vectors for vectors in both if vectors is not None)

    def _given_texts(self) -> PublicTexts | None:
        given = self.public_texts
        if given is not None and not isinstance(given, PublicTexts):
            raise SideInformationError(
                f"Expected public texts with their origin, found {type(given).__name__}. Give "
                "public_texts=adadps.side.public_texts(texts, source=..., public_because=...)."
            )
        if given is not None and self._form is TextFeatures.EMBEDDINGS:
            raise SideInformationError(
                "Expected words beside public texts, found embeddings alone: private texts that "
                "are among the public ones are recognised by their words. Give features='both'."
            )
        return given

    @property
    def _form(self) -> TextFeatures:
        try:
            return TextFeatures(self.features)
        except ValueError:
            raise DataError(
                f"Expected features among {', '.join(TextFeatures)}, found {self.features!r}."
            ) from None

    def frequencies(self) -> Frequencies:
        """Return the public frequencies of these words, as side information.

        >>> PublicVectorizer(vocabulary=["the", "zebra"]).frequencies().provenance.source
        'wordfreq, language en'
        """
        if not self.public_words():
            raise SideInformationError(
                "Expected words that have frequencies, found embeddings alone. Give "
                "features='both', or leave `side` out."
            )
        given = self._given_texts()
        if given is None:
            return listed_frequencies(self.public_words(), self.language, self._negation)
        counted = corpus_frequencies(
            self._bag()(given.texts), source=given.source, public_because=given.public_because
        )
        words = self.transform(given.texts)[:, : len(self.public_words())]
        return replace(counted, rows=public_rows(as_features(words), None))

    @property
    def _negation(self) -> Negation | None:
        return negation_in(self.language) if self.negation else None

    def _bag(self) -> BagOfWords:
        texts, given, negation = self._given_texts(), self.vocabulary, self._negation
        if given is not None:
            words = given if isinstance(given, str) else tuple(given)
            return BagOfWords(words, dampened=True, negation=negation)  # type: ignore[arg-type]
        words = (
            _public_words(self.words, self.language)
            if texts is None
            else words_in(texts, self.words)
        )
        words = words if negation is None else with_negated(words)
        return BagOfWords(words, dampened=True, negation=negation)

    def __sklearn_is_fitted__(self) -> bool:
        """Return True: there is nothing to fit."""
        return True

    def __sklearn_tags__(self) -> Any:
        """Return tags: texts are accepted, and no fit is needed."""
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.two_d_array = False
        tags.input_tags.string = True
        return tags


@cache
def _public_words(size: int, language: str) -> tuple[str, ...]:
    return public_vocabulary(size, language)


NAME_SCALE = 8.0
"""How far the weights of embeddings start from zero, towards the names of the classes."""
_WORD_OF_A_NAME = re.compile(r"[^\W\d_]{3,}")


def directions_of(
    names: Sequence[str], embeddings: Embeddings, *, scale: float = NAME_SCALE
) -> npt.NDArray[np.float32]:
    """Return weights that score a text by its similarity to these names, one row per name.

    Names are public. Those without a word, such as numbers, say nothing: their row is zero.
    """
    spelled = [" ".join(re.findall(r"[^\W_]+", name)) for name in names]
    told = np.array([bool(_WORD_OF_A_NAME.search(name)) for name in spelled])
    rows = np.zeros((len(names), embeddings.width), np.float32)
    if told.sum() > 1:
        rows[told] = embeddings([name for name, one in zip(spelled, told, strict=True) if one])
        rows[told] -= rows[told].mean(axis=0)
    return np.asarray(scale * rows, np.float32)


def with_class_names(vocabulary: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Return the vocabulary with the words of these names at its end.

    >>> with_class_names(("apple",), ["Apple pie", "tools"])
    ('apple', 'pie', 'tools')
    """
    words = (word for name in names for word in re.findall(TOKEN, name.lower()))
    return tuple(dict.fromkeys((*vocabulary, *(word for word in words if word == word.lower()))))


@lru_cache(maxsize=4)
def words_in(corpus: PublicTexts, most: int) -> tuple[str, ...]:
    """Return the words that most of the texts have."""
    counter = CountVectorizer(token_pattern=TOKEN, binary=True, max_features=most)
    try:
        counter.fit(corpus.texts)
    except ValueError as error:  # sklearn's answer where there is no word at all
        raise DataError(
            f"Expected words in the {corpus.source}, found none. Check its columns."
        ) from error
    return tuple(word for word in counter.get_feature_names_out() if word == word.lower())
