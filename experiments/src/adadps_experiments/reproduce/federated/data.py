"""Who takes part in the federated comparison, and what each of them holds.

Debian's packages by the person who looks after them; where its files are, Stack Overflow's posts by
user. Each user's texts are split into training and test by what belongs together (packages of one
source, posts of the same words), and the training texts once more for tuning: the test texts are
not read then. Everybody keeps something to train on.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy import sparse

from adadps.data.examples import Examples, examples
from adadps.estimators.planner.typical_texts import median_norm
from adadps_experiments.reproduce.text.corpora import corpus
from adadps_experiments.reproduce.text.corpus import FOLDS, Array, Corpus, LabelledTexts
from adadps_experiments.reproduce.text.recipes import PAPER, Features, Recipe, typical_counts

DATASET, PUBLISHED_DATASET = "debian-tags", "stackoverflow"
"""Debian's packages come with adadps; the paper's posts are used where their files are."""
FEATURES = {"paper": PAPER, "best for DP-SGD": Recipe(dampened=True, power=1.0)}
"""The second is what DP-SGD was best with on these texts (`recorded/text.json`)."""


@dataclass(frozen=True)
class FederatedTexts:
    """Users with their rows, held-out rows of the same users, and public scales."""

    corpus: Corpus
    train: Examples
    test: Examples
    users: int
    typical: sparse.csr_matrix

    def norm(self, a: Array | None = None) -> float:
        """Of a typical row, or of x / A, over rows that are made of public frequencies."""
        return median_norm(self.typical, a)


@lru_cache(maxsize=4)
def federation(dataset: str, most_users: int | None, features: str, tuning: bool) -> FederatedTexts:
    """The same users whether settings are tuned or not: those with the most texts."""
    whole = _by_user(dataset)
    everything = _held(whole, "test")
    chosen = _with_most(_users(everything.train), most_users)
    held = _held(everything, "validation") if tuning else everything
    train = held.train.take(np.isin(_users(held.train), chosen))
    test = held.test.take(np.isin(_users(held.test), chosen))
    made = Features(held, FEATURES[features])
    return FederatedTexts(
        corpus=held,
        train=examples(made.rows(train.counts), train.targets, users=train.users),
        test=examples(made.rows(test.counts), test.targets),
        users=len(chosen),
        typical=made.rows(typical_counts(held)),
    )


def held_out_within(users: Array, together: Sequence[str], *, salt: str) -> Array:
    """Which texts are held out: of each user's k things, (k + 2) // 5 by hash, hence never all.

    >>> users, sources = np.array([7] * 5 + [8]), ["a", "a", "b", "c", "d", "e"]
    >>> int(held_out_within(users, sources, salt="test")[:5].sum()) in (1, 2)
    True
    >>> bool(held_out_within(users, sources, salt="test")[5])
    False
    """
    owned: dict[int, set[str]] = defaultdict(set)
    for user, thing in zip(users.tolist(), together, strict=True):
        owned[user].add(thing)
    held: set[tuple[int, str]] = set()
    for user, things in owned.items():
        shuffled = sorted(
            things, key=lambda name: hashlib.sha256(f"{salt} {name}".encode()).digest()
        )
        held.update((user, thing) for thing in shuffled[: (len(things) + FOLDS // 2) // FOLDS])
    return np.array([pair in held for pair in zip(users.tolist(), together, strict=True)])


def _by_user(dataset: str) -> Corpus:
    """All texts of the users, as training texts.

    Stack Overflow's test file has other users than its training file, so it is of no use here;
    among its posts, those of the same words belong together.
    """
    found = corpus(dataset)
    if dataset == PUBLISHED_DATASET:
        return replace(found, train=replace(found.train, together=found.train.texts))
    return replace(found, train=found.train.and_also(found.test))


def _held(whole: Corpus, salt: str) -> Corpus:
    out = held_out_within(_users(whole.train), whole.train.together, salt=salt)
    return replace(whole, train=whole.train.take(~out), test=whole.train.take(out))


def _with_most(users: Array, most: int | None) -> Array:
    numbers, sizes = np.unique(users, return_counts=True)
    found: Array = numbers[np.argsort(-sizes, kind="stable")]
    return found[:most]


def _users(labelled: LabelledTexts) -> Array:
    assert labelled.users is not None  # packages and posts have somebody
    return labelled.users
