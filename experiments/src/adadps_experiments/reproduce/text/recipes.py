"""From word counts to features, text by text, with public word statistics only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.preprocessing import normalize

from adadps.data.examples import Examples, examples
from adadps_experiments.reproduce.text.corpus import Corpus, LabelledTexts


@dataclass(frozen=True)
class Recipe:
    """How a row of word counts becomes a row of features.

    A count c becomes 1 (``binary``), log(1 + c) (``dampened``) or stays c, and is multiplied by
    IDF^``power``. The row is divided by its L2 norm, or by its sum (``relative``).
    """

    binary: bool = False
    dampened: bool = False
    power: float = 0.0
    relative: bool = False

    def __call__(self, counts: sparse.csr_matrix, idf: np.ndarray[Any, Any]) -> sparse.csr_matrix:
        """Return the features of the rows of ``counts``.

        >>> counts = sparse.csr_matrix(np.array([[3.0, 1.0]]))
        >>> Recipe(relative=True)(counts, np.ones(2)).toarray().tolist()
        [[0.75, 0.25]]
        """
        rows = sparse.csr_matrix(counts, dtype=np.float32, copy=True)
        if self.binary:
            rows.data[:] = 1
        elif self.dampened:
            rows.data = np.log1p(rows.data)
        if self.power:
            rows = sparse.csr_matrix(rows @ sparse.diags(idf**self.power), dtype=np.float32)
        norm = "l1" if self.relative else "l2"
        return sparse.csr_matrix(normalize(rows, norm=norm), dtype=np.float32)

    def __str__(self) -> str:
        counts = "binary" if self.binary else "log counts" if self.dampened else "counts"
        weighted = f" x public IDF^{self.power:g}" if self.power else ""
        return f"{counts}{weighted}, {'L1' if self.relative else 'L2'} per text"


PAPER = Recipe(relative=True)
"""The paper's bag of words: counts divided by the length of the text."""

TF_IDF = Recipe(power=1.0)
"""Counts times public IDF, L2-normalised."""

CANDIDATES = tuple(
    Recipe(binary=binary, dampened=not binary, power=power)
    for binary in (True, False)
    for power in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
)
"""The features among which DP-SGD chooses those that all methods are compared on."""


TYPICAL_TEXTS = 400


@dataclass(frozen=True)
class Features:
    """Applies a recipe to texts of a corpus."""

    corpus: Corpus
    recipe: Recipe

    def rows(self, counts: sparse.csr_matrix) -> sparse.csr_matrix:
        """Return the features of rows of counts."""
        return self.recipe(counts, self.corpus.idf)

    def of(self, labelled: LabelledTexts) -> Examples:
        """Return checked examples that carry the identities of their texts."""
        return examples(self.rows(labelled.counts), labelled.targets, texts=labelled.texts)


def typical_counts(corpus: Corpus) -> sparse.csr_matrix:
    """Draw counts of random texts of the declared length from public word frequencies."""
    shares = np.minimum(corpus.frequencies.values.numpy(), 1 - 1e-9)
    expected = -np.log1p(
        -shares
    )  # 1 - exp(-m) of the texts have a word that occurs m times on average
    rng = np.random.default_rng(0)
    drawn = rng.multinomial(corpus.length, expected / expected.sum(), size=TYPICAL_TEXTS)
    return sparse.csr_matrix(drawn, dtype=np.float32)
