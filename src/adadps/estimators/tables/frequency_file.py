"""Word frequencies from a public table of words and their shares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from adadps.data.tables import Table, read_table
from adadps.errors import DataError, SideInformationError
from adadps.methods.side import Frequencies, given_frequencies

NEGATED = "not "
"""What a negated word begins with in a vocabulary; no word of a text has a space in it."""
MOST_IN_ALL = 1.01
"""Shares of all words add up to 1; those of a published list are rounded."""


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
    values = [
        known.get(word, negated * known.get(word.removeprefix(NEGATED), 0.0)) for word in words
    ]
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
