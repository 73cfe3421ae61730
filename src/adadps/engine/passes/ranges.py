"""Which integers a model and its loss can read: words that have a row in a table, and classes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from adadps.data.examples import Examples
from adadps.data.fields import Features, Fields
from adadps.engine.losses import IGNORED

ANY = 2**62
"""The size of a table that does not exist: any integer fits."""


@dataclass(frozen=True)
class Ranges:
    """For each place of each input of integers the rows of its table; the number of classes."""

    sizes: tuple[Tensor, ...]
    classes: int | None

    def of_features(self, features: Features) -> Tensor:
        """Mark the rows whose integers have a row in their table."""
        fits = [
            ((held >= 0) & (held < sizes.to(held.device))).reshape(len(held), -1).all(1)
            for held, sizes in zip(integers_of(features), self.sizes, strict=True)
            if bool((sizes < ANY).any())
        ]
        rows = len(features)
        return torch.stack(fits).all(0) if fits else torch.ones(rows, dtype=torch.bool)

    def of_targets(self, targets: Tensor) -> Tensor:
        """Mark the rows whose targets are classes, or are ignored."""
        if self.classes is None:
            return torch.ones(len(targets), dtype=torch.bool, device=targets.device)
        fits = (targets >= 0) & (targets < self.classes) | (targets == IGNORED)
        return fits.reshape(len(targets), -1).all(1)

    def hold(self, rows: Examples) -> Tensor:
        """Mark the rows that the model and the loss can read."""
        targets = self.of_targets(rows.targets)
        return targets & self.of_features(rows.features).to(targets.device)


def integers_of(features: Features) -> list[Tensor]:
    """Return the inputs that may be words of a table."""
    tensors = features.tensors if isinstance(features, Fields) else (features,)
    return [
        tensor
        for tensor in tensors
        if isinstance(tensor, Tensor)
        and not (tensor.is_floating_point() or tensor.dtype is torch.bool)
    ]
