"""The public vocabulary of a table with texts: its words, their origin, and their frequencies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from adadps.data.tables import Table, joined_texts, read_chunks, read_table
from adadps.errors import DataError, SideInformationError
from adadps.estimators.negation import (
    Negation,
    listed_frequencies,
    negation_in,
    plain_form,
    share_negated,
    with_negated,
)
from adadps.estimators.tables.schema import Schema
from adadps.estimators.text import BagOfWords, public_vocabulary, with_class_names, words_in
from adadps.methods.side import (
    Embeddings,
    Frequencies,
    corpus_frequencies,
    given_frequencies,
    public_texts,
)

MOST_IN_ALL = 1.01
"""Shares of all words add up to 1; those of a published list are rounded."""


@dataclass(frozen=True)
class TableVocabulary:
    """Words, where they come from, and their frequencies if the method reads them.

    ``negation`` tells which words of a text are negated, if some of these are. ``fitted`` are
    vectors of texts that were fitted to the same public texts.
    """

    words: tuple[str, ...]
    in_words: str
    frequencies: Frequencies | None = None
    fitted: Embeddings | None = None
    negation: Negation | None = None


@dataclass(frozen=True, kw_only=True)
class VocabularySource:
    """Where the public vocabulary comes from. ``side`` is wordfreq or a file of frequencies.

    With ``negation``, each word has a negated form, where we know how the language negates.
    """

    words: int = 10_000
    language: str = "en"
    negation: bool = True
    side: str | None = None
    side_source: str | None = None
    side_because: str | None = None
    public: Path | None = None
    public_because: str | None = None
    fits_vectors: bool = True

    def read(
        self, schema: Schema, class_names: Sequence[str], *, informed: bool
    ) -> TableVocabulary:
        """Return the vocabulary, with frequencies if the method is ``informed`` by them."""
        if self.public is not None:
            return self._of_texts(self.public, schema, class_names)
        known = public_vocabulary(self.words, self.language)
        origin = f"the {self.words} most frequent words of wordfreq, language {self.language}"
        vocabulary, origin, negation = self._completed(known, class_names, origin)
        if not informed:
            return TableVocabulary(vocabulary, origin, negation=negation)
        if self.side in (None, "wordfreq"):
            found = listed_frequencies(vocabulary, self.language, negation)
        else:
            found = frequencies_from_file(
                Path(self.side or ""),
                vocabulary,
                source=self.side_source,
                public_because=self.side_because,
                negated=share_negated(negation, self.language) if negation else 0.0,
            )
        return TableVocabulary(vocabulary, origin, found, negation=negation)

    def _completed(
        self, known: tuple[str, ...], class_names: Sequence[str], origin: str
    ) -> tuple[tuple[str, ...], str, Negation | None]:
        """Return the whole vocabulary, where it comes from, and how texts negate its words."""
        words = with_class_names(known, class_names)
        if len(words) > len(known):
            origin += f", and {len(words) - len(known)} words of the declared classes"
        negation = negation_in(self.language) if self.negation else None
        if negation is None:
            return words, origin, None
        return with_negated(words), f"{origin}; negated words apart", negation

    def _of_texts(self, path: Path, schema: Schema, class_names: Sequence[str]) -> TableVocabulary:
        if not self.public_because or not self.public_because.strip():
            raise SideInformationError(
                f"Expected a reason why {path} is public, found none. Add --public-because TEXT: "
                "it is stated in the result."
            )
        joined = [text for chunk in read_chunks(path) for text in joined_texts(chunk, schema.texts)]
        corpus = public_texts(joined, source=path.name, public_because=self.public_because)
        known = words_in(corpus, self.words)
        origin = f"the {len(known)} most frequent words of {len(joined)} public texts"
        vocabulary, origin, negation = self._completed(known, class_names, origin)
        found = corpus_frequencies(
            BagOfWords(vocabulary, dampened=True, negation=negation)(joined),
            texts=joined,
            source=corpus.source,
            public_because=self.public_because,
        )
        fitted = corpus.vectors if self.fits_vectors else None
        return TableVocabulary(vocabulary, origin, found, fitted, negation)


def frequencies_from_file(
    path: Path,
    words: Sequence[str],
    *,
    source: str | None,
    public_because: str | None,
    negated: float = 0.0,
) -> Frequencies:
    """Return a frequency for each of ``words`` from a table with the columns word and frequency.

    A frequency is a share of all words: counts would be read as words that every text has. Words
    that are not in the table get 0, i.e. the floor of A; other words of the table are ignored. A
    negated word that it does not list has the share ``negated`` of its plain form's frequency.
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
    values = [known.get(word, negated * known.get(plain_form(word), 0.0)) for word in words]
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
