"""Public schedules of the step t = 1, 2, ..."""

from __future__ import annotations

import math
from dataclasses import dataclass

from adadps.types import require


@dataclass(frozen=True)
class InverseSqrt:
    """α/√t."""

    start: float

    def __call__(self, index: int) -> float:
        """Value at step ``index``."""
        return self.start / math.sqrt(index)

    def __str__(self) -> str:
        return f"{self.start:g}/√t"


@dataclass(frozen=True)
class Cosine:
    """cos(π t / (2 K)), 0 from K on."""

    horizon: int

    def __call__(self, index: int) -> float:
        """Value at step ``index``."""
        return math.cos(math.pi * min(index, self.horizon) / (2 * self.horizon))

    def __str__(self) -> str:
        return f"cos(πt/{2 * self.horizon})"


def inverse_sqrt(start: float) -> InverseSqrt:
    """α/√t, the learning rate of the paper's convex theorems.

    >>> inverse_sqrt(1.0)(4)
    0.5
    """
    return InverseSqrt(start)


def cosine(horizon: int) -> Cosine:
    """cos(π t / 2K): from almost 1 to 0 over K steps, the mixing weight of PDA-DPMD.

    >>> round(cosine(10)(5), 3), round(cosine(10)(10), 3)
    (0.707, 0.0)
    """
    require(horizon >= 1, "a horizon of at least one step", horizon, "Give the number of steps.")
    return Cosine(horizon)
