"""Text to features without looking at private text: public vocabulary, one row at a time.

Everything here is either public (the vocabulary) or depends on one document alone (its counts and
its norm), so that nothing is fitted on private data.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.preprocessing import normalize

from adadps.errors import DataError

_TOKEN = r"(?u)\b\w\w+\b"


@dataclass(frozen=True)
class BagOfWords:
    """Counts of public words in each text, dampened by log(1 + count), L2-normalised per text.

    >>> BagOfWords(("apple", "pear"))(["Apple, apple!", "no fruit"]).toarray().tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    """

    vocabulary: tuple[str, ...]

    def __call__(self, texts: Sequence[str]) -> sparse.csr_matrix:
        """One sparse row a text."""
        if len(texts) == 0:
            raise DataError("Expected at least one text, found none. Check the file or the filter.")
        counter = CountVectorizer(vocabulary=list(self.vocabulary), token_pattern=_TOKEN)
        counts = sparse.csr_matrix(counter.transform(texts), dtype=np.float32)
        counts.data = np.log1p(counts.data)
        return sparse.csr_matrix(normalize(counts, norm="l2"))


def public_vocabulary(size: int, language: str = "en") -> tuple[str, ...]:
    """The ``size`` most frequent words of a language that the tokeniser can produce.

    >>> public_vocabulary(2)
    ('the', 'to')
    """
    from wordfreq import top_n_list  # noqa: PLC0415  (loading its tables takes a second)

    word = re.compile(_TOKEN)
    candidates = top_n_list(language, 4 * size + 100)
    words = [candidate for candidate in candidates if word.fullmatch(candidate)]
    if len(words) < size:
        raise DataError(
            f"Expected {size} words of language '{language}', found {len(words)}. Ask for fewer."
        )
    return tuple(words[:size])
