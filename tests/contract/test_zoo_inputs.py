"""Models with several inputs, as users write them: right against autograd, whoever is beside.

Inputs are given by name or by position, and outputs come as tensors, tuples and mappings.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from adadps import examples
from adadps.engine.passes.validation import objective
from adadps.tensors.sums import dense
from support.engine_checks import only
from support.problems import squared
from support.zoo import SIZE, STEPS, WORDS

WIDTH = 4


class Joined(nn.Module):
    """A model of some layers, and a function for its forward pass."""

    def __init__(self, run, **layers):
        super().__init__()
        self.run = run
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *given, **named):
        return self.run(self, *given, **named)


@dataclass(frozen=True)
class Entry:
    """A model, its inputs by name or by position, and what the loss picks of its outputs."""

    build: Callable[[], nn.Module]
    inputs: Callable[[np.random.Generator, int], Any]
    pick: Callable[[Any], torch.Tensor] = lambda outputs: outputs
    outputs: int = 2

    def loss(self, outputs, targets):
        return squared(self.pick(outputs), targets)

    def batch(self, seed=0, size=SIZE):
        rng = np.random.default_rng(seed)
        inputs = self.inputs(rng, size)
        targets = torch.from_numpy(rng.normal(size=(size, self.outputs))).float()
        return examples(inputs, targets)


def normal(rng, *shape):
    return torch.from_numpy(rng.normal(size=shape)).float()


def tokens(rng, size, length=STEPS):
    return torch.from_numpy(rng.integers(1, WORDS, size=(size, length)))


def mask(rng, size, length=STEPS):
    """1 where there is a word; the first one is always there."""
    return (torch.arange(length) < torch.from_numpy(rng.integers(1, length + 1, (size, 1)))).long()


def pooled(states, mask):
    weights = mask.unsqueeze(-1).to(states.dtype)
    return (states * weights).sum(1) / weights.sum(1).clamp_min(1)


class Attending(nn.Module):
    """Cross-attention from one sequence to another, whose padding is hidden."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.out = nn.Linear(WIDTH, 2)

    def forward(self, queries, memory, mask):
        found, weights = self.attention(queries, memory, memory, key_padding_mask=mask == 0)
        return self.out(found.mean(1)), weights


class Encoding(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 6, dropout=0.0, batch_first=True)
        self.table, self.out = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 2)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, tokens, mask):
        states = self.encoder(self.table(tokens), src_key_padding_mask=mask == 0)
        return {"scores": self.out(pooled(states, mask)), "states": states}


class FromState(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells, self.out = nn.GRU(3, WIDTH, batch_first=True), nn.Linear(WIDTH, 2)

    def forward(self, values, state):
        return self.out(self.cells(values, state.unsqueeze(0))[0][:, -1])


@dataclass
class Found:
    """What a model returns as a dataclass."""

    states: torch.Tensor
    logits: torch.Tensor
    loss: torch.Tensor | None = None


class Speaking(nn.Module):
    """A language model whose table of words is its last layer, too; one layer is frozen."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.cells = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.out = nn.Linear(WIDTH, WORDS, bias=False)
        self.out.weight = self.table.weight

    def forward(self, tokens, mask):
        states = self.cells(self.frozen(self.table(tokens)))[0]
        return Found(states, self.out(pooled(states, mask)))


def logits(outputs):
    return outputs.logits


def scores(outputs):
    return outputs["scores"]


def first(outputs):
    return outputs[0]


ENTRIES = {
    "two towers": Entry(
        lambda: Joined(
            lambda m, user, item: m.users(user) * m.items(item),
            users=nn.Linear(3, 2), items=nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)),
        ),
        lambda rng, n: {"user": normal(rng, n, 3), "item": normal(rng, n, 5)},
    ),
    "words and numbers": Entry(
        lambda: Joined(
            lambda m, words, numbers: m.out(torch.cat([m.table(words), m.dense(numbers)], 1)),
            table=nn.EmbeddingBag(WORDS, WIDTH, mode="mean"), dense=nn.Linear(3, 2),
            out=nn.Linear(WIDTH + 2, 2),
        ),
        lambda rng, n: (tokens(rng, n), normal(rng, n, 3)),
    ),
    "a picture and its caption": Entry(
        lambda: Joined(
            lambda m, picture, caption: m.out(torch.cat(
                [m.filters(picture).relu().flatten(1), m.table(caption).mean(1)], 1)),
            filters=nn.Conv2d(1, 2, 3), table=nn.Embedding(WORDS, WIDTH),
            out=nn.Linear(8 + WIDTH, 2),
        ),
        lambda rng, n: {"caption": tokens(rng, n), "picture": normal(rng, n, 1, 4, 4)},
    ),
    "an LSTM and a mask": Entry(
        lambda: Joined(
            lambda m, tokens, mask: {
                "scores": m.out(pooled(m.cells(m.table(tokens))[0], mask)), "cache": None},
            table=nn.Embedding(WORDS, 3), cells=nn.LSTM(3, WIDTH, batch_first=True),
            out=nn.Linear(WIDTH, 2),
        ),
        lambda rng, n: {"tokens": tokens(rng, n), "mask": mask(rng, n)}, scores,
    ),
    "attention from one to the other": Entry(
        Attending,
        lambda rng, n: {"queries": normal(rng, n, 2, WIDTH), "memory": normal(rng, n, 5, WIDTH),
                        "mask": mask(rng, n, 5)},
        first,
    ),
    "an encoder with padding": Entry(
        Encoding, lambda rng, n: {"tokens": tokens(rng, n), "mask": mask(rng, n)}, scores
    ),
    "a first state": Entry(
        FromState, lambda rng, n: (normal(rng, n, STEPS, 3), normal(rng, n, WIDTH))
    ),
    "bilinear": Entry(
        lambda: Joined(lambda m, one, other: m.form(one, other), form=nn.Bilinear(3, 4, 2)),
        lambda rng, n: (normal(rng, n, 3), normal(rng, n, 4)),
    ),
    "columns of categories": Entry(
        lambda: Joined(
            lambda m, ward, month, age: m.out(torch.cat([m.wards(ward), m.months(month), age], 1)),
            wards=nn.Embedding(WORDS, 3), months=nn.Embedding(WORDS, 2), out=nn.Linear(6, 2),
        ),
        lambda rng, n: {"ward": tokens(rng, n, 1)[:, 0], "month": tokens(rng, n, 1)[:, 0],
                        "age": normal(rng, n, 1)},
    ),
    "a pair through one encoder": Entry(
        lambda: Joined(
            lambda m, one, other: m.encode(one) - m.encode(other),
            encode=nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)),
        ),
        lambda rng, n: (normal(rng, n, 5), normal(rng, n, 5)),
    ),
    "a tied table, a frozen layer and a dataclass": Entry(
        Speaking, lambda rng, n: {"tokens": tokens(rng, n), "mask": mask(rng, n)}, logits, WORDS
    ),
    "weights of rows": Entry(
        lambda: Joined(
            lambda m, rows, weight: (m.out(rows) * weight.unsqueeze(1), weight),
            out=nn.Linear(4, 2),
        ),
        lambda rng, n: {"rows": normal(rng, n, 4), "weight": normal(rng, n).abs() + 0.1}, first,
    ),
}  # fmt: skip


@cache
def held(name):
    torch.manual_seed(3)
    return objective(ENTRIES[name].build(), ENTRIES[name].loss, ENTRIES[name].batch())


def called(model, batch, row):
    features = batch.features.take(torch.tensor([row]))
    if features.names is None:
        return model(*features.tensors)
    return model(**dict(zip(features.names, features.tensors, strict=True)))


def test_there_are_ten_and_more():
    assert len(ENTRIES) >= 10


@pytest.mark.parametrize("name", ENTRIES)
def test_norms_and_sums_equal_one_example_autograd(name):
    made, entry, batch = held(name), ENTRIES[name], ENTRIES[name].batch()
    found = made.per_unit(made.params(), batch, None)
    norms = found.norms()
    for row in range(SIZE):
        value = entry.loss(called(made.model, batch, row), batch.targets[row : row + 1]).sum()
        trained = {n: p for n, p in made.model.named_parameters() if p.requires_grad}
        wanted = torch.autograd.grad(value, list(trained.values()))
        sums = found.weighted_sum(only(row, len(norms)))
        size = torch.sqrt(sum(one.double().square().sum() for one in wanted))
        assert sums.keys() == trained.keys()
        for parameter, one in zip(trained, wanted, strict=True):
            torch.testing.assert_close(
                dense(sums[parameter]).float(), one, rtol=1e-4, atol=1e-5 * float(size),
                msg=parameter,
            )  # fmt: skip
        assert float(norms[row]) == pytest.approx(float(size), rel=1e-3)


@pytest.mark.parametrize("name", ENTRIES)
def test_neighbours_leave_a_row_bit_equal(name):
    """Other rows behind it, or none."""
    made, entry = held(name), ENTRIES[name]
    batch, other = entry.batch(), entry.batch(seed=1)
    norms = made.per_unit(made.params(), batch, None).norms()
    alone = made.per_unit(made.params(), batch.take(torch.tensor([0])), None).norms()
    both = examples(
        batch.features.take(torch.tensor([0])).followed_by(other.features),
        torch.cat([batch.targets[:1], other.targets]),
    )
    beside = made.per_unit(made.params(), both, None).norms()
    assert norms[0] == alone[0] == beside[0]


@pytest.mark.parametrize("name", ENTRIES)
def test_one_row_more_moves_the_clipped_sum_by_no_more_than_the_clip_norm(name):
    """Whoever the row is, and however long the texts beside it are."""
    made, entry = held(name), ENTRIES[name]
    batch, clip = entry.batch(), 1e-3

    def clipped(rows):
        found = made.per_unit(made.params(), batch.take(torch.tensor(rows)), None)
        norms = found.norms().double()
        weights = torch.where(norms > 0, (clip / norms).clamp_max(1), 0)
        weights[len(rows) :] = 0  # padding
        return torch.cat([dense(v).double().flatten() for v in
                          found.weighted_sum(weights).values()])  # fmt: skip

    whole = clipped(list(range(SIZE)))
    for row in range(SIZE):
        without = clipped([other for other in range(SIZE) if other != row])
        assert float((whole - without).norm()) <= clip * (1 + 1e-6)
