"""Local training as a stage: users contribute a difference of weights instead of a gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from adadps.engine.local import LocalEngine, LocalSteps
from adadps.engine.objective import Objective
from adadps.errors import SideInformationError, require, require_positive
from adadps.methods.side.source import Fixed, Uniform
from adadps.methods.stages.chain import ReadsSide
from adadps.tensors.sums import Params
from adadps.types import Kind


@dataclass(frozen=True)
class TrainLocally:
    """Plain mini-batch SGD on the rows of each user. Build it with `train_locally`."""

    steps: LocalSteps
    replaces_gradients: ClassVar[bool] = True

    @property
    def rule(self) -> Mapping[Kind, Kind]:
        """Takes and gives examples."""
        return {Kind.EXAMPLES: Kind.EXAMPLES}

    def prepare(self, objective: Objective) -> Objective:
        """Replace differentiation by local training."""
        engine = LocalEngine(objective.engine, self.steps, self.scale(objective.params()))
        return replace(objective, engine=engine)

    resume = prepare

    def scale(self, params: Params) -> Params:
        """Return D = 1 for every parameter."""
        return Uniform().init(params).scale

    def __str__(self) -> str:
        return f"train_locally({_described(self.steps)})"


@dataclass(frozen=True)
class TrainLocallyInformed(TrainLocally, ReadsSide):
    """Local training with gradients scaled by 1/A at every local step (Algorithm 3)."""

    side: Fixed

    def scale(self, params: Params) -> Params:
        """Return D = 1/A."""
        return self.side.init(params).scale

    def __str__(self) -> str:
        return f"train_locally({_described(self.steps)}, {self.provenance.source})"


def train_locally(
    *, lr: float, batch_size: int, epochs: int = 1, side: Fixed | None = None
) -> TrainLocally:
    """Let every user train on their own rows and contribute the difference from the start.

    For user-level methods: `privatize(..., groups=by_user(most=...))` clips and noises these
    differences like gradients, and the learning rate of the server is applied to the result: 1.0
    adds the mean difference. ``side`` scales every local gradient by 1/A before any clipping.

    >>> print(train_locally(lr=0.5, batch_size=100))
    train_locally(lr=0.5, batches of 100, 1 epoch)
    """
    require_positive("lr", lr)
    for name, value in (("batch_size", batch_size), ("epochs", epochs)):
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        require(whole, f"a whole number {name} >= 1", value, "Choose at least 1.")
    steps = LocalSteps(float(lr), batch_size, epochs)
    if side is None:
        return TrainLocally(steps)
    if not isinstance(side, Fixed):
        raise SideInformationError(
            f"Expected side information that every device can hold, found {type(side).__name__}. "
            "Use a source that does not change: `side.frequency(...)`, `side.fixed(...)`."
        )
    return TrainLocallyInformed(steps=steps, side=side)


def _described(steps: LocalSteps) -> str:
    passes = "1 epoch" if steps.epochs == 1 else f"{steps.epochs} epochs"
    return f"lr={steps.lr:g}, batches of {steps.batch_size}, {passes}"
