"""The average without privacy, for non-private twins of every method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from adadps.gradients.waist import GradientBatch, reduce
from adadps.types import Kind, Params, Step


@dataclass(frozen=True)
class Average:
    """(1/b) Σ_i g_i with the expected batch size b: exposed, and visibly so."""

    clip_norm: ClassVar[float] = float("inf")
    noise_multiplier: ClassVar[float] = 0.0
    groups: ClassVar[None] = None

    @property
    def rule(self) -> Mapping[Kind, Kind]:
        """Gives exposed gradients."""
        return {Kind.PER_UNIT: Kind.EXPOSED}

    def init(self, params: Params) -> Params:
        """Zeros of the model's shape: the sum of an empty batch."""
        return {name: torch.zeros_like(p, dtype=torch.float64) for name, p in params.items()}

    def apply(self, signal: GradientBatch, state: Params, step: Step) -> tuple[Params, Params]:
        """Add up and divide by the expected batch size."""
        total = reduce(signal, torch.ones_like) or state
        return {name: value / step.expected_size for name, value in total.items()}, state

    def __str__(self) -> str:
        return "average()"


def average() -> Average:
    """The mean gradient, without privacy: epsilon is infinite."""
    return Average()
