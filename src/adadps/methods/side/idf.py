"""Side information for words: how surprising it is that a text has one.

A word of frequency f is in a share s = 1 - exp(-L f) of all texts of L words; its inverse document
frequency is log(1/s). With A = IDF^-power rare words get larger weights, and words that nearly
every text has get next to none, which a power of the frequency cannot do.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adadps.errors import SideInformationError, require_positive
from adadps.methods.side.fixed import Fixed
from adadps.methods.side.fixed import fixed as fixed_source
from adadps.methods.side.frequency import Frequencies

SMALLEST_IDF = 1e-3
"""Of the largest: words that every text has keep a weight above zero."""


def idf(
    frequencies: Frequencies,
    *,
    words_per_text: float,
    power: float = 1.0,
    at: str = "weight",
    axis: int | None = None,
) -> Fixed:
    """A = (IDF / max IDF)^-power along one axis of one parameter.

    ``words_per_text`` is a declared typical length, for frequencies of a word list; those that are
    shares of texts (`corpus_frequencies`) are what is wanted already. Words of frequency zero count
    as the rarest that is known.

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
    told = "" if frequencies.of_texts else f" in texts of {words_per_text:g} words"
    return fixed_source(
        {at: (_relative(frequencies.per_text(words_per_text).values).pow(-power), axis)},
        source=f"{origin.source}; A = IDF^-{power:g}{told}",
        public_because=origin.public_because,
        digest=origin.digest,
        event=frequencies.event,
        rows=frequencies.rows,
    )


def _relative(shares: Tensor) -> Tensor:
    """IDF over the largest IDF."""
    known = shares.clamp_min(float(shares[shares > 0].min()))
    values = -torch.log(known)
    if float(values.max()) <= 0:  # every text has every word: none says more than another
        return torch.ones_like(values)
    return (values / values.max()).clamp_min(SMALLEST_IDF)
