"""Names that are common enough to be told: a noisy histogram of what occurs, above a threshold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch

from adadps.accounting.measured.price import Price
from adadps.engine.noise.randomness import Randomness

Name = TypeVar("Name", bound=Hashable)


@dataclass
class NameCounts(Generic[Name]):
    """How many units have each name of one column: at most one each."""

    counts: Counter[Name] = field(default_factory=Counter)

    def add(self, names: Iterable[Name]) -> None:
        """One of each name that is given, each by another unit."""
        self.counts.update(names)

    def release(self, price: Price, randomness: Randomness) -> list[Name]:
        """Those whose noisy count is above τ.

        Names that do not occur have no noise: a name that one unit alone brings can only be told
        apart from them when it passes τ, for which δ_τ was paid.
        """
        if not self.counts:
            return []
        held = torch.tensor(list(self.counts.values()), dtype=torch.float64)
        noisy = randomness.release(held, standard_deviation=price.deviation)
        above = (noisy > price.threshold).tolist()
        return [name for name, kept in zip(self.counts, above, strict=True) if kept]
