"""Texts to features as a step of a scikit-learn pipeline, which is fitted to nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin

from adadps.data.examples import as_features
from adadps.data.identity import public_rows
from adadps.errors import DataError, SideInformationError
from adadps.estimators.short_texts import SHORT, beside_each_other, checked_short
from adadps.estimators.text import (
    BagOfWords,
    Negation,
    listed_frequencies,
    negation_in,
    public_vocabulary,
    with_negated,
    words_in,
)
from adadps.methods.side import (
    Embeddings,
    Frequencies,
    PublicTexts,
    corpus_frequencies,
    embeddings,
)
from adadps.types import TextFeatures


class PublicVectorizer(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Texts to log counts of public words, to public embeddings, or to both; `fit` reads no text.

    The vocabulary consists of the ``words`` most frequent words of a ``language`` in the wordfreq
    package, or is given as ``vocabulary``, which must be public too. Every row depends on its own
    text alone, so that nothing here costs privacy; a fitted ``CountVectorizer`` or
    ``TfidfVectorizer`` puts words and statistics of private texts into the model, outside of
    epsilon.

    ``features`` is words, embeddings or both (auto and choose are both). Words and embeddings of a
    text have norm 1 each, and the embeddings come last; in a text with fewer than ``short_below``
    different known words, embeddings have more of it (None: no text is short). ``embeddings`` is
    what `adadps.side.embeddings` returns, or a source for it; by default, the vectors of the
    package wordllama.

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
        short_below: int | None = SHORT,
    ) -> None:
        self.words = words
        self.language = language
        self.vocabulary = vocabulary
        self.features = features
        self.embeddings = embeddings
        self.public_texts = public_texts
        self.negation = negation
        self.short_below = short_below

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a vectorizer; what was saved by an earlier version reads texts as it did then."""
        super().__setstate__({"negation": False, "short_below": None, **state})

    def fit(self, X: Any = None, y: Any = None) -> Self:  # noqa: ARG002
        """Check the settings; the texts are not read."""
        self.public_words()
        self.public_vectors()
        checked_short(self.short_below)
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
        embedded = [vectors(texts) for vectors in self.public_vectors()]
        parts = beside_each_other(parts, embedded, checked_short(self.short_below))
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
            public_vocabulary(self.words, self.language)
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
