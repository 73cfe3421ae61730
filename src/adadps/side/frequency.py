"""Side information from how often a token or feature occurs.

A_k = max(f_k / max f, floor)^power: rare features, which tend to be the informative ones, get
larger steps. Frequencies are public knowledge: a word list, a public corpus, or given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from adadps.data.examples import as_features, as_numbers
from adadps.data.provenance import Provenance, digest_of
from adadps.data.sparse_rows import SparseRows
from adadps.errors import SideInformationError
from adadps.side.fixed import Fixed
from adadps.side.fixed import fixed as fixed_source
from adadps.types import require, require_positive


@dataclass(frozen=True)
class Frequencies:
    """One non-negative number a feature, with its provenance."""

    values: Tensor
    provenance: Provenance


def frequency(
    frequencies: Frequencies,
    *,
    floor: float,
    power: float = 1.0,
    at: str = "weight",
    axis: int | None = None,
) -> Fixed:
    """A = max(f / max f, floor)^power along one axis of one parameter.

    Without ``axis``, it is the one as long as there are frequencies; the last if several are.

    >>> f = given_frequencies([9.0, 0.0], source="a word list", public_because="published")
    >>> frequency(f, floor=0.01, power=0.5).named["weight"][0]
    tensor([1.0000, 0.1000], dtype=torch.float64)
    """
    require(0 < floor <= 1, "0 < floor <= 1", floor, "A floor keeps unseen features finite.")
    require_positive("power", power)
    values = frequencies.values
    relative = values / values.max()
    origin = frequencies.provenance
    return fixed_source(
        {at: (relative.clamp_min(floor).pow(power), axis)},
        source=f"{origin.source}; A = max(f/f_max, {floor:g})^{power:g}",
        public_because=origin.public_because,
        digest=origin.digest,
    )


def given_frequencies(values: Any, *, source: str, public_because: str) -> Frequencies:
    """Frequencies that the caller has, with their provenance."""
    held = as_numbers(values, "frequencies").double()
    fits = held.ndim == 1 and held.numel() > 0 and bool(torch.isfinite(held).all())
    if not fits or float(held.min()) < 0 or float(held.max()) <= 0:
        raise SideInformationError(
            "Expected a vector of finite, non-negative frequencies with at least one above zero, "
            f"found shape {tuple(held.shape)} with smallest entry "
            f"{float(held.min()) if held.numel() else 'none'}. Give one frequency a feature."
        )
    return Frequencies(held, Provenance(source, public_because, digest_of([held])))


def word_frequencies(words: Sequence[str], language: str = "en") -> Frequencies:
    """Frequencies from the wordfreq package: public word lists of many languages.

    >>> values = word_frequencies(["the", "zebra"]).values
    >>> bool(values[0] > 100 * values[1])
    True
    """
    from wordfreq import word_frequency  # noqa: PLC0415  (loading its tables takes a second)

    values = [word_frequency(word, language) for word in words]
    return given_frequencies(
        values,
        source=f"wordfreq, language {language}",
        public_because="published word lists, independent of the training data",
    )


def corpus_frequencies(features: Any, *, source: str, public_because: str) -> Frequencies:
    """Share of the rows of a *public* corpus in which each feature is not zero."""
    held = as_features(features)
    if isinstance(held, SparseRows):
        stored = (held.values != 0).double()
        counts = stored.new_zeros(held.width).index_add_(0, held.columns, stored)
    else:
        counts = (held != 0).double().sum(0)
    return given_frequencies(counts / len(held), source=source, public_because=public_because)
