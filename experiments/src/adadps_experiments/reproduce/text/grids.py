"""Sixteen scale-free settings for each method of the text experiments.

``lengths`` are the problem's four step lengths for methods that step along clipped gradients.
Adaptive updates and training without privacy have other grids.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from adadps_experiments.reproduce.results import Setting

Grid = Callable[[tuple[float, ...]], list[Setting]]

SHAPES = ((0.3, 0.5), (0.03, 0.5), (0.01, 0.5), (0.01, 1.0))
"""Floor and power of A = max(f/f_max, floor)^power."""
DIRECTIONS = ((0.01, 1.0), (0.01, 0.5), (0.01, -0.5), (0.01, -1.0))
"""Floor and power of A from TF-IDF; a negative power makes A inversely proportional."""
FLOORS = (1e-4, 1e-3, 3e-3, 1e-2)
"""Added to the root of the public second moment, in typical norms."""


def clip_and_length(lengths: tuple[float, ...]) -> list[Setting]:
    """Return clip norms and lengths for DP-SGD and similar updates."""
    return [{"clip": c, "length": s} for c, s in product((0.25, 0.5, 1.0, 2.0), lengths)]


def noisy_adaptive(lengths: tuple[float, ...]) -> list[Setting]:  # noqa: ARG001
    """Return clip norms and rates of Adam and RMSProp on noisy gradients."""
    rates = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28)
    return [{"clip": c, "length": s} for c, s in product((0.25, 0.75), rates)]


def shapes(lengths: tuple[float, ...]) -> list[Setting]:
    """Return shapes of A from word frequencies, and lengths."""
    return [
        {"clip": 0.5, "length": s, "floor": floor, "power": power}
        for (floor, power), s in product(SHAPES, lengths)
    ]


def directions(lengths: tuple[float, ...]) -> list[Setting]:
    """Return both readings of the paper: A proportional and inversely proportional to TF-IDF."""
    return [
        {"clip": 0.5, "length": s, "floor": floor, "power": power}
        for (floor, power), s in product(DIRECTIONS, lengths)
    ]


def floors(lengths: tuple[float, ...]) -> list[Setting]:
    """Return floors of A from public gradients, and lengths."""
    return [{"clip": 0.25, "length": s, "floor": f} for f, s in product(FLOORS, lengths)]


def starts(lengths: tuple[float, ...]) -> list[Setting]:
    """Return rates of the warm start on public examples, and lengths."""
    return [
        {"clip": 0.5, "length": s, "public_length": start}
        for start, s in product((0.01, 0.03, 0.1, 0.3), lengths)
    ]


def starts_and_shape(lengths: tuple[float, ...]) -> list[Setting]:
    """Return the settings of `starts` with one shape of A from word frequencies."""
    return [{**one, "floor": 0.01, "power": 0.5} for one in starts(lengths)]


def rates(lengths: tuple[float, ...]) -> list[Setting]:  # noqa: ARG001
    """Return rates of Adam without privacy."""
    return [{"length": 0.002 * 2.0**power} for power in range(-2, 14)]


def long_rates(lengths: tuple[float, ...]) -> list[Setting]:  # noqa: ARG001
    """Return rates of SGD without privacy."""
    return [{"length": 0.25 * 2.0**power} for power in range(-2, 14)]


def shapes_and_rates(lengths: tuple[float, ...]) -> list[Setting]:  # noqa: ARG001
    """Return shapes of A and rates, without privacy."""
    return [
        {"length": 2.0 * 4.0**power, "floor": floor, "power": shape}
        for (floor, shape), power in product(SHAPES, range(4))
    ]


def floors_and_rates(lengths: tuple[float, ...]) -> list[Setting]:  # noqa: ARG001
    """Return floors of A and rates, without privacy."""
    return [
        {"length": 0.5 * 4.0**power, "floor": floor} for floor, power in product(FLOORS, range(4))
    ]
