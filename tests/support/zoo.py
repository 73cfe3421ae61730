"""A zoo of small models as users write them; each is trained right, or refused with the cure."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from adadps.data.examples import Examples, examples
from support.problems import cross_entropy, squared

SIZE, STEPS, WORDS, CLASSES = 6, 5, 7, 2


@dataclass(frozen=True)
class Entry:
    """A model, the rows that it reads, and its loss."""

    build: Callable[[], nn.Module]
    rows: Callable[[np.random.Generator, int], torch.Tensor]
    classes: int | None = None
    """Targets are classes, this many; otherwise two numbers."""
    evaluating: bool = False
    """Compare in evaluation mode: the model draws at random while it is trained."""
    outputs: tuple[int, ...] = (CLASSES,)

    def model(self, dtype: torch.dtype = torch.float32) -> nn.Module:
        """The model with the same weights in every call, none of them at a special value."""
        torch.manual_seed(3)
        model = self.build()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim < 2 or not bool(parameter.abs().sum()):
                    parameter.add_(0.2 * torch.randn(parameter.shape))
        return model.eval().to(dtype) if self.evaluating else model.to(dtype)

    def batch(self, seed: int = 0, size: int = SIZE, dtype: torch.dtype = torch.float32):
        """Features and targets of ``size`` examples."""
        rng = np.random.default_rng(seed)
        rows = self.rows(rng, size)
        if self.classes is not None:
            targets = torch.from_numpy(rng.integers(self.classes, size=size))
        else:
            targets = torch.from_numpy(rng.normal(size=(size, *self.outputs))).to(dtype)
        return examples(rows.to(dtype) if rows.is_floating_point() else rows, targets)

    @property
    def loss(self):
        """One value per example."""
        return summed if self.classes is None else cross_entropy


def summed(outputs, targets):
    return squared(outputs.flatten(1), targets.flatten(1))


def numbers(*shape):
    """Rows of normal numbers."""
    return lambda rng, size: torch.from_numpy(rng.normal(size=(size, *shape))).float()


def words(count=WORDS, length=STEPS):
    """Rows of words; word 0 is padding at the end of some of them."""

    def rows(rng, size):
        tokens = torch.from_numpy(rng.integers(1, count, size=(size, length)))
        lengths = torch.from_numpy(rng.integers(2, length + 1, size=size))
        return tokens * (torch.arange(length) < lengths[:, None])

    return rows


def with_lengths(width):
    """Sequences whose last column is their length, the same at every step."""

    def rows(rng, size):
        values = torch.from_numpy(rng.normal(size=(size, STEPS, width))).float()
        lengths = torch.from_numpy(rng.integers(1, STEPS + 1, size=size)).float()
        return torch.cat([values, lengths.view(-1, 1, 1).expand(-1, STEPS, 1)], 2)

    return rows


def split_lengths(rows):
    """The sequences, and their lengths within 1 and the number of steps."""
    lengths = torch.nan_to_num(rows[:, 0, -1]).long().clamp(1, rows.shape[1])
    return rows[..., :-1], lengths


def replaced(batch: Examples, other: Examples, row: int) -> Examples:
    """``batch`` with one row of ``other``."""
    features, targets = batch.features.clone(), batch.targets.clone()
    features[row], targets[row] = other.features[row], other.targets[row]
    return Examples(features, targets)
