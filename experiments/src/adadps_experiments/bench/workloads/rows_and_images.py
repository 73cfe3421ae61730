"""Workloads on sparse rows and on images."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn
from torch.nn import functional

from adadps.engine import losses
from adadps.engine.losses import Loss
from adadps_experiments.bench.workloads.base import (
    FEW,
    SEED,
    SyntheticData,
    Workload,
    tokens_for,
    zipf,
)


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
        return replace(self, **FEW, features=40, classes=3, words=5)

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
        return replace(self, **FEW, widths=(12, 8, 3, 8, 12))

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


class SmallCnn(nn.Module):
    """The small network for MNIST of the tutorials on private training, for images of any size."""

    def __init__(self, size: int, channels: tuple[int, int], hidden: int, classes: int) -> None:
        super().__init__()
        first, second = channels
        self.conv1 = nn.Conv2d(1, first, 8, stride=2, padding=3)
        self.conv2 = nn.Conv2d(first, second, 4, stride=2)
        self.pool = nn.MaxPool2d(2, 1)
        left = ((size - 2) // 2 - 4) // 2  # per side, after two convolutions and two pools
        self.fc1 = nn.Linear(second * left**2, hidden)
        self.fc2 = nn.Linear(hidden, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the score of each class."""
        maps = self.pool(functional.relu(self.conv1(images)))
        maps = self.pool(functional.relu(self.conv2(maps)))
        scores: Tensor = self.fc2(functional.relu(self.fc1(maps.flatten(1))))
        return scores


@dataclass(frozen=True)
class ImageClassifier(Workload):
    """A small convolutional network on square images of random pixels in [0, 1]."""

    size: int = 28
    channels: tuple[int, int] = (16, 32)
    hidden: int = 32
    classes: int = 10

    def data(self) -> SyntheticData:
        """Make images of one channel."""
        rng = np.random.default_rng(SEED)
        shape = (self.examples, 1, self.size, self.size)
        pixels = torch.from_numpy(rng.random(shape, dtype=np.float32))
        return SyntheticData(pixels, self.labels(rng, self.classes))

    def tiny(self) -> ImageClassifier:
        """Return a copy with 16 x 16 pixels and few channels."""
        return replace(self, **FEW, size=16, channels=(2, 3), hidden=4, classes=3)

    def model(self) -> nn.Module:
        """Return two convolutions and two linear layers, in a module with its own forward."""
        return SmallCnn(self.size, self.channels, self.hidden, self.classes)
