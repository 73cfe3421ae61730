"""Amazon reviews of four kinds of goods with positive and negative labels (Blitzer et al. 2007).

There are 2,000 of each kind, balanced; ratings above three stars are positive, below three
negative. They differ from IMDB in subject and authors: public data from another distribution.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from adadps.data.tables import read_table
from adadps_experiments.data.finding import require
from adadps_experiments.data.named_sets import AMAZON

DOMAINS = ("books", "dvd", "electronics", "kitchen")


@dataclass(frozen=True)
class Amazon:
    """Texts (title and review), labels (1 is positive) and domains, in the same order."""

    texts: tuple[str, ...] = field(repr=False)
    labels: tuple[int, ...] = field(repr=False)
    domains: tuple[str, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.texts)


def amazon_reviews() -> Amazon:
    """Load all 8,000 reviews.

    >>> amazon_reviews().domains.count("books")  # doctest: +SKIP
    2000
    """
    table = read_table(require(AMAZON, AMAZON.files[0]))
    pairs = zip(table.column("title"), table.column("text"), strict=True)
    return Amazon(
        texts=tuple(f"{title}\n{text}" for title, text in pairs),
        labels=tuple(int(label) for label in table.column("label")),
        domains=tuple(table.column("domain")),
    )
