"""What all workloads share: synthetic data, the abstract workload, and words by Zipf's law."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn

from adadps.engine import losses
from adadps.engine.losses import Loss

SEED = 20220717
FEW: dict[str, Any] = {"examples": 1000, "batch": 8}
"""The sizes of every tiny workload."""
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
