"""The public vocabulary and its frequencies: from wordfreq, a file, or public texts.

The words in the names of declared classes belong to the vocabulary, because classes are public.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sklearn.feature_extraction.text import CountVectorizer

from adadps.data.tables import Table, read_chunks, read_table
from adadps.data.text import TOKEN, BagOfWords, public_vocabulary
from adadps.errors import DataError, SideInformationError
from adadps.estimators.tables.cells import joined_texts
from adadps.estimators.tables.schema import Schema
from adadps.methods.side import (
    Frequencies,
    corpus_frequencies,
    given_frequencies,
    word_frequencies,
)

MOST_IN_ALL = 1.01
"""Shares of all words add up to 1; those of a published list are rounded."""


@dataclass(frozen=True)
class TableVocabulary:
    """Words, where they come from, and their frequencies if the method reads them."""

    words: tuple[str, ...]
    in_words: str
    frequencies: Frequencies | None = None


@dataclass(frozen=True, kw_only=True)
class VocabularySource:
    """Where the public vocabulary comes from. ``side`` is wordfreq or a file of frequencies."""

    words: int = 10_000
    language: str = "en"
    side: str | None = None
    side_source: str | None = None
    side_because: str | None = None
    public: Path | None = None
    public_because: str | None = None

    def read(
        self, schema: Schema, class_names: Sequence[str], *, informed: bool
    ) -> TableVocabulary:
        """Return the vocabulary, with frequencies if the method is ``informed`` by them."""
        if self.public is not None:
            return self._of_texts(self.public, schema, class_names)
        known = public_vocabulary(self.words, self.language)
        vocabulary = with_class_names(known, class_names)
        origin = f"the {self.words} most frequent words of wordfreq, language {self.language}"
        origin += _and_class_words(len(vocabulary) - len(known))
        if not informed:
            return TableVocabulary(vocabulary, origin)
        if self.side in (None, "wordfreq"):
            found = word_frequencies(vocabulary, self.language)
        else:
            found = frequencies_from_file(
                Path(self.side or ""),
                vocabulary,
                source=self.side_source,
                public_because=self.side_because,
            )
        return TableVocabulary(vocabulary, origin, found)

    def _of_texts(self, path: Path, schema: Schema, class_names: Sequence[str]) -> TableVocabulary:
        if not self.public_because or not self.public_because.strip():
            raise SideInformationError(
                f"Expected a reason why {path} is public, found none. Add --public-because TEXT: "
                "it is stated in the result."
            )
        joined = [text for chunk in read_chunks(path) for text in joined_texts(chunk, schema)]
        known = _words_in(joined, self.words, path)
        vocabulary = with_class_names(known, class_names)
        found = corpus_frequencies(
            BagOfWords(vocabulary, dampened=True)(joined),
            texts=joined,
            source=f"{len(joined)} public texts in {path.name}",
            public_because=self.public_because,
        )
        origin = f"the {len(known)} most frequent words of {len(joined)} public texts"
        origin += _and_class_words(len(vocabulary) - len(known))
        return TableVocabulary(vocabulary, origin, found)


def _and_class_words(count: int) -> str:
    return f", and {count} words of the declared classes" if count else ""


def with_class_names(vocabulary: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Return the vocabulary with the words of these names at its end.

    >>> with_class_names(("apple",), ["Apple pie", "tools"])
    ('apple', 'pie', 'tools')
    """
    words = (word for name in names for word in re.findall(TOKEN, name.lower()))
    return tuple(dict.fromkeys((*vocabulary, *(word for word in words if word == word.lower()))))


def _words_in(corpus: Sequence[str], most: int, path: Path) -> tuple[str, ...]:
    """Return the words that most of the texts have."""
    counter = CountVectorizer(token_pattern=TOKEN, binary=True, max_features=most)
    try:
        counter.fit(corpus)
    except ValueError as error:  # sklearn's answer where there is no word at all
        raise DataError(
            f"Expected words in the public texts of {path}, found none. Check its columns."
        ) from error
    return tuple(word for word in counter.get_feature_names_out() if word == word.lower())


def frequencies_from_file(
    path: Path, words: Sequence[str], *, source: str | None, public_because: str | None
) -> Frequencies:
    """Return a frequency for each of ``words`` from a table with the columns word and frequency.

    A frequency is a share of all words: counts would be read as words that every text has. Words
    that are not in the table get 0, i.e. the floor of A; other words of the table are ignored.
    """
    if not source or not public_because:
        raise SideInformationError(
            f"Expected where {path} comes from and why it is public, found nothing. Add "
            "--side-source TEXT and --side-because TEXT: both are stated in the result."
        )
    table = read_table(path)
    numbers = _frequency_column(table)
    if (total := math.fsum(numbers)) > MOST_IN_ALL:
        raise SideInformationError(
            f"Expected shares of all words in the column frequency of {path}, which add up to at "
            f"most 1, found a sum of {total:.6g}. Divide counts by their total."
        )
    known = dict(zip(table.column("word"), numbers, strict=True))
    if len(known) != len(table):
        raise DataError(
            f"Expected every word once in {path}, found one more than once. Add them up first."
        )
    values = [known.get(word, 0.0) for word in words]
    if not any(values):
        raise SideInformationError(
            f"Expected frequencies above zero of some of the {len(words)} words of the vocabulary "
            f"in {path}, found none. Write words in lower case, or choose another --language."
        )
    return given_frequencies(values, source=source, public_because=public_because)


def _frequency_column(table: Table) -> list[float]:
    numbers = []
    for text, line in zip(table.column("frequency"), table.lines, strict=True):
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not 0 <= number < math.inf:
            raise DataError(
                f"Expected a finite frequency >= 0 on every line of {table.source}, found "
                f"{text[:40]!r} on line {line}. Correct the line or leave it out."
            )
        numbers.append(number)
    return numbers
