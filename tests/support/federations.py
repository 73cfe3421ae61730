"""A federation in one process: nodes that hold a user's rows each, and answer as devices do."""

import numpy as np
import torch
from scipy import sparse
from torch import nn

from adadps import by_user, examples, poisson, privatize, side
from adadps.data.sparse_rows import sparse_linear
from adadps.methods.stages import chain, momentum, sgd, train_locally
from adadps.training.federated import FederatedRun, local_update
from support.problems import cross_entropy

WIDTH, CLASSES, USERS = 12, 3, 5
SIZES = [5, 1, 2, 7, 3]
OWNERS = np.repeat(np.arange(USERS), SIZES)
_RNG = np.random.default_rng(7)
WORDS = sparse.random(
    len(OWNERS), WIDTH, density=0.3, format="csr", random_state=_RNG, dtype=np.float32
)
LABELS = _RNG.integers(CLASSES, size=len(OWNERS))

EVERYBODY = poisson(users=USERS, expected_size=USERS)
SOME = poisson(users=USERS, expected_size=2)
QUIET = {"noise_multiplier": 0.0}


def known_words(at="weight"):
    """Side information for every word."""
    known = side.given_frequencies(
        np.arange(1, WIDTH + 1) / WIDTH, source="a list", public_because="published"
    )
    return side.frequency(known, floor=0.1, power=1.0, at=at)


def features(kind):
    return WORDS if kind == "sparse" else WORDS.toarray()


def all_rows(kind="sparse"):
    return examples(features(kind), LABELS, users=OWNERS)


def rows_of(user, kind="sparse"):
    own = np.flatnonzero(user == OWNERS)
    return examples(features(kind)[own], LABELS[own])


def model(kind="sparse", *, hidden=False):
    torch.manual_seed(3)
    if hidden:
        return nn.Sequential(nn.Linear(WIDTH, 4), nn.Tanh(), nn.Linear(4, CLASSES))
    return sparse_linear(WIDTH, CLASSES) if kind == "sparse" else nn.Linear(WIDTH, CLASSES)


def method(
    noise=None, *, clip_norm=0.3, noise_multiplier=1.0, before=(), last=None, most=100, at="weight"
):
    """Local training with side information, and a release by users."""
    users = by_user(most=most, noise=noise)
    local = train_locally(
        lr=0.7, batch_size=2, epochs=2, side=known_words(at) if not before else None
    )
    release = privatize(clip_norm=clip_norm, noise_multiplier=noise_multiplier, groups=users)
    return chain(local, *before, release, *(last or (momentum(0.5), sgd(0.9))))


def federated(chosen, sampler, *, rounds=4, weights=None, **options):
    return FederatedRun(
        weights or model(), method=chosen, sampler=sampler, rounds=rounds, **options
    )


def answer_of(run, node, kind="sparse", *, task=None, **shape):
    """What the device of user ``node`` answers to the run's current weights."""
    copy = model(kind, **shape)
    copy.load_state_dict({name: value.clone() for name, value in run.params.items()})
    own = rows_of(node, kind)
    return local_update(task or run.task, copy, cross_entropy, own, scale=run.scale)


def play(run, *, nodes=range(USERS), until=None, kind="sparse", **shape):
    """Everybody who is asked answers; return the run and who was asked."""
    asked = []
    for batch in run.batches():
        cohort = run.cohort(batch, nodes)
        asked.append(cohort)
        for node in cohort:
            run.answer(batch, node, answer_of(run, node, kind, **shape))
        run.step(batch)
        if run.taken == until:
            break
    return run, asked
