"""Public statistics of words, and targets with several labels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
from scipy import sparse

from adadps_experiments.reproduce.labelled import Array


def words_of_tags(tags: Iterable[str], pattern: str) -> list[str]:
    """The words that public names of tags consist of.

    >>> words_of_tags(["implemented-in::perl", "c++"], r"\\b\\w[\\w+#]*")
    ['c++', 'implemented', 'in', 'perl']
    """
    return sorted({word for tag in tags for word in re.findall(pattern, tag.lower())})


def uniform_over(labels: Sequence[Sequence[str]], known: Sequence[str]) -> Array:
    """One row an example: 1/m at each of its m labels.

    >>> uniform_over([["b"], ["a", "b"]], ["a", "b"]).tolist()
    [[0.0, 1.0], [0.5, 0.5]]
    """
    places = {label: place for place, label in enumerate(known)}
    targets = np.zeros((len(labels), len(known)), dtype=np.float32)
    for row, mine in enumerate(labels):
        for label in set(mine):
            targets[row, places[label]] = 1 / len(set(mine))
    return targets


def idf_of_corpus(counts: sparse.csr_matrix) -> Array:
    """log((1 + N) / (1 + documents with the word)).

    >>> idf_of_corpus(sparse.csr_matrix(np.array([[1.0, 0.0], [2.0, 0.0]]))).round(3).tolist()
    [0.0, 1.099]
    """
    having = np.asarray((counts > 0).sum(axis=0)).ravel()
    return np.asarray(np.log((1 + counts.shape[0]) / (1 + having)))


def document_shares(frequencies: Array, length: int) -> Array:
    """1 - exp(-L f): how many texts of L words drawn at random have a word of frequency f.

    Words that a list does not know count as the rarest that it does.

    >>> document_shares(np.array([0.05, 0.0]), 20).round(3).tolist()
    [0.632, 0.632]
    """
    known = np.maximum(frequencies, frequencies[frequencies > 0].min())
    return np.asarray(-np.expm1(-length * known))
