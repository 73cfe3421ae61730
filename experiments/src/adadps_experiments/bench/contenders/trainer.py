"""What a contender is: it prepares data, builds a model, and then steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from adadps_experiments.bench.workloads import SyntheticData, Workload

LR = 0.1
CLIP_NORM = 1.0
NOISE_MULTIPLIER = 1.0
BYTES = 4  # of a float32


@dataclass(frozen=True)
class TimedStep:
    """A model in training: ``step`` draws a fresh batch and moves the weights.

    ``weights`` reads all of them once at the end, where that is work of its own.
    """

    step: Callable[[], object]
    weights: Callable[[], Any] | None = None


Build = Callable[[], TimedStep]
"""Makes the model and everything that it needs; memory is counted from here on."""


@dataclass(frozen=True)
class Trainer:
    """One way to train a workload."""

    name: str
    about: str
    prepare: Callable[[Workload, SyntheticData], Build]
    needs: Callable[[Workload], int]
    """Estimate of the bytes that it needs, so that no machine is brought down."""
    exists: Callable[[Workload], bool] = lambda _: True
    package: str | None = None
    """A package outside of adadps that it needs."""
