"""Film reviews from IMDB with positive and negative labels (Maas et al. 2011).

The official split has 25,000 training and 25,000 test reviews, balanced; one film and 123 texts are
in both parts, as in the original. 50,000 more reviews have no label: published text of the same
kind about other films, for public word statistics. 374 training texts and 269 test texts are among
them, word for word: give ``texts=`` wherever both are used, and such rows are removed from the
private data.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from adadps.data.tables import Table, read_table
from adadps_experiments.data.finding import require
from adadps_experiments.data.named_sets import IMDB

LINE_BREAK = "<br />"


@dataclass(frozen=True)
class Reviews:
    """Texts, labels (1 is positive) and films, in the same order."""

    texts: tuple[str, ...] = field(repr=False)
    labels: tuple[int, ...] = field(repr=False)
    movies: tuple[str, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class Imdb:
    """Both parts of the official split."""

    train: Reviews
    test: Reviews


def imdb() -> Imdb:
    """Load the 50,000 labelled reviews, with ``<br />`` replaced by a space.

    >>> imdb().train.labels.count(1)  # doctest: +SKIP
    12500
    """
    table = read_table(require(IMDB, IMDB.files[0]))
    return Imdb(train=_part(table, "train"), test=_part(table, "test"))


def imdb_unlabelled() -> tuple[str, ...]:
    """Load the texts of the 50,000 reviews without a label.

    >>> len(imdb_unlabelled())  # doctest: +SKIP
    50000
    """
    return _texts(read_table(require(IMDB, IMDB.files[1])))


def _part(table: Table, split: str) -> Reviews:
    mine = [number for number, name in enumerate(table.column("split")) if name == split]
    labels, movies, texts = table.column("label"), table.column("movie"), _texts(table)
    return Reviews(
        texts=tuple(texts[number] for number in mine),
        labels=tuple(int(labels[number]) for number in mine),
        movies=tuple(movies[number] for number in mine),
    )


def _texts(table: Table) -> tuple[str, ...]:
    return tuple(text.replace(LINE_BREAK, " ") for text in table.column("text"))
