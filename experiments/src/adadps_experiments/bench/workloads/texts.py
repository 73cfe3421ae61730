"""Workloads on texts of equal length: words by Zipf's law, and random labels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from adadps_experiments.bench.workloads.base import FEW, SEED, SyntheticData, Workload, zipf

FEW_WORDS: dict[str, Any] = {**FEW, "vocabulary": 30, "width": 4, "length": 6}
"""The sizes of every tiny workload on texts."""


@dataclass(frozen=True)
class TextClassifier(Workload):
    """A classifier of texts that embeds each word."""

    vocabulary: int = 10_000
    width: int = 64
    length: int = 128
    classes: int = 2

    def data(self) -> SyntheticData:
        """Make a matrix of Zipf-distributed tokens."""
        rng = np.random.default_rng(SEED)
        tokens = zipf(rng, (self.examples, self.length), self.vocabulary)
        return SyntheticData(torch.from_numpy(tokens), self.labels(rng, self.classes))

    def tiny(self) -> TextClassifier:
        """Return a copy with 30 words and texts of 6 words."""
        return replace(self, **FEW_WORDS)


@dataclass(frozen=True)
class EmbeddingBagClassifier(TextClassifier):
    """A small classifier on the mean word embedding."""

    vocabulary: int = 100_000
    length: int = 100
    classes: int = 20

    def tiny(self) -> TextClassifier:
        """Return a copy with 3 classes."""
        return replace(self, **FEW_WORDS, classes=3)

    def model(self) -> nn.Module:
        """Return an embedding bag and two linear layers."""
        return nn.Sequential(
            nn.EmbeddingBag(self.vocabulary, self.width, mode="mean"),
            nn.Linear(self.width, self.width),
            nn.ReLU(),
            nn.Linear(self.width, self.classes),
        )


class LastOutput(nn.Module):
    """An embedding, a recurrent layer, and a linear layer on its last output."""

    def __init__(self, vocabulary: int, recurrent: nn.RNNBase, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, recurrent.input_size)
        self.recurrent = recurrent
        self.linear = nn.Linear(recurrent.hidden_size, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the score of each class."""
        outputs, _ = self.recurrent(self.embedding(tokens))
        scores: Tensor = self.linear(outputs[:, -1])
        return scores


@dataclass(frozen=True)
class LstmClassifier(TextClassifier):
    """Two layers of an LSTM."""

    layers: int = 2
    length: int = 290

    def model(self) -> nn.Module:
        """Return the LSTM, which has two layers by default."""
        lstm = nn.LSTM(self.width, self.width, num_layers=self.layers, batch_first=True)
        return LastOutput(self.vocabulary, lstm, self.classes)


@dataclass(frozen=True)
class GruClassifier(TextClassifier):
    """One layer of a GRU."""

    def model(self) -> nn.Module:
        """Return the GRU."""
        gru = nn.GRU(self.width, self.width, batch_first=True)
        return LastOutput(self.vocabulary, gru, self.classes)


class SmallTransformer(nn.Module):
    """Words plus learned positions, encoder layers, the mean over time, and a linear layer."""

    def __init__(
        self, vocabulary: int, length: int, classes: int, layers: list[nn.TransformerEncoderLayer]
    ) -> None:
        super().__init__()
        width = layers[0].linear1.in_features
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))
        self.layers = nn.ModuleList(layers)
        self.linear = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the score of each class."""
        hidden = self.embedding(tokens) + self.positions
        for layer in self.layers:
            hidden = layer(hidden)
        scores: Tensor = self.linear(hidden.mean(1))
        return scores


@dataclass(frozen=True)
class TransformerClassifier(TextClassifier):
    """Two encoder layers, without dropout, which private training rarely wants."""

    width: int = 128
    layers: int = 2
    heads: int = 4
    feed_forward: int = 512

    def tiny(self) -> TextClassifier:
        """Return a copy with two heads and a narrow feed-forward layer."""
        return replace(self, **FEW_WORDS, heads=2, feed_forward=8)

    def model(self) -> nn.Module:
        """Return the encoder, with one parameter for the positions."""
        layers = [
            nn.TransformerEncoderLayer(
                self.width, self.heads, self.feed_forward, dropout=0.0, batch_first=True
            )
            for _ in range(self.layers)
        ]
        return SmallTransformer(self.vocabulary, self.length, self.classes, layers)


class ConvolutionOverTime(nn.Module):
    """An embedding, a convolution over time, its maximum, and a linear layer."""

    def __init__(
        self, vocabulary: int, width: int, channels: int, kernel: int, classes: int
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.conv = nn.Conv1d(width, channels, kernel)
        self.linear = nn.Linear(channels, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the score of each class."""
        maps = functional.relu(self.conv(self.embedding(tokens).transpose(1, 2)))
        scores: Tensor = self.linear(maps.amax(2))
        return scores


@dataclass(frozen=True)
class Conv1dClassifier(TextClassifier):
    """A convolution of five words."""

    length: int = 200
    channels: int = 128
    kernel: int = 5

    def tiny(self) -> TextClassifier:
        """Return a copy with five channels of two words."""
        return replace(self, **FEW_WORDS, channels=5, kernel=2)

    def model(self) -> nn.Module:
        """Return the convolution, in a module with its own forward."""
        return ConvolutionOverTime(
            self.vocabulary, self.width, self.channels, self.kernel, self.classes
        )
