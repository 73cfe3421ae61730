"""Sixteen settings for each method of the text experiments, free of scale.

``lengths`` are four lengths of a step for methods that step along clipped gradients; they belong to
the problem. Adaptive updates and training without privacy have grids of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from adadps_experiments.reproduce.results import Setting

Grid = Callable[[tuple[float, ...]], list[Setting]]

SHAPES = ((0.3, 0.5), (0.03, 0.5), (0.01, 0.5), (0.01, 1.0))
"""Floor and power of A = max(f/f_max, floor)^power."""
DIRECTIONS = ((0.01, 1.0), (0.01, 0.5), (0.01, -0.5), (0.01, -1.0))
"""Floor and power of A from TF-IDF; negative powers are inversely proportional."""
FLOORS = (1e-4, 1e-3, 3e-3, 1e-2)
"""What is added to the root of the public second moment, in typical norms."""


def clip_and_length(lengths: tuple[float, ...]) -> list[Setting]:
    """Clip norms and lengths: DP-SGD and what steps like it."""
    return [{"clip": c, "length": s} for c, s in product((0.25, 0.5, 1.0, 2.0), lengths)]


def noisy_adaptive(lengths: tuple[float, ...]) -> list[Setting]:  # noqa: ARG001
    """Clip norms and rates of Adam and RMSProp on noisy gradients."""
    rates = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28)
    return [{"clip": c, "length": s} for c, s in product((0.25, 0.75), rates)]


def shapes(lengths: tuple[float, ...]) -> list[Setting]:
    """Shapes of A from word frequencies, and lengths."""
    return [
        {"clip": 0.5, "length": s, "floor": floor, "power": power}
        for (floor, power), s in product(SHAPES, lengths)
    ]


def directions(lengths: tuple[float, ...]) -> list[Setting]:
    """Both readings of the paper: A proportional to TF-IDF, and inversely proportional."""
    return [
        {"clip": 0.5, "length": s, "floor": floor, "power": power}
        for (floor, power), s in product(DIRECTIONS, lengths)
    ]


def floors(lengths: tuple[float, ...]) -> list[Setting]:
    """Floors of A from public gradients, and lengths."""
    return [{"clip": 0.25, "length": s, "floor": f} for f, s in product(FLOORS, lengths)]


def starts(lengths: tuple[float, ...]) -> list[Setting]:
    """Rates of the training on public examples that comes first, and lengths."""
    return [
        {"clip": 0.5, "length": s, "public_length": start}
        for start, s in product((0.01, 0.03, 0.1, 0.3), lengths)
    ]


def starts_and_shape(lengths: tuple[float, ...]) -> list[Setting]:
    """The same, with one shape of A from word frequencies."""
    return [{**one, "floor": 0.01, "power": 0.5} for one in starts(lengths)]


def rates(lengths: tuple[float, ...]) -> list[Setting]:  # noqa: ARG001
    """Rates of Adam without privacy."""
    return [{"length": 0.002 * 2.0**power} for power in range(-2, 14)]


def long_rates(lengths: tuple[float, ...]) -> list[Setting]:  # noqa: ARG001
    """Rates of SGD without privacy."""
    return [{"length": 0.25 * 2.0**power} for power in range(-2, 14)]


def shapes_and_rates(lengths: tuple[float, ...]) -> list[Setting]:  # noqa: ARG001
    """Shapes of A and rates, without privacy."""
    return [
        {"length": 2.0 * 4.0**power, "floor": floor, "power": shape}
        for (floor, shape), power in product(SHAPES, range(4))
    ]


def floors_and_rates(lengths: tuple[float, ...]) -> list[Setting]:  # noqa: ARG001
    """Floors of A and rates, without privacy."""
    return [
        {"length": 0.5 * 4.0**power, "floor": floor} for floor, power in product(FLOORS, range(4))
    ]
