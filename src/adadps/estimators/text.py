"""Texts to features without looking at private text: public vocabulary, one row at a time.

Everything here is either public (the vocabulary and its frequencies, from wordfreq, a file, or
public texts) or depends on one document alone (its counts and its norm), so that nothing is fitted
on private data. The words in the names of declared classes belong to the vocabulary, because
classes are public.

A negated word is a word of its own: in "this is not a good film", "good" counts as "not good",
which is how it stands in a vocabulary. What opens a negation, and how far it reaches, is public and
the same for every text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.preprocessing import normalize

from adadps.data.tables import joined_texts, read_chunks
from adadps.errors import DataError, SideInformationError
from adadps.estimators.tables.frequency_file import NEGATED, frequencies_from_file
from adadps.estimators.tables.schema import Schema
from adadps.methods.side import (
    Embeddings,
    Frequencies,
    PublicTexts,
    corpus_frequencies,
    given_frequencies,
    public_texts,
    word_frequencies,
)
from adadps.methods.side.vector_sources import WORD

TOKEN = WORD
"""The pattern of a word, in texts and in vocabularies."""


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
_find_words = re.compile(TOKEN).findall


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


@dataclass(frozen=True)
class BagOfWords:
    """Counts of public words in each text, L2-normalised per text.

    ``dampened`` counts are log(1 + count), so that repetitions of a word weigh less. With a
    ``negation``, a word that it reaches counts as the negated form, if the vocabulary has that.

    >>> BagOfWords(("apple", "pear"))(["Apple, apple!", "no fruit"]).toarray().tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    >>> BagOfWords(("good", "not good"), negation=negation_in("en"))(["Not a good one."]).toarray()
    array([[0., 1.]], dtype=float32)
    """

    vocabulary: tuple[str, ...]
    dampened: bool = False
    negation: Negation | None = None

    def __post_init__(self) -> None:
        words = self.vocabulary
        texts = isinstance(words, Sequence) and all(isinstance(word, str) for word in words)
        if not texts or isinstance(words, str) or len(set(words)) != len(words):
            raise DataError(
                "Expected a vocabulary of different words, found one text, a repeated word, or "
                "something else. Give a tuple of words."
            )
        if not self.vocabulary or any(word != word.lower() for word in self.vocabulary):
            raise DataError(
                "Expected a vocabulary of lower-case words, found none or upper case, which would "
                "never match. Convert it to lower case."
            )

    def __call__(self, texts: Sequence[str]) -> sparse.csr_matrix:
        """Return one sparse row per text."""
        if len(texts) == 0 or not all(isinstance(text, str) for text in texts):
            raise DataError(
                "Expected at least one text and nothing else, found none or a missing value. Check "
                "the file, and fill empty texts with ''."
            )
        counter = CountVectorizer(vocabulary=list(self.vocabulary), **self._splitting())
        counts = sparse.csr_matrix(counter.transform(texts), dtype=np.float32)
        if self.dampened:
            counts.data = np.log1p(counts.data)
        return sparse.csr_matrix(normalize(counts, norm="l2"))

    def _splitting(self) -> dict[str, Any]:
        """Return what splits a text into words."""
        negation, known = self.negation, frozenset(filter(is_negated, self.vocabulary))
        if negation is None or not known:
            return {"token_pattern": TOKEN}
        return {"analyzer": lambda text: negation.words(text, known)}


@cache
def public_vocabulary(size: int, language: str = "en") -> tuple[str, ...]:
    """Return the ``size`` most frequent words of a language that the tokeniser can produce.

    >>> public_vocabulary(2)
    ('the', 'to')
    """
    from wordfreq import top_n_list

    if size < 1:
        raise DataError(f"Expected a vocabulary of at least one word, found {size}. Ask for more.")
    word = re.compile(TOKEN)
    try:
        candidates = top_n_list(language, 4 * size + 100)
    except (LookupError, ValueError) as error:  # langcodes refuses what is not a language tag
        raise DataError(
            f"Expected a language that wordfreq knows, found '{language}' ({error}). Use a code "
            "such as en, de or fr."
        ) from error
    words = [candidate for candidate in candidates if word.fullmatch(candidate)]
    if len(words) < size:
        raise DataError(
            f"Expected {size} words of language '{language}', found {len(words)}. Ask for fewer."
        )
    return tuple(words[:size])


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


NAME_SCALE = 8.0
"""How far the weights of embeddings start from zero, towards the names of the classes."""
_WORD_OF_A_NAME = re.compile(r"[^\W\d_]{3,}")


def directions_of(
    names: Sequence[str], embeddings: Embeddings, *, scale: float = NAME_SCALE
) -> npt.NDArray[np.float32]:
    """Return weights that score a text by its similarity to these names, one row per name.

    Names are public. Those without a word, such as numbers, say nothing: their row is zero.
    """
    spelled = [" ".join(re.findall(r"[^\W_]+", name)) for name in names]
    told = np.array([bool(_WORD_OF_A_NAME.search(name)) for name in spelled])
    rows = np.zeros((len(names), embeddings.width), np.float32)
    if told.sum() > 1:
        rows[told] = embeddings([name for name, one in zip(spelled, told, strict=True) if one])
        rows[told] -= rows[told].mean(axis=0)
    return np.asarray(scale * rows, np.float32)


def with_class_names(vocabulary: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Return the vocabulary with the words of these names at its end.

    >>> with_class_names(("apple",), ["Apple pie", "tools"])
    ('apple', 'pie', 'tools')
    """
    words = (word for name in names for word in re.findall(TOKEN, name.lower()))
    return tuple(dict.fromkeys((*vocabulary, *(word for word in words if word == word.lower()))))


@lru_cache(maxsize=4)
def words_in(corpus: PublicTexts, most: int) -> tuple[str, ...]:
    """Return the words that most of the texts have."""
    counter = CountVectorizer(token_pattern=TOKEN, binary=True, max_features=most)
    try:
        counter.fit(corpus.texts)
    except ValueError as error:  # sklearn's answer where there is no word at all
        raise DataError(
            f"Expected words in the {corpus.source}, found none. Check its columns."
        ) from error
    return tuple(word for word in counter.get_feature_names_out() if word == word.lower())
