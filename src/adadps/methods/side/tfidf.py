"""Side information from how informative a word is: IDF, and mean TF-IDF over a public corpus.

A word of frequency f occurs in a share s = 1 - exp(-L f) of all texts of L words; its inverse
document frequency is log(1/s). With A = IDF^-power, rare words get larger weights, and words that
occur in nearly every text get next to none, which a power of the frequency cannot do.

The paper says in one place that A is proportional to TF-IDF and in another that it is inversely
proportional, so the direction of `tfidf` is an argument without a default.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.feature_extraction.text import TfidfTransformer
from torch import Tensor

from adadps.data.overlap import public_rows
from adadps.data.sparse_rows import SparseRows
from adadps.errors import SideInformationError, require, require_positive
from adadps.methods.side.fixed import Fixed, fixed
from adadps.methods.side.fixed import fixed as fixed_source
from adadps.methods.side.frequency import Frequencies

SMALLEST_IDF = 1e-3
"""The least IDF, relative to the largest: words in every text keep a weight above zero."""


def idf(
    frequencies: Frequencies,
    *,
    words_per_text: float,
    power: float = 1.0,
    at: str = "weight",
    axis: int | None = None,
) -> Fixed:
    """Use A = (IDF / max IDF)^-power along one axis of one parameter.

    ``words_per_text`` is a declared typical length, for the frequencies of a word list; shares of
    texts (`corpus_frequencies`) need none. Words of frequency zero count as the rarest known word.

    >>> from adadps.methods.side import given_frequencies
    >>> f = given_frequencies([0.02, 1e-6], source="a word list", public_because="published")
    >>> idf(f, words_per_text=100).named["weight"][0].round(decimals=0)
    tensor([63.,  1.], dtype=torch.float64)
    """
    if not frequencies.of_texts and float(frequencies.values.max()) > 1:
        raise SideInformationError(
            "Expected frequencies that are shares of all words, at most 1, found "
            f"{float(frequencies.values.max()):g}. Divide counts by their total."
        )
    require_positive("words_per_text", words_per_text)
    require_positive("power", power)
    origin = frequencies.provenance
    length = "" if frequencies.of_texts else f" in texts of {words_per_text:g} words"
    return fixed_source(
        {at: (_relative(frequencies.per_text(words_per_text).values).pow(-power), axis)},
        source=f"{origin.source}; A = IDF^-{power:g}{length}",
        public_because=origin.public_because,
        digest=origin.digest,
        event=frequencies.event,
        rows=frequencies.rows,
    )


def _relative(shares: Tensor) -> Tensor:
    """Return IDF relative to the largest IDF."""
    known = shares.clamp_min(float(shares[shares > 0].min()))
    values = -torch.log(known)
    if (
        float(values.max()) <= 0
    ):  # every word is in every text: none is more informative than another
        return torch.ones_like(values)
    return (values / values.max()).clamp_min(SMALLEST_IDF)


def tfidf(
    counts: Any,
    *,
    inverse: bool,
    floor: float,
    source: str,
    public_because: str,
    at: str = "weight",
    axis: int | None = None,
    texts: Sequence[str] | None = None,
) -> Fixed:
    """Use A ∝ s, or with ``inverse`` A ∝ 1/s, where s_k is the mean TF-IDF of feature k.

    ``counts`` is the document-term matrix of a *public* corpus; s is divided by its maximum and
    floored, and A is at most 1 in both directions. By default ``axis`` is the one that fits.
    Private examples that occur in the corpus, by their counts or in its ``texts``, are left out of
    training.

    >>> corpus = [[1, 1], [1, 0], [1, 0]]
    >>> side = tfidf(corpus, inverse=False, floor=0.01, source="toy", public_because="made up")
    >>> bool(side.named["weight"][0][0] > side.named["weight"][0][1])
    True
    """
    require(0 < floor <= 1, "0 < floor <= 1", floor, "A floor keeps unseen features finite.")
    matrix = sparse.csr_matrix(counts, dtype=np.float64)
    finite = matrix.nnz > 0 and bool(np.isfinite(matrix.data).all())
    if not finite or matrix.data.min() < 0 or matrix.data.max() <= 0:
        raise SideInformationError(
            f"Expected finite counts >= 0 of a public corpus, found shape {matrix.shape} with "
            f"{matrix.nnz} entries. Give a document-term matrix with at least one word."
        )
    scores = np.asarray(TfidfTransformer().fit_transform(matrix).mean(axis=0)).ravel()
    relative = torch.from_numpy(scores / scores.max()).clamp_min(floor)
    sense = "inversely proportional" if inverse else "proportional"
    return fixed(
        {at: (floor / relative if inverse else relative, axis)},
        source=f"{source}; A {sense} to mean TF-IDF, floor {floor:g}",
        public_because=public_because,
        rows=public_rows(SparseRows.from_scipy(matrix), texts),
    )
