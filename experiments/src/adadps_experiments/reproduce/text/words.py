"""Public vocabularies for problems with tags, and how common each word is.

They come either from descriptions of software, which is what the texts are about, or from general
English, for someone who knows nothing about the texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from adadps.errors import DataError
from adadps.estimators.text import public_vocabulary
from adadps.methods.side import Frequencies, given_frequencies, word_frequencies
from adadps_experiments.data.technical_words import (
    TECHNICAL_TOKEN,
    technical_shares,
    technical_vocabulary,
)
from adadps_experiments.reproduce.text.corpus import Array

TECHNICAL = "word frequencies of technical descriptions"
GENERAL = "word list of general English"
"""The names of the two sources in the tables."""


@dataclass(frozen=True)
class PublicVocabulary:
    """A vocabulary, the words of the tags first, and the share of texts with each word."""

    words: list[str]
    frequencies: Frequencies


def technical_words(tags: Iterable[str], size: int) -> PublicVocabulary:
    """Return words of package descriptions; unknown names count as the rarest word.

    >>> "perl" in technical_words(["implemented-in::perl"], 100).words
    True
    """
    known = technical_shares()
    words = _after_tags(tags, technical_vocabulary(size), size)
    rarest = min(known.values())
    return PublicVocabulary(
        words,
        given_frequencies(
            np.array([known.get(word, rarest) for word in words]),
            source="share of the descriptions of Debian packages without tags that have the word",
            public_because="published text, of packages that are no examples here",
            of_texts=True,
        ),
    )


def general_words(tags: Iterable[str], size: int, length: int) -> PublicVocabulary:
    """Return words of general English, with the share of texts of ``length`` words with each."""
    words = _after_tags(tags, public_vocabulary(size), size)
    listed = word_frequencies(words)
    origin = listed.provenance
    return PublicVocabulary(
        words,
        given_frequencies(
            document_shares(listed.values.numpy(), length),
            source=f"{origin.source}, share of texts of {length} words that have the word",
            public_because=origin.public_because,
            of_texts=True,
        ),
    )


def _after_tags(tags: Iterable[str], common: Iterable[str], size: int) -> list[str]:
    named = words_of_tags(tags, TECHNICAL_TOKEN)
    if size < len(named):
        raise DataError(
            f"Expected room for the {len(named):,} words of the tags, found a vocabulary of "
            f"{size:,} words. Ask for {len(named):,} or more."
        )
    known = set(named)
    return named + [word for word in common if word not in known][: size - len(named)]


def words_of_tags(tags: Iterable[str], pattern: str) -> list[str]:
    """Return the words in the public names of tags.

    >>> words_of_tags(["implemented-in::perl", "c++"], r"\\b\\w[\\w+#]*")
    ['c++', 'implemented', 'in', 'perl']
    """
    return sorted({word for tag in tags for word in re.findall(pattern, tag.lower())})


def idf_of_corpus(counts: sparse.csr_matrix) -> Array:
    """Return log((1 + N) / (1 + documents with the word)) for every word.

    >>> idf_of_corpus(sparse.csr_matrix(np.array([[1.0, 0.0], [2.0, 0.0]]))).round(3).tolist()
    [0.0, 1.099]
    """
    having = np.asarray((counts > 0).sum(axis=0)).ravel()
    return np.asarray(np.log((1 + counts.shape[0]) / (1 + having)))


def document_shares(frequencies: Array, length: int) -> Array:
    """Return 1 - exp(-L f): the share of texts of L random words with a word of frequency f.

    Words of frequency 0 count as the rarest word of the list.

    >>> document_shares(np.array([0.05, 0.0]), 20).round(3).tolist()
    [0.632, 0.632]
    """
    known = np.maximum(frequencies, frequencies[frequencies > 0].min())
    return np.asarray(-np.expm1(-length * known))
