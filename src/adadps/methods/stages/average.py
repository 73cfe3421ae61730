"""The average without privacy, for the non-private twin of every method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from adadps.engine.waist import GradientBatch, Leaf, Step, reduce, zeros_like
from adadps.methods.stages.users import Users
from adadps.tensors.sums import Params
from adadps.types import Kind


@dataclass(frozen=True)
class Average:
    """(1/b) Σ_i g_i with the expected batch size b; its result is marked as exposed."""

    clip_norm: ClassVar[float] = float("inf")
    noise_multiplier: ClassVar[float] = 0.0
    groups: Users | None = None

    @property
    def rule(self) -> Mapping[Kind, Kind]:
        """Takes per-unit gradients and gives exposed ones."""
        return {Kind.PER_UNIT: Kind.EXPOSED}

    def init(self, params: Params) -> Params:
        """Return the parameters: the sum of an empty batch has their shapes."""
        return params

    def apply(
        self, signal: GradientBatch, state: Params, step: Step
    ) -> tuple[dict[str, Leaf], Params]:
        """Sum the gradients and divide by the expected batch size."""
        total = reduce(signal, torch.ones_like) or zeros_like(state)
        exposed = {name: step.release(value, 0.0) for name, value in total.items()}
        return {name: value / step.expected_size for name, value in exposed.items()}, state

    def __str__(self) -> str:
        return f"average({self.groups or ''})"


def average(*, groups: Users | None = None) -> Average:
    """Return the mean gradient without privacy, so that epsilon is infinite.

    With ``groups=by_user(...)`` it is the mean over users.
    """
    return Average(groups)
