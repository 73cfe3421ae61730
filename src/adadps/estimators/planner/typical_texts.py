"""Norms of typical rows under side information, from public quantities alone.

Texts are drawn at random: `WORDS_PER_TEXT` words by their public frequencies, as log(1 + count) and
of norm 1, like the texts that are trained on. Nothing here knows the data.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.preprocessing import normalize

from adadps.methods.side import Frequencies
from adadps.methods.side.source import Fixed

TYPICAL_TEXTS = 400
WORDS_PER_TEXT = 100
"""A declared typical length of texts; inverse document frequencies depend on it, too."""
Numbers = npt.NDArray[np.float64]


def typical_norm(
    side: Fixed, width: int, frequencies: Frequencies | None = None, *, at: str = "weight"
) -> float:
    """Return the median of ‖x / A‖ over typical texts x, which have norm 1.

    It is 1 where A is not one value for each of ``width`` features: nothing is known then.

    >>> from adadps.methods.side import fixed, given_frequencies
    >>> known = given_frequencies([0.9, 0.1], source="a list", public_because="published")
    >>> side = fixed({"weight": ([1.0, 0.1], 1)}, source="a book", public_because="published")
    >>> round(typical_norm(side, 2)), round(typical_norm(side, 2, known))
    (7, 5)
    """
    a = along_features(side, at)
    if a is None or len(a) != width:
        return 1.0
    return median_norm(typical_texts(width, frequencies), a)


def along_features(side: Fixed, at: str = "weight") -> Numbers | None:
    """Return A of one parameter where it is one value per feature, else None."""
    entry = side.named.get(at)
    return np.asarray(entry[0].double().numpy()) if isinstance(entry, tuple) else None


def median_norm(rows: sparse.csr_matrix, a: Numbers | None = None) -> float:
    """Return the median of ‖x‖, or of ‖x / A‖.

    >>> median_norm(sparse.csr_matrix([[3.0, 4.0]]), np.array([1.0, 0.5]))
    8.54400374531753
    """
    squares = rows.multiply(rows)
    totals = squares.sum(axis=1) if a is None else squares @ a**-2.0
    return float(np.sqrt(np.median(np.asarray(totals).ravel())))


def typical_texts(
    words: int, frequencies: Frequencies | None = None, rng: np.random.Generator | None = None
) -> sparse.csr_matrix:
    """Return rows over ``words`` words, which are equally likely without ``frequencies``.

    >>> typical_texts(50).shape
    (400, 50)
    """
    rng = np.random.default_rng(0) if rng is None else rng
    if frequencies is None:
        counts = _uniform_counts(words, rng)
    else:
        counts = _counts_by(frequencies.per_word(WORDS_PER_TEXT).values.double().numpy(), rng)
    return sparse.csr_matrix(normalize(counts.log1p()))


def _counts_by(frequencies: Numbers, rng: np.random.Generator) -> sparse.csr_matrix:
    """Draw counts of words; a frequency of zero counts as the smallest known one."""
    shares = np.maximum(frequencies, frequencies[frequencies > 0].min())
    shares = shares / shares.sum()
    texts = (rng.multinomial(WORDS_PER_TEXT, shares) for _ in range(TYPICAL_TEXTS))
    return sparse.csr_matrix(sparse.vstack([sparse.csr_matrix(text) for text in texts]))


def _uniform_counts(words: int, rng: np.random.Generator) -> sparse.csr_matrix:
    drawn = rng.integers(words, size=(TYPICAL_TEXTS, WORDS_PER_TEXT))
    rows = np.repeat(np.arange(TYPICAL_TEXTS), WORDS_PER_TEXT)
    held = (np.ones(drawn.size, np.int64), (rows, drawn.ravel()))
    return sparse.csr_matrix(held, shape=(TYPICAL_TEXTS, words))
