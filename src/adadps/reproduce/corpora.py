"""The text problems: private counts and targets, and everything about them that is public.

Each keeps the words of a public vocabulary. Texts are split into training and test as published, or
by a hash of what belongs together; for tuning, a fifth of the *training* texts takes the place of
the test texts, and those are not read.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer

from adadps import losses
from adadps.data.amazon import amazon_reviews
from adadps.data.debian import TAGS as DEBTAGS
from adadps.data.debian import debian_packages
from adadps.data.imdb import imdb, imdb_unlabelled
from adadps.data.text import TOKEN, public_vocabulary
from adadps.data.titles import TAGS, stackoverflow_titles
from adadps.evaluation import Metric, accuracy, recall_at, top_label_accuracy
from adadps.side import (
    Frequencies,
    corpus_frequencies,
    frequencies_of_private_data,
    given_frequencies,
    word_frequencies,
)

Array = np.ndarray[Any, Any]
VOCABULARY = 10_000
VALIDATION_FOLD, FOLDS = 1, 5
TAGGED_TOKEN = r"(?u)\b\w[\w+#]*"
"""Words where tags such as c, c# and c++ matter."""
SINGLE: dict[str, Metric] = {"accuracy": accuracy}
SEVERAL: dict[str, Metric] = {"accuracy": top_label_accuracy, "recall@5": recall_at(5)}


@dataclass(frozen=True)
class Labelled:
    """Counts of public words, targets, and the texts behind them.

    ``together`` names what must not be split, such as all reviews of one film; ``users`` who wrote
    a text, where that is known.
    """

    counts: sparse.csr_matrix
    targets: Array
    texts: Sequence[str] = field(repr=False)
    together: Sequence[str] = field(repr=False)
    users: Array | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, rows: Array) -> Labelled:
        """Some of the rows, in their order."""
        numbers = (np.flatnonzero(rows) if rows.dtype == bool else rows).tolist()
        return Labelled(
            sparse.csr_matrix(self.counts[numbers]),
            self.targets[numbers],
            [self.texts[number] for number in numbers],
            [self.together[number] for number in numbers],
            None if self.users is None else self.users[numbers],
        )

    def with_words(self, kept: Array) -> Labelled:
        """The same texts with some of the words."""
        return replace(self, counts=sparse.csr_matrix(self.counts[:, kept]))


@dataclass(frozen=True)
class Corpus:
    """One problem. ``frequencies`` are public: the share of texts that have each word.

    ``tfidf`` is the mean TF-IDF of each word over public texts. ``other_frequencies`` come from
    another public source, ``proxy`` are labelled public texts from another distribution. ``length``
    is a typical number of words, declared and not measured.
    """

    name: str
    train: Labelled
    test: Labelled
    classes: int
    length: int
    frequencies: Frequencies
    idf: Array
    tfidf: Array
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    metrics: dict[str, Metric]
    other_frequencies: Frequencies | None = None
    proxy: Labelled | None = None
    private_words: bool = False
    """Was the vocabulary read off the private texts? Then nothing trained on it is private."""

    def for_tuning(self) -> Corpus:
        """The training texts alone: a fifth of them, by what belongs together, is the test."""
        folds = np.array([fold_of(name) for name in self.train.together])
        held_out = folds == VALIDATION_FOLD
        return replace(self, train=self.train.take(~held_out), test=self.train.take(held_out))

    def narrowed(self, words: int) -> Corpus:
        """The same problem with the ``words`` most frequent words alone, by public frequency."""
        kept = np.sort(np.argsort(-self.frequencies.values.numpy(), kind="stable")[:words])
        known = replace(self.frequencies, values=self.frequencies.values[torch.from_numpy(kept)])
        return replace(
            self,
            train=self.train.with_words(kept),
            test=self.test.with_words(kept),
            frequencies=replace(known, rows=None),
            idf=self.idf[kept],
            tfidf=self.tfidf[kept],
            other_frequencies=None,
            proxy=None if self.proxy is None else self.proxy.with_words(kept),
        )


def fold_of(name: str) -> int:
    """One of five parts, the same on every machine.

    >>> fold_of("tt0000001") == fold_of("tt0000001")
    True
    """
    return hashlib.sha256(name.encode()).digest()[1] % FOLDS


@cache
def corpus(name: str) -> Corpus:
    """Load one of `CORPORA` once a process."""
    return CORPORA[name]()


def _imdb() -> Corpus:
    reviews, unlabelled, shop = imdb(), imdb_unlabelled(), amazon_reviews()
    counter = CountVectorizer(token_pattern=TOKEN, max_features=VOCABULARY).fit(unlabelled)
    words = [str(word) for word in counter.get_feature_names_out()]
    public_counts = _counts(counter, unlabelled)
    return Corpus(
        name="imdb",
        train=Labelled(
            _counts(counter, reviews.train.texts),
            np.array(reviews.train.labels),
            reviews.train.texts,
            reviews.train.movies,
        ),
        test=Labelled(
            _counts(counter, reviews.test.texts),
            np.array(reviews.test.labels),
            reviews.test.texts,
            reviews.test.movies,
        ),
        classes=2,
        length=230,
        frequencies=corpus_frequencies(
            public_counts,
            texts=unlabelled,
            source="share of the 50,000 unlabelled IMDB reviews that have the word",
            public_because="published text, none of it among the labelled reviews that are trained",
        ),
        idf=idf_of_corpus(public_counts),
        tfidf=np.asarray(TfidfTransformer().fit_transform(public_counts).mean(axis=0)).ravel(),
        loss=losses.cross_entropy,
        metrics=SINGLE,
        other_frequencies=word_frequencies(words),
        proxy=Labelled(
            _counts(counter, shop.texts), np.array(shop.labels), shop.texts, shop.domains
        ),
    )


def _imdb_private_words() -> Corpus:
    """As the published code has it: words and their frequencies from the private texts."""
    reviews = imdb()
    counter = CountVectorizer(token_pattern=TOKEN, max_features=VOCABULARY).fit(reviews.train.texts)
    train, test = (
        Labelled(_counts(counter, part.texts), np.array(part.labels), part.texts, part.movies)
        for part in (reviews.train, reviews.test)
    )
    return Corpus(
        name="imdb-private-words",
        train=train,
        test=test,
        classes=2,
        length=230,
        frequencies=frequencies_of_private_data(train.counts, source="the private reviews"),
        idf=idf_of_corpus(train.counts),
        tfidf=np.asarray(TfidfTransformer().fit_transform(train.counts).mean(axis=0)).ravel(),
        loss=losses.cross_entropy,
        metrics=SINGLE,
        private_words=True,
    )


def _debian_tags() -> Corpus:
    packages, words = debian_packages(), vocabulary_with(DEBTAGS)
    parts = {
        held_out: [package for package in packages if package.held_out is held_out]
        for held_out in (True, False)
    }
    counter = CountVectorizer(token_pattern=TAGGED_TOKEN, vocabulary=words)

    def held(held_out: bool) -> Labelled:
        chosen = parts[held_out]
        texts = [package.text for package in chosen]
        return Labelled(
            _counts(counter, texts),
            uniform_over([package.tags for package in chosen], DEBTAGS),
            texts,
            [package.source for package in chosen],
            np.array([package.maintainer for package in chosen]),
        )

    return _with_word_list("debian-tags", words, held(False), held(True), len(DEBTAGS), length=60)


def _titles() -> Corpus:
    split, words = stackoverflow_titles(), vocabulary_with(TAGS)
    counter = CountVectorizer(token_pattern=TAGGED_TOKEN, vocabulary=words)
    parts = [
        Labelled(
            _counts(counter, part.titles),
            uniform_over(part.tags, TAGS),
            part.titles,
            [re.sub(r"\W+", "", title.lower()) for title in part.titles],
        )
        for part in (split.train, split.test)
    ]
    return _with_word_list("so-titles", words, parts[0], parts[1], len(TAGS), length=9)


CORPORA: dict[str, Callable[[], Corpus]] = {
    "imdb": _imdb,
    "imdb-private-words": _imdb_private_words,
    "debian-tags": _debian_tags,
    "so-titles": _titles,
}


def _with_word_list(
    name: str, words: list[str], train: Labelled, test: Labelled, classes: int, *, length: int
) -> Corpus:
    """A problem with tags whose only public knowledge of words is a word list."""
    found = word_frequencies(words)
    shares = document_shares(found.values.numpy(), length)
    origin = found.provenance
    return Corpus(
        name=name,
        train=train,
        test=test,
        classes=classes,
        length=length,
        frequencies=given_frequencies(
            shares,
            source=f"{origin.source}, share of texts of {length} words that have the word",
            public_because=origin.public_because,
        ),
        idf=-np.log(shares),
        tfidf=-shares * np.log(shares),
        loss=losses.label_cross_entropy,
        metrics=SEVERAL,
    )


def vocabulary_with(tags: Iterable[str]) -> list[str]:
    """The words that public tag names consist of, and the most frequent words of English.

    >>> "perl" in vocabulary_with(["implemented-in::perl"])
    True
    """
    named = {word for tag in tags for word in re.findall(TAGGED_TOKEN, tag.lower())}
    frequent = [word for word in public_vocabulary(VOCABULARY) if word not in named]
    return sorted(named) + frequent[: VOCABULARY - len(named)]


def uniform_over(labels: Sequence[Sequence[str]], known: Sequence[str]) -> Array:
    """One row an example: 1/m at each of its m labels.

    >>> uniform_over([["b"], ["a", "b"]], ["a", "b"]).tolist()
    [[0.0, 1.0], [0.5, 0.5]]
    """
    places = {label: place for place, label in enumerate(known)}
    targets = np.zeros((len(labels), len(known)), dtype=np.float32)
    for row, mine in enumerate(labels):
        for label in set(mine):
            targets[row, places[label]] = 1 / len(set(mine))
    return targets


def idf_of_corpus(counts: sparse.csr_matrix) -> Array:
    """log((1 + N) / (1 + documents with the word)).

    >>> idf_of_corpus(sparse.csr_matrix(np.array([[1.0, 0.0], [2.0, 0.0]]))).round(3).tolist()
    [0.0, 1.099]
    """
    having = np.asarray((counts > 0).sum(axis=0)).ravel()
    return np.asarray(np.log((1 + counts.shape[0]) / (1 + having)))


def document_shares(frequencies: Array, length: int) -> Array:
    """1 - exp(-L f): how many texts of L words drawn at random have a word of frequency f.

    Words that a list does not know count as the rarest that it does.

    >>> document_shares(np.array([0.05, 0.0]), 20).round(3).tolist()
    [0.632, 0.632]
    """
    known = np.maximum(frequencies, frequencies[frequencies > 0].min())
    return np.asarray(-np.expm1(-length * known))


def _counts(counter: CountVectorizer, texts: Sequence[str]) -> sparse.csr_matrix:
    return sparse.csr_matrix(counter.transform(texts), dtype=np.float32)
