"""What a text problem consists of: private word counts and targets, and what is public."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from scipy import sparse

from adadps.methods.side import Frequencies
from adadps.training.evaluation import Metric

Array = np.ndarray[Any, Any]
VALIDATION_FOLD, FOLDS = 1, 5


@dataclass(frozen=True)
class LabelledTexts:
    """Counts of public words, targets, and the texts behind them.

    Texts of the same group, such as all reviews of one film, are never split. ``users`` says who
    wrote each text, where that is known.
    """

    counts: sparse.csr_matrix
    targets: Array
    texts: Sequence[str] = field(repr=False)
    groups: Sequence[str] = field(repr=False)
    users: Array | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, rows: Array) -> LabelledTexts:
        """Return the rows of a mask or of indices, in that order."""
        numbers = (np.flatnonzero(rows) if rows.dtype == bool else rows).tolist()
        return LabelledTexts(
            sparse.csr_matrix(self.counts[numbers]),
            self.targets[numbers],
            [self.texts[number] for number in numbers],
            [self.groups[number] for number in numbers],
            None if self.users is None else self.users[numbers],
        )

    def and_also(self, other: LabelledTexts) -> LabelledTexts:
        """Return these rows followed by those of ``other``."""
        users = None
        if self.users is not None and other.users is not None:
            users = np.concatenate([self.users, other.users])
        return LabelledTexts(
            sparse.csr_matrix(sparse.vstack([self.counts, other.counts])),
            np.concatenate([self.targets, other.targets]),
            [*self.texts, *other.texts],
            [*self.groups, *other.groups],
            users,
        )

    def with_words(self, words: int) -> LabelledTexts:
        """Return the same texts with the first ``words`` words of the vocabulary."""
        return replace(self, counts=sparse.csr_matrix(self.counts[:, :words]))


@dataclass(frozen=True)
class Corpus:
    """One text problem, with everything that is public about it.

    ``frequencies`` are public: the share of texts that contain each word. ``tfidf`` is the mean
    TF-IDF of each word over public texts. ``other_frequencies`` come from another public source,
    ``proxy`` loads labelled public texts from another distribution, and ``names`` are the names of
    the tags as texts. ``length`` is a typical number of words per text, declared, not measured.
    """

    name: str
    train: LabelledTexts
    test: LabelledTexts
    classes: int
    length: int
    frequencies: Frequencies
    idf: Array
    tfidf: Array
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    metrics: dict[str, Metric]
    other_frequencies: Frequencies | None = None
    proxy: Callable[[], LabelledTexts] | None = None
    names: LabelledTexts | None = None
    private_words: bool = False
    """Whether the vocabulary comes from the private texts; if so, no run on it is private."""

    def for_tuning(self) -> Corpus:
        """Return the training texts alone, with a fifth of them, by group, as the test texts."""
        folds = np.array([fold_of(name) for name in self.train.groups])
        held_out = folds == VALIDATION_FOLD
        return replace(self, train=self.train.take(~held_out), test=self.train.take(held_out))

    def narrowed(self, words: int) -> Corpus:
        """Return the same problem with the first ``words`` words of the vocabulary."""
        proxy = self.proxy
        return replace(
            self,
            train=self.train.with_words(words),
            test=self.test.with_words(words),
            frequencies=replace(
                self.frequencies, values=self.frequencies.values[:words], rows=None
            ),
            idf=self.idf[:words],
            tfidf=self.tfidf[:words],
            other_frequencies=None,
            proxy=None if proxy is None else cache(lambda: proxy().with_words(words)),
            names=None if self.names is None else self.names.with_words(words),
        )


def fold_of(name: str) -> int:
    """Return one of five folds for a name, the same on every machine.

    >>> fold_of("tt0000001") == fold_of("tt0000001")
    True
    """
    return hashlib.sha256(name.encode()).digest()[1] % FOLDS


def uniform_over(labels: Sequence[Sequence[str]], known: Sequence[str]) -> Array:
    """Return one row per example, with 1/m at each of its m labels.

    >>> uniform_over([["b"], ["a", "b"]], ["a", "b"]).tolist()
    [[0.0, 1.0], [0.5, 0.5]]
    """
    places = {label: place for place, label in enumerate(known)}
    targets = np.zeros((len(labels), len(known)), dtype=np.float32)
    for row, mine in enumerate(labels):
        for label in set(mine):
            targets[row, places[label]] = 1 / len(set(mine))
    return targets
