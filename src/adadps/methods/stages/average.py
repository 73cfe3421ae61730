"""The average without privacy, for non-private twins of every method."""

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
    """(1/b) Σ_i g_i with the expected batch size b: exposed, and visibly so."""

    clip_norm: ClassVar[float] = float("inf")
    noise_multiplier: ClassVar[float] = 0.0
    groups: Users | None = None

    @property
    def rule(self) -> Mapping[Kind, Kind]:
        """Gives exposed gradients."""
        return {Kind.PER_UNIT: Kind.EXPOSED}

    def init(self, params: Params) -> Params:
        """The parameters, whose shapes an empty batch's sum will have."""
        return params

    def apply(
        self, signal: GradientBatch, state: Params, step: Step
    ) -> tuple[dict[str, Leaf], Params]:
        """Add up and divide by the expected batch size."""
        total = reduce(signal, torch.ones_like) or zeros_like(state)
        exposed = {name: step.release(value, 0.0) for name, value in total.items()}
        return {name: value / step.expected_size for name, value in exposed.items()}, state

    def __str__(self) -> str:
        return f"average({self.groups or ''})"


def average(*, groups: Users | None = None) -> Average:
    """The mean gradient, without privacy: epsilon is infinite. Of users, with `by_user(...)`."""
    return Average(groups)
