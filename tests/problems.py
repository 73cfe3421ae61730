"""Small problems on which every engine is tried."""

from dataclasses import dataclass

import numpy as np
import torch
from scipy import sparse
from torch import nn
from torch.nn import functional

from adadps.data.examples import Examples, examples
from adadps.gradients.general import GeneralEngine
from adadps.gradients.linear import LinearEngine


def squared(outputs, targets):
    return 0.5 * (outputs - targets).square().sum(1)


def cross_entropy(outputs, targets):
    return functional.cross_entropy(outputs, targets, reduction="none")


def tokens_loss(outputs, targets):
    return functional.cross_entropy(outputs, targets, reduction="none")


class TiedTagger(nn.Module):
    """Embedding with repeated tokens, a shared output layer, and a layer norm."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.norm(self.embedding(tokens).mean(1)))


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(1, 2, 3, stride=2)
        self.norm = nn.GroupNorm(1, 2)
        self.head = nn.Linear(2, 3)

    def forward(self, images):
        return self.head(torch.relu(self.norm(self.convolution(images))).mean((2, 3)))


@dataclass(frozen=True)
class Problem:
    model: nn.Module
    loss: object
    batch: Examples
    engine: object


def _rng(seed):
    return np.random.default_rng(seed)


def linear_dense(seed: int, size: int, *, bias=True, general=False) -> Problem:
    rng = _rng(seed)
    model = nn.Linear(5, 3, bias=bias)
    batch = examples(rng.normal(size=(size, 5)).astype(np.float32), rng.integers(3, size=size))
    engine = GeneralEngine(model, cross_entropy) if general else LinearEngine(model, cross_entropy)
    return Problem(model, cross_entropy, batch, engine)


def linear_sparse(seed: int, size: int, *, bias=True, general=False) -> Problem:
    rng = _rng(seed)
    model = nn.Linear(8, 2, bias=bias)
    rows = sparse.random(size, 8, density=0.3, format="csr", random_state=rng, dtype=np.float32)
    batch = examples(rows, rng.normal(size=(size, 2)).astype(np.float32))
    engine = GeneralEngine(model, squared) if general else LinearEngine(model, squared)
    return Problem(model, squared, batch, engine)


def perceptron(seed: int, size: int) -> Problem:
    rng = _rng(seed)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    batch = examples(
        rng.normal(size=(size, 4)).astype(np.float32), rng.normal(size=(size, 2)).astype(np.float32)
    )
    return Problem(model, squared, batch, GeneralEngine(model, squared))


def tied_tagger(seed: int, size: int) -> Problem:
    rng = _rng(seed)
    model = TiedTagger()
    batch = examples(torch.from_numpy(rng.integers(3, size=(size, 5))), rng.integers(7, size=size))
    return Problem(model, tokens_loss, batch, GeneralEngine(model, tokens_loss))


def convolution(seed: int, size: int) -> Problem:
    rng = _rng(seed)
    model = Convolution()
    batch = examples(
        rng.normal(size=(size, 1, 7, 7)).astype(np.float32), rng.integers(3, size=size)
    )
    return Problem(model, cross_entropy, batch, GeneralEngine(model, cross_entropy))


def token_linear(seed: int, size: int) -> Problem:
    """A linear layer on inputs with a time axis: for the general engine."""
    rng = _rng(seed)
    model = nn.Linear(3, 2)

    def loss(outputs, targets):
        return (outputs - targets).square().sum((1, 2))

    batch = examples(
        rng.normal(size=(size, 4, 3)).astype(np.float32),
        rng.normal(size=(size, 4, 2)).astype(np.float32),
    )
    return Problem(model, loss, batch, GeneralEngine(model, loss))


PROBLEMS = {
    "linear, dense": linear_dense,
    "linear, dense, no bias": lambda s, n: linear_dense(s, n, bias=False),
    "linear, sparse": linear_sparse,
    "linear, sparse, no bias": lambda s, n: linear_sparse(s, n, bias=False),
    "general: linear, dense": lambda s, n: linear_dense(s, n, general=True),
    "general: linear, sparse": lambda s, n: linear_sparse(s, n, general=True),
    "general: perceptron": perceptron,
    "general: tied embedding": tied_tagger,
    "general: convolution": convolution,
    "general: linear over time": token_linear,
}
