"""Packages as examples: what is private, what is held out, and what is declared public."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from adadps.data.debian import SECTIONS, TEST_FOLD, Package, debian_packages
from adadps.data.examples import Examples, examples
from adadps.data.provenance import AssumedPublic
from adadps.estimators.planner.methods import embedding_share
from adadps.estimators.short_texts import short_by_rule
from adadps.estimators.tables.features import text_features
from adadps.estimators.text import (
    BagOfWords,
    Negation,
    listed_frequencies,
    negation_in,
    public_vocabulary,
    with_class_names,
    with_negated,
)
from adadps.methods.side import Embeddings, Frequencies, embeddings

VOCABULARY = 10_000
WORDS = f"the {VOCABULARY} most frequent English words of wordfreq"
VALIDATION_FOLD = 1


@dataclass(frozen=True)
class DemoData:
    """Training and held-out examples, with the public words and their frequencies."""

    train: Examples
    test: Examples
    words: tuple[str, ...]
    frequencies: Frequencies
    embeddings: Embeddings | None = None
    negation: Negation | None = None
    short_below: int | None = None

    @property
    def assumed_public(self) -> AssumedPublic:
        """Return what is declared."""
        more = len(with_class_names(public_vocabulary(VOCABULARY), SECTIONS)) - VOCABULARY
        named = f"{WORDS}, and {more} words of the sections' names; negated words apart"
        return AssumedPublic(
            classes=SECTIONS,
            vocabulary=WORDS if self.negation is None else named,
            others=["that the classes are all sections of the Debian archive"],
        )


def load_data(
    *, dampened: bool = False, tuning: bool = False, defaults_at: float | None = None
) -> DemoData:
    """Return features and sections of the packages that come with adadps, split by source.

    For ``tuning`` the test packages are left out, and another fold takes their place. With
    ``defaults_at`` the features are those of `adadps train` for declared classes at this epsilon:
    log counts, also of the words in the sections' names and negated words, and embeddings.
    """
    packages = [p for p in debian_packages() if not (tuning and p.fold == TEST_FOLD)]
    fold = VALIDATION_FOLD if tuning else TEST_FOLD
    words, negation, vectors, short = public_vocabulary(VOCABULARY), None, None, None
    features: Callable[[list[str]], Any] = BagOfWords(words, dampened)
    if defaults_at is not None:
        count = sum(package.fold != fold for package in packages)
        short = short_by_rule(embedding_share(count, len(SECTIONS), defaults_at))
        negation, vectors = negation_in("en"), embeddings()
        words = with_negated(with_class_names(words, SECTIONS))
        features = text_features(words, vectors, negation=negation, short_below=short).of_texts

    def held(chosen: list[Package]) -> Examples:
        sections = [SECTIONS.index(package.section) for package in chosen]
        return examples(features([package.text for package in chosen]), sections)

    return DemoData(
        train=held([package for package in packages if package.fold != fold]),
        test=held([package for package in packages if package.fold == fold]),
        words=words,
        frequencies=listed_frequencies(words, negation=negation),
        embeddings=vectors,
        negation=negation,
        short_below=short,
    )


def load_default_data(epsilon: float) -> DemoData:
    """Return the same packages with the features of `adadps train` for declared classes."""
    return load_data(defaults_at=epsilon)
