"""Words of technical English, and the share of software descriptions with each: public knowledge.

``scripts/build_technical_words.py`` counted them in the descriptions of Debian packages without
tags. Many of these share paragraphs with packages that have tags: the counts are public knowledge
for other texts, not for Debian's packages themselves.
"""

from __future__ import annotations

import csv
import io
import lzma
from functools import cache
from importlib.resources import files

from adadps.errors import DataError

TECHNICAL_TOKEN = r"(?u)\b\w[\w+#]*"
"""The token pattern that keeps names such as c, c# and c++ apart."""

EMBEDDED = files("adadps_experiments.data").joinpath("embedded")


@cache
def technical_shares() -> dict[str, float]:
    """Return the share of descriptions with each of 20,000 words, the most common first.

    >>> shares = technical_shares()
    >>> shares["library"] > shares["kernel"] > 0
    True
    """
    packed = EMBEDDED.joinpath("technical_words.csv.xz").read_bytes()
    rows = csv.DictReader(io.StringIO(lzma.decompress(packed).decode("utf-8"), newline=""))
    counts = {row["word"]: int(row["packages"]) for row in rows}
    texts = counts.pop("")
    return {word: count / texts for word, count in counts.items()}


def technical_vocabulary(size: int) -> tuple[str, ...]:
    """Return the ``size`` most common words.

    >>> technical_vocabulary(3)
    ('the', 'for', 'this')
    """
    known = tuple(technical_shares())
    if not 1 <= size <= len(known):
        raise DataError(
            f"Expected a vocabulary of 1 to {len(known):,} technical words, found {size}. Ask for "
            "another number."
        )
    return known[:size]
