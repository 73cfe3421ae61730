"""The users of the federated comparison and the texts that each of them holds.

Users are the maintainers of Debian's packages, or the users of Stack Overflow where its files are
found. Each user's texts are split into training and test by group (packages of one source, posts of
the same words), and the training texts again for tuning, which does not read the test texts. Every
user keeps some training texts.
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
from adadps.estimators.planner.methods import median_norm
from adadps_experiments.reproduce.text.corpora import corpus
from adadps_experiments.reproduce.text.corpus import FOLDS, Array, Corpus, LabelledTexts
from adadps_experiments.reproduce.text.recipes import PAPER, Features, Recipe, typical_counts

DATASET, PUBLISHED_DATASET = "debian-tags", "stackoverflow"
"""Debian's packages are part of adadps; the paper's posts are used where their files are found."""
FEATURES = {"paper": PAPER, "best for DP-SGD": Recipe(dampened=True, power=1.0)}
"""The second is what DP-SGD did best on with these texts (`recorded/text.json`)."""


@dataclass(frozen=True)
class FederatedTexts:
    """Users with their rows, held-out rows of the same users, and public scales."""

    corpus: Corpus
    train: Examples
    test: Examples
    users: int
    typical: sparse.csr_matrix

    def norm(self, a: Array | None = None) -> float:
        """Return the median norm of x, or of x / A, over rows drawn from public frequencies."""
        return median_norm(self.typical, a)


@lru_cache(maxsize=4)
def federation(dataset: str, most_users: int | None, features: str, tuning: bool) -> FederatedTexts:
    """Return the users with the most texts, who are the same for tuning and for testing."""
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


def held_out_within(users: Array, groups: Sequence[str], *, salt: str) -> Array:
    """Return which texts are held out: (k + 2) // 5 of a user's k groups, by hash; never all.

    >>> users, sources = np.array([7] * 5 + [8]), ["a", "a", "b", "c", "d", "e"]
    >>> int(held_out_within(users, sources, salt="test")[:5].sum()) in (1, 2)
    True
    >>> bool(held_out_within(users, sources, salt="test")[5])
    False
    """
    owned: dict[int, set[str]] = defaultdict(set)
    for user, thing in zip(users.tolist(), groups, strict=True):
        owned[user].add(thing)
    held: set[tuple[int, str]] = set()
    for user, things in owned.items():
        shuffled = sorted(
            things, key=lambda name: hashlib.sha256(f"{salt} {name}".encode()).digest()
        )
        held.update((user, thing) for thing in shuffled[: (len(things) + FOLDS // 2) // FOLDS])
    return np.array([pair in held for pair in zip(users.tolist(), groups, strict=True)])


def _by_user(dataset: str) -> Corpus:
    """Return all texts of the users as training texts.

    Stack Overflow's test file has other users than its training file, so only the latter is used;
    its posts of the same words form a group.
    """
    found = corpus(dataset)
    if dataset == PUBLISHED_DATASET:
        return replace(found, train=replace(found.train, groups=found.train.texts))
    return replace(found, train=found.train.and_also(found.test))


def _held(whole: Corpus, salt: str) -> Corpus:
    out = held_out_within(_users(whole.train), whole.train.groups, salt=salt)
    return replace(whole, train=whole.train.take(~out), test=whole.train.take(out))


def _with_most(users: Array, most: int | None) -> Array:
    numbers, sizes = np.unique(users, return_counts=True)
    found: Array = numbers[np.argsort(-sizes, kind="stable")]
    return found[:most]


def _users(labelled: LabelledTexts) -> Array:
    assert labelled.users is not None  # packages have maintainers, posts have users
    return labelled.users
