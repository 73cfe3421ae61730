"""What a contender is: it prepares data, builds a model, and takes training steps."""

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
    """A model in training: ``step`` draws a fresh batch and updates the weights.

    ``weights`` reads all weights once at the end, for contenders that defer work until then.
    ``engine`` says in a few words how gradients are computed, for contenders that choose a way.
    """

    step: Callable[[], object]
    weights: Callable[[], Any] | None = None
    engine: str | None = None


Build = Callable[[], TimedStep]
"""Makes the model and all that training needs; memory is measured from this call on."""


@dataclass(frozen=True)
class Trainer:
    """One way to train a workload."""

    name: str
    about: str
    prepare: Callable[[Workload, SyntheticData], Build]
    needs: Callable[[Workload], int]
    """An estimate of the bytes it needs, so that no measurement exhausts the machine."""
    exists: Callable[[Workload], bool] = lambda _: True
    package: str | None = None
    """The package other than adadps that it needs, if any."""
