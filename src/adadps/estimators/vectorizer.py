"""Texts to features without fitting anything."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin

from adadps.data.text import BagOfWords, public_vocabulary
from adadps.errors import DataError
from adadps.methods.side import Frequencies, word_frequencies


class PublicVectorizer(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Texts to log counts of public words, L2-normalised per text; `fit` reads no text.

    The vocabulary consists of the ``words`` most frequent words of a ``language`` in the wordfreq
    package, or is given as ``vocabulary``, which must be public too. Every row depends on its own
    text alone, so that nothing here costs privacy; a fitted ``CountVectorizer`` or
    ``TfidfVectorizer`` puts words and statistics of private texts into the model, outside of
    epsilon.

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
    ) -> None:
        self.words = words
        self.language = language
        self.vocabulary = vocabulary

    def fit(self, X: Any = None, y: Any = None) -> Self:  # noqa: ARG002
        """Check the settings; the texts are not read."""
        self._bag()
        return self

    def transform(self, X: Any) -> sparse.csr_matrix:
        """Return one sparse row per text."""
        if isinstance(X, str) or not hasattr(X, "__iter__") or getattr(X, "ndim", 1) != 1:
            raise DataError(
                "Expected a list or column of texts, found one text, a table or something else. "
                "Give one text per example: a list, a pandas Series, an array of texts."
            )
        return self._bag()(list(X))

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[np.object_]:  # noqa: ARG002
        """Return the words, in the order of the columns."""
        return np.asarray(self._bag().vocabulary, dtype=object)

    def frequencies(self) -> Frequencies:
        """Return the public frequencies of these words, as side information.

        >>> PublicVectorizer(vocabulary=["the", "zebra"]).frequencies().provenance.source
        'wordfreq, language en'
        """
        return word_frequencies(self._bag().vocabulary, self.language)

    def _bag(self) -> BagOfWords:
        if self.vocabulary is None:
            return BagOfWords(_public_words(self.words, self.language), dampened=True)
        given = self.vocabulary
        return BagOfWords(given if isinstance(given, str) else tuple(given), dampened=True)  # type: ignore[arg-type]

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
