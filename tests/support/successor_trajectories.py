"""The formulas of the successors' methods, in plain numpy, on the problem of the trajectories."""

from __future__ import annotations

import numpy as np

from support.trajectories import (
    EXPECTED_SIZE,
    SIGMA,
    START,
    WEIGHTS,
    C,
    Direction,
    MovingAverage,
    Vector,
    Z,
    dp_gradient,
    noised,
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


def dp2(delay: int, reuse: int, factor: float) -> Direction:
    """DP²: G sums s releases with D = 1, then D = √v + ε with v ← β v + (1 - β) (G/s)².

    The learning rate is ``factor`` times as large where gradients are divided by D.
    """
    v, total = np.zeros_like(START), np.zeros_like(START)

    def direction(w: Vector, t: int) -> Vector:
        nonlocal v, total
        place = (t - 1) % (delay + reuse)
        if place == delay:
            v = 0.6 * v + 0.4 * (total / delay) ** 2
        if place >= delay:
            total = np.zeros_like(START)
            return factor * noised(1.5 * private_gradients(w, t) / (np.sqrt(v) + 0.2), t)
        released = noised(private_gradients(w, t), t)
        total = total + released
        return released

    return direction


def scale_then_privatize() -> Direction:
    """D = m/(√v̂ + ε) of the releases so far, clip and noise, divide by D, then Adam."""
    first, second = MovingAverage(0.8), MovingAverage(0.7)

    def direction(w: Vector, t: int) -> Vector:
        d = np.ones_like(START)
        if second.count:
            root = np.sqrt(second.value / (1 - 0.7**second.count)) + 0.1
            d = np.sqrt((root**2).mean()) / root
        g = noised(d * private_gradients(w, t), t) / d
        return first.add_debiased(g) / (np.sqrt(second.add_debiased(g**2)) + 0.1)

    return direction


def adaptive_clip(quantile: float, rate: float, share: float) -> Direction:
    """Noise of σC/√(1-share) on the sum and ½σ/√share on Σ(±½); then the next C."""
    bound = C

    def direction(w: Vector, t: int) -> Vector:
        nonlocal bound
        each, z = private_gradients(w, t), Z[t - 1]
        norms = np.linalg.norm(each, axis=1)
        total = sum(g * min(1.0, bound / norm) for g, norm in zip(each, norms, strict=True))
        noise = SIGMA * bound / np.sqrt(1 - share) * z
        count = np.where(norms <= bound, 0.5, -0.5).sum()
        count += 0.5 * SIGMA / np.sqrt(share) * z[WEIGHTS]
        bound = bound * np.exp(-rate * (0.5 + count / EXPECTED_SIZE - quantile))
        return (total + noise) / EXPECTED_SIZE

    return direction
