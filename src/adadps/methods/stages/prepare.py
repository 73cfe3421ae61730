"""Stages that act once, before the first step: weighted features, and pretraining."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from adadps.data.examples import PublicExamples
from adadps.engine.noise.randomness import secure
from adadps.engine.objective import Objective
from adadps.engine.waist import Step
from adadps.errors import OrderError, SideInformationError, require
from adadps.methods.side.source import SideSource
from adadps.methods.stages.chain import ReadsPublic, ReadsSide, Stage
from adadps.tensors.sums import Params
from adadps.types import Kind

_BEFORE: Mapping[Kind, Kind] = {Kind.EXAMPLES: Kind.EXAMPLES}


@dataclass(frozen=True)
class Reparametrise(ReadsSide):
    """Replaces rows x by s ∘ x / ‖s ∘ x‖ with s = 1/A, one value per feature."""

    at: str

    @property
    def rule(self) -> Mapping[Kind, Kind]:
        """Takes and gives examples."""
        return _BEFORE

    def prepare(self, objective: Objective) -> Objective:
        """Read the side information at the initial weights, and average it over the other axes."""
        params = objective.params()
        if self.at not in params:
            raise SideInformationError(
                f"Expected a parameter whose last axis runs over the features, found '{self.at}'. "
                f"Name one of the model's: {', '.join(params)}."
            )
        transform, _ = self.side.observe(self.side.init(params), _still(objective, params))
        return objective.reparametrised(_per_feature(transform.scale[self.at], params[self.at]))

    def resume(self, objective: Objective) -> Objective:
        """Return the objective as it is: the checkpoint holds the weights of the features."""
        return objective

    def __str__(self) -> str:
        return f"reparametrise({self.provenance.source})"


@dataclass(frozen=True)
class Pretrain(ReadsPublic):
    """Trains on public data alone, before the first private step."""

    update: Stage
    epochs: int

    @property
    def rule(self) -> Mapping[Kind, Kind]:
        """Takes and gives examples."""
        return _BEFORE

    def prepare(self, objective: Objective) -> Objective:
        """Run the update on public mini-batches, on the parameters of the model itself."""
        params = objective.params()
        state = self.update.init(params)
        batches = -(-len(self.public.examples) // self.public.batch_size)
        for index in range(1, self.epochs * batches + 1):
            step = _still(objective, params, index)
            update, state = self.update.apply(step.public_gradient(self.public), state, step)
            for name, value in params.items():
                value.mul_(update.keep).add_(update[name].to(value.dtype))
        return objective

    def resume(self, objective: Objective) -> Objective:
        """Return the objective as it is: the checkpoint holds the weights."""
        return objective

    def __str__(self) -> str:
        return f"pretrain({self.provenance.source}, {self.epochs} epochs)"


def reparametrise(side: SideSource, *, at: str = "weight") -> Reparametrise:
    """Apply side information to the features: weight them by 1/A and re-normalise each row.

    Every row then has norm 1, so that one clip norm fits all of them. ``at`` names the parameter
    whose last axis runs over the features.
    """
    return Reparametrise(side, at)


def pretrain(public: PublicExamples, update: Stage, *, epochs: int) -> Pretrain:
    """Start from weights trained on public data: ``pretrain(data, rmsprop(0.01), epochs=10)``."""
    require(epochs >= 1, "epochs >= 1", epochs, "To skip pretraining, leave the stage out.")
    if Kind.UPDATE not in update.rule.values():
        raise OrderError(
            f"Expected an update to pretrain with, found `{update}`. Use `rmsprop(...)`, "
            "`adam(...)`, `sgd(...)` or `adagrad(...)`."
        )
    return Pretrain(public, update, epochs)


def _still(objective: Objective, params: Params, index: int = 1) -> Step:
    """Return a step that reads public data only."""
    device = next(iter(params.values())).device
    return Step(
        index=index,
        expected_size=1.0,
        noise=secure(),
        mean_gradient=lambda public: objective.mean_gradient(params, public.examples.to(device)),
    )


def _per_feature(scale: Tensor, parameter: Tensor) -> Tensor:
    full = scale.expand(parameter.shape)
    averaged = full.flatten(0, -2).mean(0) if full.ndim > 1 else full
    return (averaged / averaged.max()).to(torch.float32)
