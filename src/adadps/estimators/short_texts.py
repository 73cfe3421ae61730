"""Short texts: few words tell little, so that the embedding has more of such a text.

The rule for the share of embeddings (`adadps.estimators.planner.methods.embedding_share`) looks at
the number of examples, of classes, and at epsilon. This one looks at a text: the odds of its words
are m/50 of those in long texts, if it has m < 50 different known words. It enters as the norm that
words and embedding of a row have before features are weighted and rows are normalised. So it
depends on the row alone, costs no privacy, and `predict` needs to know no share.

Where the rule gives embeddings so much that a text of ten words would be almost nothing else, all
texts have the share by rule (`short_by_rule`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from adadps.errors import DataError
from adadps.estimators.planner.methods import LARGEST_SHARE

SHORT = 50
"""A text with fewer different known words than this is short."""
FEW_WORDS, TEN_WORDS = 5, 10
LEAST_SHARE = 0.05
"""A smaller share changes nothing but the time and memory that embeddings take."""


def share_in_short_text(share: float, known: int = FEW_WORDS, short: int = SHORT) -> float:
    """Return the share of the embedding in a text with this many ``known`` words.

    ``share`` is the one in long texts.

    >>> [round(share_in_short_text(0.05, known), 2) for known in (5, 25, 50, 500)]
    [0.34, 0.1, 0.05, 0.05]
    """
    odds = share * max(1.0, short / known)
    return odds / (odds + 1 - share)


def short_by_rule(share: float) -> int | None:
    """Return below how many known words texts are short; None if ``share`` is large for all texts.

    >>> short_by_rule(0.05), short_by_rule(0.5)
    (50, None)
    """
    return SHORT if share_in_short_text(share, TEN_WORDS) <= LARGEST_SHARE else None


def worth_embedding(share: float, *, texts_alone: bool = True) -> bool:
    """Return whether embeddings are worth their time: a text of five words would lean on them.

    Where rows have more than texts, no text is short.

    >>> worth_embedding(0.01), worth_embedding(0.01, texts_alone=False), worth_embedding(0.001)
    (True, False, False)
    """
    short = texts_alone and short_by_rule(share) is not None
    return (share_in_short_text(share) if short else share) >= LEAST_SHARE


def beside_each_other(
    words: Sequence[sparse.csr_matrix],
    vectors: Sequence[npt.NDArray[np.float32]],
    short: int | None = SHORT,
) -> list[sparse.csr_matrix]:
    """Return the words and the vectors of texts, with less of the words where a row is short.

    The words of a row with m < ``short`` different known words, in all its texts together, get
    m/``short`` times their squared norm relative to its vectors, and the row as a whole keeps the
    norm it had. With None, nothing is changed.

    >>> words = sparse.csr_matrix([[0.5, 0.5, 0.5, 0.5], [1, 0, 0, 0]])
    >>> parts = beside_each_other([words], [np.ones((2, 1))], short=4)
    >>> np.hstack([part.toarray() for part in parts]).round(2) ** 2
    array([[0.25  , 0.25  , 0.25  , 0.25  , 1.    ],
           [0.3969, 0.    , 0.    , 0.    , 1.5876]])
    """
    both = [*words, *(sparse.csr_matrix(held) for held in vectors)]
    if short is None or not words or not vectors:
        return both
    known = sum(np.diff(held.indptr) for held in words)
    full = np.minimum(1.0, known / short)
    forms = len(vectors) / len(words)
    of_vectors = (1 + forms) / (full + forms)
    shares = [full * of_vectors] * len(words) + [of_vectors] * len(vectors)
    for held, share in zip(both, shares, strict=True):
        held.data = held.data * np.repeat(np.sqrt(share), np.diff(held.indptr)).astype(np.float32)
    return both


def checked_short(short: Any) -> int | None:
    """Return a number of words below which texts are short, or None, and refuse all else."""
    if short is None or (isinstance(short, int) and not isinstance(short, bool) and short > 0):
        return short
    raise DataError(
        "Expected a number of known words, at least 1, below which texts are short, or None, found "
        f"{short!r:.80}."
    )
