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
    """Texts to log counts of public words, L2-normalised per text; `fit` looks at nothing.

    The vocabulary is the ``words`` most frequent words of a ``language`` in the wordfreq package,
    or the given ``vocabulary``, which must be public too. Every row depends on its own text alone,
    so that nothing here costs privacy; a fitted ``CountVectorizer`` or ``TfidfVectorizer`` puts
    words and statistics of private texts into the model, outside of epsilon.

    Given as ``side`` to `AdaDPSClassifier`, it tells how frequent its words are in public.

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
        """One sparse row a text."""
        if isinstance(X, str) or not hasattr(X, "__iter__") or getattr(X, "ndim", 1) != 1:
            raise DataError(
                "Expected a list or column of texts, found one text, a table or something else. "
                "Give one text an example: a list, a pandas Series, an array of texts."
            )
        return self._bag()(list(X))

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[np.object_]:  # noqa: ARG002
        """The words, in the order of the columns."""
        return np.asarray(self._bag().vocabulary, dtype=object)

    def frequencies(self) -> Frequencies:
        """How frequent these words are in public: side information.

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
        """There is nothing to fit."""
        return True

    def __sklearn_tags__(self) -> Any:
        """Takes texts, needs no fit."""
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.two_d_array = False
        tags.input_tags.string = True
        return tags


@cache
def _public_words(size: int, language: str) -> tuple[str, ...]:
    return public_vocabulary(size, language)
