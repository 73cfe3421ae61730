"""The formulas of the successors' methods, in plain numpy, on the problem of the trajectories."""

from __future__ import annotations

import numpy as np

from support.trajectories import (
    EXPECTED_SIZE,
    SIGMA,
    C,
    Direction,
    MovingAverage,
    Vector,
    dp_gradient,
)

FLOOR = 0.05


def dp_adam_bc() -> Direction:
    """m̂ / √max(v̂ - (σC/b)², γ)."""
    first, second = MovingAverage(0.9), MovingAverage(0.999)

    def direction(w: Vector, t: int) -> Vector:
        g = dp_gradient(w, t)
        v = second.add_debiased(g**2) - (SIGMA * C / EXPECTED_SIZE) ** 2
        return first.add_debiased(g) / np.sqrt(np.maximum(v, FLOOR))

    return direction
