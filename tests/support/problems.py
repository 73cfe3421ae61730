"""Small problems on which every engine is tried."""

from dataclasses import dataclass

import numpy as np
import torch
from scipy import sparse
from torch import nn
from torch.nn import functional

from adadps.data.examples import Examples, examples
from adadps.engine.general import GeneralEngine
from adadps.engine.ghost import GhostEngine


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
    engine = GeneralEngine(model, cross_entropy) if general else GhostEngine(model, cross_entropy)
    return Problem(model, cross_entropy, batch, engine)


def linear_sparse(seed: int, size: int, *, bias=True, general=False) -> Problem:
    rng = _rng(seed)
    model = nn.Linear(8, 2, bias=bias)
    rows = sparse.random(size, 8, density=0.3, format="csr", random_state=rng, dtype=np.float32)
    batch = examples(rows, rng.normal(size=(size, 2)).astype(np.float32))
    engine = GeneralEngine(model, squared) if general else GhostEngine(model, squared)
    return Problem(model, squared, batch, engine)


def _problem(model, loss, batch, general):
    engine = GeneralEngine(model, loss) if general else GhostEngine(model, loss)
    return Problem(model, loss, batch, engine)


def perceptron(seed: int, size: int, *, general=False) -> Problem:
    rng = _rng(seed)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    batch = examples(
        rng.normal(size=(size, 4)).astype(np.float32), rng.normal(size=(size, 2)).astype(np.float32)
    )
    return _problem(model, squared, batch, general)


def deep_in_place(seed: int, size: int) -> Problem:
    """Activations that overwrite their inputs, nested sequences, a norm and a frozen layer."""
    rng = _rng(seed)
    inner = nn.Sequential(nn.Linear(6, 5, bias=False), nn.ReLU(inplace=True), nn.LayerNorm(5))
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), inner, nn.Linear(5, 3))
    model[0].weight.requires_grad_(False)
    batch = examples(rng.normal(size=(size, 4)).astype(np.float32), rng.integers(3, size=size))
    return _problem(model, cross_entropy, batch, general=False)


def normalised(seed: int, size: int) -> Problem:
    """Group norm on channels and RMS norm over two axes."""
    rng = _rng(seed)
    model = nn.Sequential(
        nn.GroupNorm(2, 4), nn.RMSNorm((4, 3)), nn.LayerNorm(3), nn.Flatten(), nn.Linear(12, 2)
    )
    batch = examples(
        rng.normal(size=(size, 4, 3)).astype(np.float32),
        rng.normal(size=(size, 2)).astype(np.float32),
    )
    return _problem(model, squared, batch, general=False)


def sparse_perceptron(seed: int, size: int) -> Problem:
    rng = _rng(seed)
    model = nn.Sequential(nn.Linear(8, 3), nn.Tanh(), nn.Linear(3, 2))
    rows = sparse.random(size, 8, density=0.3, format="csr", random_state=rng, dtype=np.float32)
    batch = examples(rows, rng.normal(size=(size, 2)).astype(np.float32))
    return _problem(model, squared, batch, general=False)


def shared_layer(seed: int, size: int) -> Problem:
    """One linear layer that the model runs twice."""
    rng = _rng(seed)
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(4, 2))
    batch = examples(
        rng.normal(size=(size, 4)).astype(np.float32), rng.normal(size=(size, 2)).astype(np.float32)
    )
    return _problem(model, squared, batch, general=False)


def _tokens(rng, size, length=5, words=7):
    return torch.from_numpy(rng.integers(words, size=(size, length)))


def embedding(seed: int, size: int, *, padding=None) -> Problem:
    """Few words and many positions, so that most words repeat."""
    rng = _rng(seed)
    model = nn.Sequential(
        nn.Embedding(4, 3, padding_idx=padding), nn.Linear(3, 2), nn.Flatten(), nn.Linear(10, 3)
    )
    return _problem(
        model,
        cross_entropy,
        examples(_tokens(rng, size, words=4), rng.integers(3, size=size)),
        general=False,
    )


def bag(seed: int, size: int, *, mode="mean", padding=None, general=False) -> Problem:
    rng = _rng(seed)
    model = nn.Sequential(
        nn.EmbeddingBag(4, 3, mode=mode, padding_idx=padding), nn.ReLU(), nn.Linear(3, 3)
    )
    batch = examples(_tokens(rng, size, words=4), rng.integers(3, size=size))
    return _problem(model, cross_entropy, batch, general)


def weighted_bag(seed: int, size: int) -> Problem:
    """An `EmbeddingBag` on sparse rows: offsets and weights of any number of words."""
    rng = _rng(seed)
    model = nn.Sequential(nn.EmbeddingBag(8, 3, mode="sum"), nn.Tanh(), nn.Linear(3, 2))
    rows = sparse.random(size, 8, density=0.4, format="csr", random_state=rng, dtype=np.float32)
    batch = examples(rows, rng.normal(size=(size, 2)).astype(np.float32))
    return _problem(model, squared, batch, general=False)


class BagClassifier(nn.Module):
    """A custom module around a bag: runs under vmap."""

    def __init__(self, mode, padding):
        super().__init__()
        self.bag = nn.EmbeddingBag(5, 3, mode=mode, padding_idx=padding)
        self.norm = nn.LayerNorm(3)
        self.head = nn.Linear(3, 3)

    def forward(self, tokens):
        return self.head(self.norm(torch.relu(self.bag(tokens))))


def custom_bag(seed: int, size: int, *, mode="mean", padding=None) -> Problem:
    rng = _rng(seed)
    batch = examples(_tokens(rng, size, words=5), rng.integers(3, size=size))
    return _problem(BagClassifier(mode, padding), cross_entropy, batch, general=False)


def tied_tagger(seed: int, size: int, *, general=False) -> Problem:
    rng = _rng(seed)
    model = TiedTagger()
    batch = examples(torch.from_numpy(rng.integers(3, size=(size, 5))), rng.integers(7, size=size))
    return _problem(model, tokens_loss, batch, general)


def convolution(seed: int, size: int, *, general=False) -> Problem:
    rng = _rng(seed)
    model = Convolution()
    batch = examples(
        rng.normal(size=(size, 1, 7, 7)).astype(np.float32), rng.integers(3, size=size)
    )
    return _problem(model, cross_entropy, batch, general)


def token_linear(seed: int, size: int, *, time=4, general=False) -> Problem:
    """A linear layer on inputs with a time axis: short ones by pairs, long ones by gradients."""
    rng = _rng(seed)
    model = nn.Linear(3, 2)

    def loss(outputs, targets):
        return (outputs - targets).square().sum((1, 2))

    batch = examples(
        rng.normal(size=(size, time, 3)).astype(np.float32),
        rng.normal(size=(size, time, 2)).astype(np.float32),
    )
    return _problem(model, loss, batch, general)


PROBLEMS = {
    "linear, dense": linear_dense,
    "linear, dense, no bias": lambda s, n: linear_dense(s, n, bias=False),
    "linear, sparse": linear_sparse,
    "linear, sparse, no bias": lambda s, n: linear_sparse(s, n, bias=False),
    "perceptron": perceptron,
    "perceptron on sparse rows": sparse_perceptron,
    "in-place activations, frozen layer": deep_in_place,
    "group, RMS and layer norm": normalised,
    "one layer twice": shared_layer,
    "linear over two positions": lambda s, n: token_linear(s, n, time=2),
    "linear over time": lambda s, n: token_linear(s, n, time=9),
    "embedding": embedding,
    "embedding with padding": lambda s, n: embedding(s, n, padding=1),
    "bag, mean": bag,
    "bag, sum": lambda s, n: bag(s, n, mode="sum"),
    "bag, mean, padding": lambda s, n: bag(s, n, padding=1),
    "bag with offsets and weights": weighted_bag,
    "custom bag": custom_bag,
    "custom bag, sum, padding": lambda s, n: custom_bag(s, n, mode="sum", padding=2),
    "tied embedding": tied_tagger,
    "convolution": convolution,
    "general: linear, dense": lambda s, n: linear_dense(s, n, general=True),
    "general: linear, sparse": lambda s, n: linear_sparse(s, n, general=True),
    "general: perceptron": lambda s, n: perceptron(s, n, general=True),
    "general: tied embedding": lambda s, n: tied_tagger(s, n, general=True),
    "general: convolution": lambda s, n: convolution(s, n, general=True),
    "general: linear over time": lambda s, n: token_linear(s, n, general=True),
}
