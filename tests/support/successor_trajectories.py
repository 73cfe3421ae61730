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
    Z,
    dp_gradient,
    private_gradients,
)

FLOOR, STABILITY = 0.05, 0.5


def dp_adam_bc() -> Direction:
    """m̂ / √max(v̂ - (σC/b)², γ)."""
    first, second = MovingAverage(0.9), MovingAverage(0.999)

    def direction(w: Vector, t: int) -> Vector:
        g = dp_gradient(w, t)
        v = second.add_debiased(g**2) - (SIGMA * C / EXPECTED_SIZE) ** 2
        return first.add_debiased(g) / np.sqrt(np.maximum(v, FLOOR))

    return direction


def auto_clip(w: Vector, t: int) -> Vector:
    """(1/b) (Σ C g / (‖g‖ + γ) + N(0, σ²C²))."""
    scaled = [C * g / (np.linalg.norm(g) + STABILITY) for g in private_gradients(w, t)]
    return (sum(scaled) + SIGMA * C * Z[t - 1]) / EXPECTED_SIZE
