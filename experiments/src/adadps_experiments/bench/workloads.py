"""What is trained: synthetic data with a fixed seed, a model, and a loss per example.

Sizes are fields of the dataclasses: ``replace(workload, ...)`` makes a smaller workload.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn

from adadps.engine import losses
from adadps.engine.losses import Loss

SEED = 20220717
_FEW: dict[str, Any] = {"examples": 1000, "batch": 8}
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class SyntheticData:
    """Features (sparse rows, or a tensor with one example per row) and targets."""

    features: sparse.csr_matrix[Any] | Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)

    def draw(self, rng: np.random.Generator, size: int) -> SyntheticData:
        """Draw a batch uniformly with replacement, which is the cheapest way."""
        rows = rng.integers(len(self), size=size)
        index = torch.from_numpy(rows)
        if isinstance(self.features, Tensor):
            features, same = self.features[index], self.targets is self.features
            return SyntheticData(features, features if same else self.targets[index])
        return SyntheticData(self.features[rows], self.targets[index])

    def touched(self, size: int, batches: int = 50) -> float | None:
        """Return the mean number of distinct words per batch, or None for dense features."""
        if isinstance(self.features, Tensor) and self.features.is_floating_point():
            return None
        rng = np.random.default_rng(SEED)
        drawn = (self.draw(rng, size).features for _ in range(batches))
        words = (batch if isinstance(batch, Tensor) else batch.indices for batch in drawn)
        return float(np.mean([np.unique(np.asarray(batch)).size for batch in words]))


@dataclass(frozen=True)
class Workload(ABC):
    """Data, model and loss of one comparison."""

    name: str
    examples: int
    batch: int

    @abstractmethod
    def data(self) -> SyntheticData:
        """Make the data, which is the same in every process."""

    @abstractmethod
    def model(self) -> nn.Module:
        """Return the model as it is written in plain torch."""

    @abstractmethod
    def tiny(self) -> Workload:
        """Return a small copy of the workload, to warm up and to test with."""

    @property
    def loss(self) -> Loss:
        """Return the loss, which gives one value per example."""
        return losses.cross_entropy

    def parameters(self) -> int:
        """Count the parameters without allocating them."""
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in self.model().parameters())

    def labels(self, rng: np.random.Generator, classes: int) -> Tensor:
        """Draw random labels."""
        return torch.from_numpy(rng.integers(classes, size=self.examples))


@dataclass(frozen=True)
class SparseLogisticRegression(Workload):
    """Logistic regression on L2-normalised counts of about ``words`` distinct words per row."""

    features: int
    classes: int
    words: int = 35

    def data(self) -> SyntheticData:
        """Make sparse rows; the order of the columns is unrelated to word frequency."""
        rng = np.random.default_rng(SEED)
        length = tokens_for(self.words, self.features)
        tokens = zipf(rng, (self.examples, length), self.features)
        counts = np.ones(tokens.size, dtype=np.float32)
        ends = np.arange(self.examples + 1) * length
        shape = (self.examples, self.features)
        rows = sparse.csr_matrix((counts, tokens.ravel(), ends), shape=shape)
        rows.sum_duplicates()
        norms = np.sqrt(np.add.reduceat(rows.data**2, rows.indptr[:-1]))
        rows.data /= np.repeat(norms, np.diff(rows.indptr))
        return SyntheticData(rows, self.labels(rng, self.classes))

    def tiny(self) -> SparseLogisticRegression:
        """Return a copy with 40 words and 3 classes."""
        return replace(self, **_FEW, features=40, classes=3, words=5)

    def model(self) -> nn.Module:
        """Return one linear layer."""
        return nn.Linear(self.features, self.classes)


@dataclass(frozen=True)
class Autoencoder(Workload):
    """The paper's autoencoder on images of random pixels in [0, 1]."""

    widths: tuple[int, ...] = (784, 1000, 500, 250, 30, 250, 500, 1000, 784)

    def data(self) -> SyntheticData:
        """Make images, each of which is its own target."""
        rng = np.random.default_rng(SEED)
        pixels = torch.from_numpy(rng.random((self.examples, self.widths[0]), dtype=np.float32))
        return SyntheticData(pixels, pixels)

    def tiny(self) -> Autoencoder:
        """Return a copy with 12 pixels."""
        return replace(self, **_FEW, widths=(12, 8, 3, 8, 12))

    def model(self) -> nn.Module:
        """Return linear layers with ReLU between them; code and output are linear."""
        linear = {len(self.widths) // 2, len(self.widths) - 1}
        layers: list[nn.Module] = []
        for index, (width, following) in enumerate(pairwise(self.widths), start=1):
            layers += [nn.Linear(width, following), *([] if index in linear else [nn.ReLU()])]
        return nn.Sequential(*layers)

    @property
    def loss(self) -> Loss:
        """Return the mean squared error, one value per image."""
        return losses.squared_error


@dataclass(frozen=True)
class EmbeddingBagClassifier(Workload):
    """A small classifier on the mean word embedding of texts of equal length."""

    vocabulary: int = 100_000
    width: int = 64
    length: int = 100
    classes: int = 20

    def data(self) -> SyntheticData:
        """Make a matrix of Zipf-distributed tokens."""
        rng = np.random.default_rng(SEED)
        tokens = zipf(rng, (self.examples, self.length), self.vocabulary)
        return SyntheticData(torch.from_numpy(tokens), self.labels(rng, self.classes))

    def tiny(self) -> EmbeddingBagClassifier:
        """Return a copy with 30 words and texts of 6 words."""
        return replace(self, **_FEW, vocabulary=30, width=4, length=6, classes=3)

    def model(self) -> nn.Module:
        """Return an embedding bag and two linear layers."""
        return nn.Sequential(
            nn.EmbeddingBag(self.vocabulary, self.width, mode="mean"),
            nn.Linear(self.width, self.width),
            nn.ReLU(),
            nn.Linear(self.width, self.classes),
        )


class LastOutputLstm(nn.Module):
    """An embedding, an LSTM, and a linear layer on its last output."""

    def __init__(self, vocabulary: int, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, num_layers=layers, batch_first=True)
        self.linear = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the score of each class."""
        outputs, _ = self.lstm(self.embedding(tokens))
        scores: Tensor = self.linear(outputs[:, -1])
        return scores


@dataclass(frozen=True)
class LstmClassifier(Workload):
    """An LSTM classifier of texts of equal length."""

    vocabulary: int = 10_000
    width: int = 64
    layers: int = 2
    length: int = 290
    classes: int = 2

    def data(self) -> SyntheticData:
        """Make a matrix of Zipf-distributed tokens."""
        rng = np.random.default_rng(SEED)
        tokens = zipf(rng, (self.examples, self.length), self.vocabulary)
        return SyntheticData(torch.from_numpy(tokens), self.labels(rng, self.classes))

    def tiny(self) -> LstmClassifier:
        """Return a copy with 30 words and texts of 6 words."""
        return replace(self, **_FEW, vocabulary=30, width=4, length=6)

    def model(self) -> nn.Module:
        """Return the LSTM, which has two layers by default."""
        return LastOutputLstm(self.vocabulary, self.width, self.layers, self.classes)


def frequencies(words: int) -> Array:
    """Return word frequencies by Zipf's law, p ∝ 1/rank.

    >>> frequencies(2).round(3).tolist()
    [0.667, 0.333]
    """
    shares = 1 / np.arange(1, words + 1)
    normalised: Array = shares / shares.sum()
    return normalised


def zipf(rng: np.random.Generator, shape: tuple[int, int], words: int) -> Array:
    """Draw words with p ∝ 1/rank, numbered in random order."""
    ranks = np.searchsorted(frequencies(words).cumsum()[:-1], rng.random(shape), side="right")
    return rng.permutation(words)[ranks]


def tokens_for(distinct: int, words: int) -> int:
    """Return how many Zipf tokens have ``distinct`` distinct words on average.

    >>> tokens_for(35, 10_000)
    42
    """
    missed = 1 - frequencies(words)
    length = distinct
    while (1 - missed**length).sum() < distinct - 0.5:
        length += 1
    return length


_WORKLOADS: tuple[Workload, ...] = (
    SparseLogisticRegression(
        "logreg-10k", examples=246_092, batch=64, features=10_000, classes=500
    ),
    SparseLogisticRegression(
        "logreg-10k-50", examples=246_092, batch=64, features=10_000, classes=50
    ),
    SparseLogisticRegression(
        "logreg-1m-50", examples=246_092, batch=64, features=1_000_000, classes=50
    ),
    Autoencoder("autoencoder-64", examples=60_000, batch=64),
    Autoencoder("autoencoder-256", examples=60_000, batch=256),
    EmbeddingBagClassifier("embedding-bag", examples=100_000, batch=256),
    LstmClassifier("lstm", examples=25_000, batch=64),
)
WORKLOADS: dict[str, Workload] = {workload.name: workload for workload in _WORKLOADS}
"""All workloads by the name that `adadps bench --workload` takes."""
