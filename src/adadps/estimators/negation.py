"""Negated words: in "this is not a good film", "good" is another word than in "a good film".

In a vocabulary, the negated form of a word stands as "not " and the word. What opens a negation,
and how far it reaches, is public and the same for every text, so that a row still depends on its
own text alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from adadps.errors import DataError
from adadps.methods.side import Frequencies, given_frequencies, word_frequencies
from adadps.methods.side.vector_sources import WORD

NEGATED = "not "
"""What a negated word begins with; no word of a text has a space in it."""
REACH, MOST_WORDS = 4, 100
"""How many words after the one that opens a negation are negated, and at most can be."""
_ENGLISH = (
    "not no never nor neither none nobody nothing nowhere without hardly cannot ain't aren't can't "
    "couldn't didn't doesn't don't hadn't hasn't haven't isn't mustn't needn't shouldn't wasn't "
    "weren't won't wouldn't"
)
_OPENERS = {"en": tuple(_ENGLISH.split())}
_APOSTROPHE = "['’ʼ＇]"
_BETWEEN = rf"(?:[\s\"“”*-]|{_APOSTROPHE}|\b\w\b)+"
"""What may stand between two words of a negation: other punctuation ends it. Words that consist of
one letter are no words of a vocabulary, and do not count."""
_find_words = re.compile(WORD).findall


@dataclass(frozen=True)
class Negation:
    """The words that open a negation, and how many words after one of them are negated.

    An apostrophe may be straight, curly, or left out. Punctuation ends a negation, and so does a
    second one, which begins anew: nothing is negated twice.

    >>> Negation(("not", "don't")).words("I don’t like it, not at all", {"not like", "not all"})
    ['don', 'not like', 'it', 'not', 'at', 'not all']
    """

    openers: tuple[str, ...]
    reach: int = REACH

    def __post_init__(self) -> None:
        words = isinstance(self.openers, tuple) and all(
            isinstance(word, str) and word.strip() and word == word.lower() for word in self.openers
        )
        reaches = isinstance(self.reach, int) and not isinstance(self.reach, bool)
        if not words or not self.openers or not reaches or not 1 <= self.reach <= MOST_WORDS:
            raise DataError(
                "Expected words in lower case that open a negation and a reach of 1 to 100 "
                f"words, found {self.openers!r:.80} and {self.reach!r:.20}."
            )

    def words(self, text: str, known: Collection[str]) -> list[str]:
        """Return the words of a text, with the negated form of those that have a ``known`` one."""
        text = text.lower()
        found: list[str] = []
        place = 0
        for negation in self._reached.finditer(text):
            begin, end = negation.span(1)
            found += _find_words(text, place, begin)
            for word in _find_words(text, begin, end):
                negated = NEGATED + word
                found.append(negated if negated in known else word)
            place = end
        return found + _find_words(text, place)

    @cached_property
    def _reached(self) -> re.Pattern[str]:
        """Find an opener, and the words that it reaches as group 1."""
        spelled = (re.escape(word).replace("'", f"{_APOSTROPHE}?") for word in self.openers)
        opener = rf"\b(?:{'|'.join(spelled)})\b"
        return re.compile(rf"{opener}((?:{_BETWEEN}(?!{opener})\w\w+){{1,{self.reach}}})")

    def describe(self) -> dict[str, Any]:
        """Return both, ready for JSON."""
        return {"openers": list(self.openers), "reach": self.reach}


def negation_in(language: str) -> Negation | None:
    """Return how a language negates; None where we have no list of its words.

    >>> negation_in("xx") is None
    True
    """
    openers = _OPENERS.get(language)
    return None if openers is None else Negation(openers)


def negation_of(described: Any) -> Negation | None:
    """Return what `Negation.describe` has described; None of nothing."""
    if described is None:
        return None
    openers = described.get("openers") if isinstance(described, Mapping) else None
    if not isinstance(openers, list):
        raise DataError("Expected a list of words that open a negation, found something else.")
    return Negation(tuple(openers), described.get("reach"))


def with_negated(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words, and then the negated form of each.

    >>> with_negated(["good", "bad"])
    ('good', 'bad', 'not good', 'not bad')
    """
    return (*words, *(NEGATED + word for word in words))


def is_negated(word: str) -> bool:
    """Return whether an entry of a vocabulary is the negated form of a word."""
    return word.startswith(NEGATED)


def counted(words: Sequence[str]) -> str:
    """Say how many words a vocabulary has.

    >>> counted(["good"]), counted(["good", "not good"])
    ('1 public words', '2 public words, 1 of them negated')
    """
    negated = sum(map(is_negated, words))
    text = f"{len(words)} public words"
    return f"{text}, {negated} of them negated" if negated else text


def plain_form(word: str) -> str:
    """Return the word that an entry of a vocabulary is the negated form of, or the entry itself."""
    return word.removeprefix(NEGATED)


def share_negated(negation: Negation, language: str) -> float:
    """Return about which share of all words is negated: the reach times how common openers are.

    >>> round(share_negated(Negation(("not", "no")), "en"), 2)
    0.03
    """
    from wordfreq import word_frequency

    openers = (word_frequency(word, language) for word in negation.openers)
    return min(1.0, negation.reach * float(sum(openers)))


def listed_frequencies(
    words: Sequence[str], language: str = "en", negation: Negation | None = None
) -> Frequencies:
    """Look up words in the wordfreq package; a negated one has its share of the plain one's.

    >>> values = listed_frequencies(with_negated(["good"]), negation=negation_in("en")).values
    >>> bool(values[0] > 10 * values[1] > 0)
    True
    """
    if negation is None or not any(map(is_negated, words)):
        return word_frequencies(words, language)
    found = word_frequencies([plain_form(word) for word in words], language)
    share = share_negated(negation, language)
    factors = [share if is_negated(word) else 1.0 for word in words]
    return given_frequencies(
        found.values * torch.tensor(factors, dtype=torch.float64),
        source=f"{found.provenance.source}, with negated words",
        public_because=found.provenance.public_because,
    )
