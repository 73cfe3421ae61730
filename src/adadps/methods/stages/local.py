"""Local training as a stage: what a user brings is a way that they have gone, not a gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from adadps.engine.local import LocalEngine, LocalSteps
from adadps.engine.objective import Objective
from adadps.errors import SideInformationError, require, require_positive
from adadps.methods.side.fixed import Fixed, Uniform
from adadps.methods.stages.informed import ReadsSide
from adadps.tensors.sums import Params
from adadps.types import Kind


@dataclass(frozen=True)
class TrainLocally:
    """Users train by plain mini-batch SGD. Build it with `train_locally`."""

    steps: LocalSteps

    @property
    def rule(self) -> Mapping[Kind, Kind]:
        """Takes and gives examples."""
        return {Kind.EXAMPLES: Kind.EXAMPLES}

    def prepare(self, objective: Objective) -> Objective:
        """Train where the objective would differentiate."""
        engine = LocalEngine(objective.engine, self.steps, self.scale(objective.params()))
        return replace(objective, engine=engine)

    resume = prepare

    def scale(self, params: Params) -> Params:
        """D = 1 for every parameter."""
        return Uniform().init(params).scale

    def __str__(self) -> str:
        steps = self.steps
        return f"train_locally({_described(steps)})"


@dataclass(frozen=True)
class TrainLocallyInformed(TrainLocally, ReadsSide):
    """The same with gradients scaled by 1/A at every local step (Algorithm 3)."""

    side: Fixed

    def scale(self, params: Params) -> Params:
        """D = 1/A."""
        return self.side.init(params).scale

    def __str__(self) -> str:
        return f"train_locally({_described(self.steps)}, {self.provenance.source})"


def train_locally(
    *, lr: float, batch_size: int, epochs: int = 1, side: Fixed | None = None
) -> TrainLocally:
    """Let every user train on their own rows, and bring the difference to where they began.

    For methods by user: what they bring is clipped and noised by `privatize(..., groups=by_user(
    most=...))` as a gradient would be, and the server's learning rate follows: 1.0 adds the mean
    difference. ``side`` scales every local gradient by 1/A before any clip.

    >>> print(train_locally(lr=0.5, batch_size=100))
    train_locally(lr=0.5, batches of 100, 1 epoch)
    """
    require_positive("lr", lr)
    for name, value in (("batch_size", batch_size), ("epochs", epochs)):
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        require(whole, f"a whole number {name} >= 1", value, "It counts a user's own rows.")
    steps = LocalSteps(float(lr), batch_size, epochs)
    if side is None:
        return TrainLocally(steps)
    if not isinstance(side, Fixed):
        raise SideInformationError(
            f"Expected side information that every device can hold, found {type(side).__name__}. "
            "Give one that does not change: `side.frequency(...)`, `side.fixed(...)`."
        )
    return TrainLocallyInformed(steps=steps, side=side)


def _described(steps: LocalSteps) -> str:
    passes = "1 epoch" if steps.epochs == 1 else f"{steps.epochs} epochs"
    return f"lr={steps.lr:g}, batches of {steps.batch_size}, {passes}"
