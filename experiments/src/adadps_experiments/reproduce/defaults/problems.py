"""The problems on which default settings are judged, with features as `adadps train` makes them.

Public knowledge is the words of general English and of the class names, and how common each is.
MNIST's pixels are the case without side information.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
from sklearn.preprocessing import normalize

from adadps.data.debian import SECTIONS, Package, debian_packages
from adadps.data.debian import TAGS as DEBTAGS
from adadps.data.examples import Examples, examples
from adadps.data.identity import normalised
from adadps.engine import losses
from adadps.engine.losses import Loss
from adadps.estimators.short_texts import SHORT
from adadps.estimators.tables.features import RowFeatures, text_features
from adadps.estimators.text import (
    TOKEN,
    BagOfWords,
    Negation,
    listed_frequencies,
    negation_in,
    public_vocabulary,
    with_negated,
)
from adadps.methods.side import Frequencies, embeddings
from adadps.training.evaluation import Metric, accuracy, top_label_accuracy
from adadps_experiments.data.amazon import amazon_reviews
from adadps_experiments.data.finding import require
from adadps_experiments.data.imdb import imdb
from adadps_experiments.data.named_sets import MNIST
from adadps_experiments.data.titles import TAGS, stackoverflow_titles
from adadps_experiments.reproduce.text.corpus import VALIDATION_FOLD, Array, fold_of, uniform_over
from adadps_experiments.reproduce.text.words import words_of_tags

VOCABULARY, FEWER_WORDS = 10_000, 2_000
"""The second is for 598 tags, with which it already makes a million weights."""
TEST_FOLD = 0


@dataclass(frozen=True)
class LabelledRows:
    """Rows, targets, and the group of each row; groups are never split."""

    rows: Array | list[str] = field(repr=False)
    targets: Array = field(repr=False)
    groups: Sequence[str] = field(repr=False)

    def take(self, chosen: Array) -> LabelledRows:
        """Return the rows of a mask."""
        places = np.flatnonzero(chosen).tolist()
        rows = self.rows
        return LabelledRows(
            [rows[place] for place in places] if isinstance(rows, list) else rows[places],
            self.targets[places],
            [self.groups[place] for place in places],
        )


@dataclass(frozen=True)
class DefaultsProblem:
    """A problem on texts, whose ``words`` are counted, or on rows of numbers if it has none."""

    train: LabelledRows
    test: LabelledRows
    classes: tuple[str, ...]
    words: tuple[str, ...] = field(repr=False)
    several: bool = False
    negation: Negation | None = None

    @property
    def loss(self) -> Loss:
        """Return cross-entropy, over all labels of an example if it can have several."""
        return losses.label_cross_entropy if self.several else losses.cross_entropy

    @property
    def metric(self) -> Metric:
        """Return the share of examples whose top-scored class is right."""
        return top_label_accuracy if self.several else accuracy

    def for_tuning(self) -> DefaultsProblem:
        """Return the training rows alone, with a fifth of them as the test rows."""
        held_out = np.array([fold_of(name) for name in self.train.groups]) == VALIDATION_FOLD
        return replace(self, train=self.train.take(~held_out), test=self.train.take(held_out))

    def frequencies(self) -> Frequencies | None:
        """Return how common the words are in general English."""
        return listed_frequencies(self.words, negation=self.negation) if self.words else None

    def with_negated_words(self) -> DefaultsProblem:
        """Return the problem with texts read as by default: negated words are words apart."""
        return replace(self, words=with_negated(self.words), negation=negation_in("en"))

    def features(self, short: int | None = SHORT) -> RowFeatures:
        """Return what makes words and embeddings of texts, by default as `adadps train` does."""
        vectors = embeddings()
        return text_features(self.words, vectors, negation=self.negation, short_below=short)

    def mixed(self, part: LabelledRows, short: int | None = SHORT) -> Examples:
        """Return the texts as words and embeddings, by default as `adadps train` makes them."""
        return examples(self.features(short).of_texts(list(part.rows)), part.targets)

    def examples(self, part: LabelledRows) -> Examples:
        """Return the rows as examples of norm 1."""
        if isinstance(part.rows, list):
            bag = BagOfWords(self.words, dampened=True, negation=self.negation)
            return examples(bag(part.rows), part.targets)
        return examples(normalize(part.rows).astype(np.float32), part.targets)


@cache
def load_problem(name: str) -> DefaultsProblem:
    """Load one of `PROBLEMS`, once per process."""
    return PROBLEMS[name]()


def _words(classes: Sequence[str], size: int) -> tuple[str, ...]:
    named = words_of_tags(classes, TOKEN)
    known = set(named)
    return (*named, *[word for word in public_vocabulary(size) if word not in known])[:size]


def _packages(targets: Callable[[list[Package]], Array]) -> tuple[LabelledRows, LabelledRows]:
    def part(held_out: bool) -> LabelledRows:
        packages = [package for package in debian_packages() if package.held_out is held_out]
        texts, sources = [p.text for p in packages], [p.source for p in packages]
        return LabelledRows(texts, targets(packages), sources)

    return part(held_out=False), part(held_out=True)


def _sections() -> DefaultsProblem:
    place = {section: number for number, section in enumerate(SECTIONS)}
    train, test = _packages(lambda packages: np.array([place[p.section] for p in packages]))
    return DefaultsProblem(train, test, tuple(SECTIONS), _words(SECTIONS, VOCABULARY))


def _tags() -> DefaultsProblem:
    train, test = _packages(lambda packages: uniform_over([p.tags for p in packages], DEBTAGS))
    return DefaultsProblem(train, test, tuple(DEBTAGS), _words(DEBTAGS, FEWER_WORDS), several=True)


def _titles() -> DefaultsProblem:
    split = stackoverflow_titles()
    train, test = (
        LabelledRows(
            list(part.titles), uniform_over(part.tags, TAGS), [normalised(t) for t in part.titles]
        )
        for part in (split.train, split.test)
    )
    return DefaultsProblem(train, test, tuple(TAGS), _words(TAGS, VOCABULARY), several=True)


def _amazon() -> DefaultsProblem:
    """Load Amazon, which has no published split: a fifth is held out, by text."""
    shop = amazon_reviews()
    whole = LabelledRows(
        list(shop.texts), np.array(shop.labels), [normalised(text) for text in shop.texts]
    )
    held_out = np.array([fold_of(name) for name in whole.groups]) == TEST_FOLD
    words = _words(("negative", "positive"), VOCABULARY)
    return DefaultsProblem(
        whole.take(~held_out), whole.take(held_out), ("negative", "positive"), words
    )


def _imdb() -> DefaultsProblem:
    reviews = imdb()
    train, test = (
        LabelledRows(list(part.texts), np.array(part.labels), part.movies)
        for part in (reviews.train, reviews.test)
    )
    classes = ("negative", "positive")
    return DefaultsProblem(train, test, classes, _words(classes, VOCABULARY))


def _mnist() -> DefaultsProblem:
    with np.load(require(MNIST, MNIST.files[0]), allow_pickle=False) as held:
        train, test = (
            LabelledRows(
                held[f"x_{part}"].reshape(-1, 784).astype(np.float32),
                held[f"y_{part}"].astype(np.int64),
                [str(number) for number in range(len(held[f"y_{part}"]))],
            )
            for part in ("train", "test")
        )
    return DefaultsProblem(train, test, tuple("0123456789"), ())


PROBLEMS: dict[str, Callable[[], DefaultsProblem]] = {
    "debian-sections": _sections,
    "debian-tags": _tags,
    "so-titles": _titles,
    "amazon": _amazon,
    "imdb": _imdb,
    "mnist": _mnist,
}
NEEDED = {
    "debian-sections": "debian",
    "debian-tags": "debian",
    "so-titles": "stackoverflow-titles",
    "amazon": "amazon",
    "imdb": "imdb",
    "mnist": "mnist",
}
"""The named data set behind each problem."""
