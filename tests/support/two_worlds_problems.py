"""Models, rows and single steps that the tests of two worlds share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from scipy import sparse
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

import adadps
from adadps import (
    Accountant,
    Relation,
    dp_sgd,
    examples,
    fit,
    fixed_size,
    poisson,
    privatize,
    shuffled,
)
from support.models import Custom
from support.problems import cross_entropy
from support.two_worlds import PROFILE, THE_ONE, differences, left_by

WIDTH, CLASSES = 4, 3
CLIP, SIGMA = 0.5, 0.75


def tried(count):
    """This many examples, the same in every run; many more for `make torture`.

    With a count of 0 there are more only then, beside those that are written down.
    """
    quick = PROFILE == 1 and not count
    return settings(
        max_examples=max(1, count) * PROFILE,
        deadline=None,
        # runs are too slow to be made smaller after a failure
        phases=[Phase.explicit] if quick else [Phase.explicit, Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )


# --- models, and rows for them ---


class Remembers(nn.Module):
    """Keeps what it has seen: in a buffer, and as an attribute."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, CLASSES)
        self.register_buffer("seen", torch.zeros(WIDTH))
        self.last = None

    def forward(self, x):
        self.seen = x.detach()[0].clone()
        self.last = x.detach().clone()
        return self.layer(x)


class Gated(nn.Module):
    """Uses a weight behind its layer's back, for rows that open a gate."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        gate = (x[:, :1] > OPEN / 2).to(x.dtype)
        return self.layer(x) + gate * functional.linear(
            -2 * OPEN * torch.tanh(x), self.layer.weight
        )


def with_dropout():
    return Custom(
        lambda m, x: m.head(m.drop(torch.tanh(m.layer(x)))),
        layer=nn.Linear(WIDTH, 3),
        drop=nn.Dropout(0.5),
        head=nn.Linear(3, CLASSES),
    )


def bag():
    return nn.Sequential(nn.EmbeddingBag(6, 3, mode="sum"), nn.Tanh(), nn.Linear(3, CLASSES))


def perceptron():
    return nn.Sequential(nn.Linear(WIDTH, 3), nn.Tanh(), nn.Linear(3, CLASSES))


OPEN = 6e3
NUMBERS = st.sampled_from([0.0, 0.5, -1.0, 2.0, 1e-30, -7e4, OPEN, 3e30])
DENSE = st.lists(NUMBERS, min_size=WIDTH, max_size=WIDTH)
COUNTS = st.lists(st.sampled_from([0.0, 0.0, 1.0, 0.25]), min_size=WIDTH, max_size=WIDTH)
TOKENS = st.lists(st.integers(0, 5), min_size=3, max_size=3)


def as_dense(rows):
    return np.array(rows, np.float32)


def as_sparse(rows):
    return sparse.csr_matrix(np.array(rows, np.float32))


def as_tokens(rows):
    return np.array(rows, np.int64)


class Listed(Dataset):
    """Rows that are read one by one; those with huge numbers cannot be."""

    def __init__(self, rows, labels):
        self.rows, self.labels = rows, labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, place):
        if max(self.rows[place]) > 1e30:
            raise OSError(f"cannot read {self.rows[place]}")
        return np.array(self.rows[place], np.float32), self.labels[place]


MADE_UP = (np.eye(3, WIDTH, dtype=np.float32), [0, 1, 2])


def read_when_drawn(rows, labels):
    return examples(Listed(rows, labels), synthetic=MADE_UP)


class TokensAndMask(nn.Module):
    """Two inputs by name, and an output in a mapping that holds others, too."""

    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Embedding(6, 3), nn.Linear(3, CLASSES)

    def forward(self, tokens, mask):
        states = self.table(tokens) * mask.unsqueeze(-1)
        pooled = states.sum(1) / mask.sum(1, keepdim=True).clamp_min(1)
        return self.last(torch.tanh(pooled))


def as_tokens_and_mask(rows):
    tokens = as_tokens(rows)
    return {"mask": (tokens > 1).astype(np.float32), "tokens": tokens}


@dataclass(frozen=True)
class Kind:
    """A model, and rows that it reads."""

    model: Callable[[], nn.Module]
    rows: Any
    features: Callable[[Any], Any]
    given: Callable[[Any, Any], Any] | None = None
    """How examples are made of rows and labels, if not from features."""

    def examples(self, rows, labels):
        make = self.given or (lambda rows, labels: examples(self.features(rows), labels))
        return make(rows, labels)


KINDS = {
    "linear": Kind(lambda: nn.Linear(WIDTH, CLASSES), DENSE, as_dense),
    "linear, sparse": Kind(lambda: adadps.sparse_linear(WIDTH, CLASSES), COUNTS, as_sparse),
    "embedding bag": Kind(bag, TOKENS, as_tokens),
    "perceptron": Kind(perceptron, DENSE, as_dense),
    "perceptron, sparse": Kind(perceptron, COUNTS, as_sparse),
    "with dropout": Kind(with_dropout, DENSE, as_dense),
    "remembers": Kind(Remembers, DENSE, as_dense),
    "gated": Kind(Gated, DENSE, as_dense),
    "dataset": Kind(perceptron, DENSE, as_dense, read_when_drawn),
    "several inputs": Kind(TokensAndMask, TOKENS, as_tokens_and_mask),
}


@dataclass(frozen=True)
class Data:
    """Rows with labels, and how the two worlds differ."""

    rows: list[Any]
    labels: list[int]
    place: int
    odd: Any
    odd_label: int

    @property
    def size(self):
        return len(self.rows)

    def world(self, relation, *, other):
        """Rows, labels and names of one world; the ``other`` has one row more, or another."""
        rows, labels, names = list(self.rows), list(self.labels), list(range(self.size))
        if other and relation is Relation.ADD_OR_REMOVE_ONE:
            rows.insert(self.place, self.odd)
            labels.insert(self.place, self.odd_label)
            names.insert(self.place, THE_ONE)
        elif other:
            rows[self.place], labels[self.place] = self.odd, self.odd_label
        return rows, labels, names


@st.composite
def data_for(draw, kind, least=3, most=5):
    size = draw(st.integers(least, most))
    label = st.integers(0, CLASSES - 1)
    return Data(
        draw(st.lists(kind.rows, min_size=size, max_size=size)),
        draw(st.lists(label, min_size=size, max_size=size)),
        draw(st.integers(0, size - 1)),
        draw(kind.rows),
        draw(label),
    )


def both(pipeline, data, relation=Relation.ADD_OR_REMOVE_ONE):
    """What the pipeline leaves in either world."""
    found = []
    for other in (False, True):
        rows, labels, names = data.world(relation, other=other)
        found.append(left_by(pipeline, (rows, labels), names))
    return found


def same(worlds, ending="well"):
    """Both worlds left the same, and ended as they should."""
    one, other = worlds
    assert differences(one, other) == []
    assert one.ended.startswith(ending)
    return worlds


PLAIN = Data([[0.5, -1.0, 2.0, 0.0]] * 4, [0, 1, 2, 0], 1, [2.0, 2.0, 0.0, 1.0], 1)


SAMPLERS = {
    "all": lambda n: poisson(examples=n, expected_size=n),
    "some": lambda n: poisson(examples=n, expected_size=1),
    "fixed size": lambda n: fixed_size(examples=n, expected_size=2),
    "shuffled": lambda n: shuffled(examples=n, expected_size=2),
}


def relation_of(sampler):
    """Zero out is shown as a replacement: what leaves may not depend on that one row anyway."""
    added = sampler.relation is Relation.ADD_OR_REMOVE_ONE
    return sampler.relation if added else Relation.REPLACE_ONE


def one_step(kind, sampler, lr=1.0, **more):
    """The weights after a step; with noise off, one more row adds its clipped part, no more."""
    release = privatize(clip_norm=CLIP, noise_multiplier=SIGMA)

    def pipeline(world, given):
        rows, labels = given
        torch.manual_seed(1)
        model = kind.model()
        fit(
            model,
            cross_entropy,
            kind.examples(rows, labels),
            method=dp_sgd(release, lr=lr),
            sampler=sampler,
            steps=1,
            accountant=Accountant.RDP,
            **more,
        )
        world.take(model)

    return pipeline
