"""Titles of Stack Overflow questions with tags: 30,000 titles, one to five of 100 tags each.

The set has no users. The list of tags is declared here: it is part of the published set and is not
taken from the examples.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from adadps.data.identity import normalised
from adadps.data.tables import read_table
from adadps_experiments.data.finding import require
from adadps_experiments.data.named_sets import TITLES

FOLDS, TEST_FOLD = 5, 0

TAGS = tuple(
    """
    .net ajax algorithm android angularjs apache arrays asp.net asp.net-mvc c c# c++ class
    cocoa-touch codeigniter css csv database date datetime django dom eclipse entity-framework excel
    facebook file forms function generics google-maps hibernate html html5 image ios iphone java
    javascript jquery json jsp laravel linq linux list loops maven mongodb multithreading mysql
    node.js numpy objective-c oop opencv osx pandas parsing performance php pointers python
    python-2.7 python-3.x qt r regex rest ruby ruby-on-rails ruby-on-rails-3 selenium servlets
    session sockets sorting spring spring-mvc sql sql-server string swift swing twitter-bootstrap
    uitableview unit-testing validation vb.net visual-studio visual-studio-2010 wcf web-services
    windows winforms wordpress wpf xaml xcode xml
    """.split()  # noqa: SIM905
)
"""The 100 tags of the set, declared, not taken from the data."""


@dataclass(frozen=True)
class Titles:
    """Titles and the tags of each, in the same order."""

    titles: tuple[str, ...] = field(repr=False)
    tags: tuple[tuple[str, ...], ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.titles)


@dataclass(frozen=True)
class TitlesSplit:
    """Four fifths for training and one fifth for testing."""

    train: Titles
    test: Titles


def stackoverflow_titles() -> TitlesSplit:
    """Load all 30,000 titles, split by content: equal titles are in the same part.

    >>> len(stackoverflow_titles().train)  # doctest: +SKIP
    23866
    """
    table = read_table(require(TITLES, TITLES.files[0]))
    rows = list(zip(table.column("title"), table.column("tags"), strict=True))
    return TitlesSplit(
        train=_titles([row for row in rows if not held_out(row[0])]),
        test=_titles([row for row in rows if held_out(row[0])]),
    )


def held_out(title: str) -> bool:
    """Tell whether a title is in the test part: one in five is, by a hash of its characters.

    >>> held_out("How to sort a list?") == held_out("how to sort a LIST")
    True
    """
    return hashlib.sha256(normalised(title).encode()).digest()[0] % FOLDS == TEST_FOLD


def _titles(rows: list[tuple[str, str]]) -> Titles:
    return Titles(
        titles=tuple(title for title, _ in rows), tags=tuple(tuple(t.split()) for _, t in rows)
    )
