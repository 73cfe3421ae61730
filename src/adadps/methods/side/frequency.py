"""Side information from how often a token or feature occurs.

A_k = max(f_k / max f, floor)^power: rare features, which tend to be informative, get larger steps.
The frequencies are public knowledge, from a word list, a public corpus, or the caller.

A word of frequency f occurs in a share s = 1 - exp(-L f) of all texts of L words; its inverse
document frequency is log(1/s). With A = IDF^-power, rare words get larger weights, and words that
occur in nearly every text get next to none, which a power of the frequency cannot do.

The paper says in one place that A is proportional to TF-IDF and in another that it is inversely
proportional, so the direction of `tfidf` is an argument without a default.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from dp_accounting import DpEvent, NonPrivateDpEvent, NoOpDpEvent
from scipy import sparse
from sklearn.feature_extraction.text import TfidfTransformer
from torch import Tensor

from adadps.data.examples import as_features, as_numbers
from adadps.data.fields import Rows, one_input
from adadps.data.identity import PublicRows, public_rows
from adadps.data.provenance import Provenance, digest_of
from adadps.data.sparse_rows import SparseRows
from adadps.errors import SideInformationError, require, require_positive
from adadps.methods.side.source import NOT_PUBLIC, Fixed, fixed
from adadps.methods.side.source import fixed as fixed_source

LARGEST_SHARE = 1 - 1e-9
"""The largest share of texts: a word that occurs in every text has a finite frequency."""


@dataclass(frozen=True)
class Frequencies:
    """One non-negative value per feature, with its provenance and its price.

    A word list states a word's share of all running words; a corpus states the share of its texts
    that contain it (``of_texts``). In texts of L words, a word of frequency f occurs in a share
    s = 1 - exp(-L f) of them: `per_word` and `per_text` convert between the two.
    """

    values: Tensor
    provenance: Provenance
    event: DpEvent = field(default_factory=NoOpDpEvent)
    rows: PublicRows | None = field(default=None, repr=False, compare=False)
    of_texts: bool = False

    def per_word(self, words_per_text: float) -> Frequencies:
        """Convert to shares of words: f = -log(1 - s) / L for a share s of texts of L words.

        >>> known = corpus_frequencies([[1, 0], [2, 1]], source="toy", public_because="made up")
        >>> known.per_word(100).values
        tensor([0.2072, 0.0069], dtype=torch.float64)
        """
        if not self.of_texts:
            return self
        rates = -torch.log1p(-self.values.double().clamp_max(LARGEST_SHARE)) / words_per_text
        return replace(self, values=rates, of_texts=False)

    def per_text(self, words_per_text: float) -> Frequencies:
        """Convert to shares of texts: s = 1 - exp(-L f) for a frequency f among all words."""
        if self.of_texts:
            return self
        shares = -torch.expm1(-words_per_text * self.values.double())
        return replace(self, values=shares, of_texts=True)


def frequency(
    frequencies: Frequencies,
    *,
    floor: float,
    power: float = 1.0,
    at: str = "weight",
    axis: int | None = None,
) -> Fixed:
    """Use A = max(f / max f, floor)^power along one axis of one parameter.

    By default ``axis`` is the one whose length is the number of frequencies, the last of them if
    there are several. The frequencies are used as they are, whether shares of words or of texts.

    >>> f = given_frequencies([9.0, 0.0], source="a word list", public_because="published")
    >>> frequency(f, floor=0.01, power=0.5).named["weight"][0]
    tensor([1.0000, 0.1000], dtype=torch.float64)
    """
    require_shape(floor, power)
    origin = frequencies.provenance
    return fixed_source(
        {at: (relative_to_largest(frequencies.values, floor, power), axis)},
        source=f"{origin.source}; {formula(floor, power)}",
        public_because=origin.public_because,
        digest=origin.digest,
        event=frequencies.event,
        rows=frequencies.rows,
    )


def require_shape(floor: float, power: float) -> None:
    """Refuse a floor or power with which A could be zero or decrease with the frequency."""
    require(0 < floor <= 1, "0 < floor <= 1", floor, "A floor keeps unseen features finite.")
    require_positive("power", power)


def relative_to_largest(values: Tensor, floor: float, power: float) -> Tensor:
    """Return max(f / max f, floor)^power, or 1 everywhere if noise leaves no f above zero.

    >>> relative_to_largest(torch.tensor([4.0, 1.0, -3.0]), 0.01, 0.5)
    tensor([1.0000, 0.5000, 0.1000])
    >>> relative_to_largest(torch.tensor([-1.0, -2.0]), 0.01, 1.0)
    tensor([1., 1.])
    """
    largest = values.max()
    if largest <= 0:
        return torch.ones_like(values)
    return (values / largest).clamp_min(floor).pow(power)


def formula(floor: float, power: float) -> str:
    """Return the formula of A, for people."""
    return f"A = max(f/f_max, {floor:g})^{power:g}"


def given_frequencies(
    values: Any, *, source: str, public_because: str, of_texts: bool = False
) -> Frequencies:
    """Use frequencies from the caller, with their provenance.

    They are shares of all running words, as in a word list, or with ``of_texts`` the shares of the
    texts that contain a word.
    """
    held = as_numbers(values, "frequencies").double()
    _require_frequencies(held)
    if of_texts and float(held.max()) > 1:
        raise SideInformationError(
            f"Expected shares of texts, at most 1, found {float(held.max()):g}. Divide counts by "
            "the number of texts, or leave `of_texts` out."
        )
    origin = Provenance(source, public_because, digest_of([held]))
    return Frequencies(held, origin, of_texts=of_texts)


def word_frequencies(words: Sequence[str], language: str = "en") -> Frequencies:
    """Look up frequencies in the wordfreq package: public word lists of many languages.

    >>> values = word_frequencies(["the", "zebra"]).values
    >>> bool(values[0] > 100 * values[1])
    True
    """
    from wordfreq import word_frequency

    values = [word_frequency(word, language) for word in words]
    return given_frequencies(
        values,
        source=f"wordfreq, language {language}",
        public_because="published word lists, independent of the training data",
    )


def corpus_frequencies(
    features: Any, *, source: str, public_because: str, texts: Sequence[str] | None = None
) -> Frequencies:
    """Count in which share of the rows of a *public* corpus each feature is not zero.

    These are statistics of the corpus, so a private example that also occurs in it, by its features
    or by its text, is left out of training: give the ``texts`` of the corpus if there are any.

    >>> corpus_frequencies([[1, 0], [2, 1]], source="toy", public_because="made up").values
    tensor([1.0000, 0.5000], dtype=torch.float64)
    """
    held = one_input(as_features(features))
    shares = given_frequencies(
        _shares(held), source=source, public_because=public_because, of_texts=True
    )
    return replace(shares, rows=public_rows(held, texts))


def frequencies_of_private_data(features: Any, *, source: str) -> Frequencies:
    """Count the same shares in *private* rows without noise, so that epsilon is infinite.

    The code published with the paper does this. `noisy_frequencies` pays for its counts instead.

    >>> frequencies_of_private_data([[1, 0], [2, 1]], source="the training set").event
    NonPrivateDpEvent()
    """
    shares = _shares(one_input(as_features(features)))
    _require_frequencies(shares)
    return Frequencies(shares, Provenance(source, NOT_PUBLIC), NonPrivateDpEvent(), of_texts=True)


def _shares(held: Rows) -> Tensor:
    if isinstance(held, SparseRows):
        stored = (held.values != 0).double()
        counts = stored.new_zeros(held.width).index_add_(0, held.columns, stored)
    else:
        counts = (held != 0).double().sum(0)
    return counts / len(held)


def _require_frequencies(held: Tensor) -> None:
    fits = held.ndim == 1 and held.numel() > 0 and bool(torch.isfinite(held).all())
    if not fits or float(held.min()) < 0 or float(held.max()) <= 0:
        raise SideInformationError(
            "Expected a vector of finite, non-negative frequencies with at least one above zero, "
            f"found shape {tuple(held.shape)} with smallest entry "
            f"{float(held.min()) if held.numel() else 'none'}. Give one frequency per feature."
        )


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
