"""The public vocabulary and how often its words occur: from wordfreq, a word list, or public texts.

Words in the names of declared classes belong to the vocabulary, because classes are public.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sklearn.feature_extraction.text import CountVectorizer

from adadps.data.tables import read_chunks
from adadps.data.text import TOKEN, BagOfWords, public_vocabulary
from adadps.errors import DataError, SideInformationError
from adadps.estimators.tables.cells import joined_texts
from adadps.estimators.tables.schema import Schema
from adadps.estimators.tables.word_list import frequencies_from_file
from adadps.methods.side import Frequencies, corpus_frequencies, word_frequencies


@dataclass(frozen=True)
class PublicWords:
    """Words, where they come from, and their frequencies where these are asked for."""

    vocabulary: tuple[str, ...]
    in_words: str
    frequencies: Frequencies | None = None


@dataclass(frozen=True, kw_only=True)
class WordSource:
    """Where public words are to come from. ``side`` is wordfreq or a file of frequencies."""

    words: int = 10_000
    language: str = "en"
    side: str | None = None
    side_source: str | None = None
    side_because: str | None = None
    public: Path | None = None
    public_because: str | None = None

    def read(self, schema: Schema, class_names: Sequence[str], *, informed: bool) -> PublicWords:
        """The words; their frequencies as well if the method is ``informed`` by them."""
        if self.public is not None:
            return self._of_texts(self.public, schema, class_names)
        known = public_vocabulary(self.words, self.language)
        vocabulary = with_class_names(known, class_names)
        told = f"the {self.words} most frequent words of wordfreq, language {self.language}"
        told += _and_class_words(len(vocabulary) - len(known))
        if not informed:
            return PublicWords(vocabulary, told)
        if self.side in (None, "wordfreq"):
            found = word_frequencies(vocabulary, self.language)
        else:
            found = frequencies_from_file(
                Path(self.side or ""),
                vocabulary,
                source=self.side_source,
                public_because=self.side_because,
            )
        return PublicWords(vocabulary, told, found)

    def _of_texts(self, path: Path, schema: Schema, class_names: Sequence[str]) -> PublicWords:
        if not self.public_because or not self.public_because.strip():
            raise SideInformationError(
                f"Expected to hear why {path} is public, found nothing. Add --public-because TEXT: "
                "it stands in the result."
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
        told = f"the {len(known)} most frequent words of {len(joined)} public texts"
        told += _and_class_words(len(vocabulary) - len(known))
        return PublicWords(vocabulary, told, found)


def _and_class_words(count: int) -> str:
    return f", and {count} words of the declared classes" if count else ""


def with_class_names(vocabulary: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """The vocabulary with the words of these names at its end.

    >>> with_class_names(("apple",), ["Apple pie", "tools"])
    ('apple', 'pie', 'tools')
    """
    words = (word for name in names for word in re.findall(TOKEN, name.lower()))
    return tuple(dict.fromkeys((*vocabulary, *(word for word in words if word == word.lower()))))


def _words_in(corpus: Sequence[str], most: int, path: Path) -> tuple[str, ...]:
    """Those that most of the texts have."""
    counter = CountVectorizer(token_pattern=TOKEN, binary=True, max_features=most)
    try:
        counter.fit(corpus)
    except ValueError as error:  # what sklearn says where there is no word at all
        raise DataError(
            f"Expected words in the public texts of {path}, found none. Check its columns."
        ) from error
    return tuple(word for word in counter.get_feature_names_out() if word == word.lower())
