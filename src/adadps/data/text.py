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

TOKEN = r"(?u)\b\w\w+\b"
"""The pattern of a word, in texts and in vocabularies."""


@dataclass(frozen=True)
class BagOfWords:
    """Counts of public words in each text, L2-normalised per text.

    ``dampened`` counts are log(1 + count), so that repetitions of a word weigh less.

    >>> BagOfWords(("apple", "pear"))(["Apple, apple!", "no fruit"]).toarray().tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    """

    vocabulary: tuple[str, ...]
    dampened: bool = False

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
        counter = CountVectorizer(vocabulary=list(self.vocabulary), token_pattern=TOKEN)
        counts = sparse.csr_matrix(counter.transform(texts), dtype=np.float32)
        if self.dampened:
            counts.data = np.log1p(counts.data)
        return sparse.csr_matrix(normalize(counts, norm="l2"))


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
