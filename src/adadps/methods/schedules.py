"""Schedules: learning rates and mixing weights as public functions of the step t = 1, 2, ..."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from adadps.errors import require

Schedule = float | Callable[[int], float]
"""A constant, or a function of the step t = 1, 2, 3, ..."""


@dataclass(frozen=True)
class InverseSqrt:
    """The schedule α/√t."""

    start: float

    def __call__(self, index: int) -> float:
        """Return the value at step ``index``."""
        return self.start / math.sqrt(index)

    def __str__(self) -> str:
        return f"{self.start:g}/√t"


@dataclass(frozen=True)
class Cosine:
    """The schedule cos(π t / (2 K)), which is 0 from step K on."""

    horizon: int

    def __call__(self, index: int) -> float:
        """Return the value at step ``index``."""
        return math.cos(math.pi * min(index, self.horizon) / (2 * self.horizon))

    def __str__(self) -> str:
        return f"cos(πt/{2 * self.horizon})"


def inverse_sqrt(start: float) -> InverseSqrt:
    """Return α/√t, the learning rate of the paper's convex theorems.

    >>> inverse_sqrt(1.0)(4)
    0.5
    """
    return InverseSqrt(start)


def cosine(horizon: int) -> Cosine:
    """Return cos(π t / 2K), the mixing weight of PDA-DPMD: from almost 1 to 0 over K steps.

    >>> round(cosine(10)(5), 3), round(cosine(10)(10), 3)
    (0.707, 0.0)
    """
    require(horizon >= 1, "a horizon of at least one step", horizon, "Give the number of steps.")
    return Cosine(horizon)


def at(schedule: Schedule, index: int) -> float:
    """Return the value of a schedule at step ``index``.

    >>> at(0.5, 7), at(lambda t: 1 / t, 4)
    (0.5, 0.25)
    """
    return float(schedule(index)) if callable(schedule) else float(schedule)


def described(schedule: Schedule) -> str:
    """Describe a schedule by a text that is the same in every process.

    >>> described(0.5), described(math.sqrt)
    ('0.5', 'sqrt')
    """
    if not callable(schedule):
        return f"{schedule:g}"
    name = getattr(schedule, "__qualname__", None)
    return str(schedule) if name is None else str(name)
