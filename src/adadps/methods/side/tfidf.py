"""Side information from the mean TF-IDF of each feature over a public corpus.

The paper says both that A is proportional and that it is inversely proportional to TF-IDF, so the
direction is an argument without a default.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.feature_extraction.text import TfidfTransformer

from adadps.data.overlap import public_rows
from adadps.data.sparse_rows import SparseRows
from adadps.errors import SideInformationError, require
from adadps.methods.side.fixed import Fixed, fixed


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
    """A ∝ s, or with ``inverse`` A ∝ 1/s, where s_k is the mean TF-IDF of feature k.

    ``counts`` is the document-term matrix of a *public* corpus; s is divided by its maximum and
    floored, and A is at most 1 in both directions. Without ``axis``, it is the one that fits.
    Private examples that are in the corpus, by their counts or by its ``texts``, are left out.

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
