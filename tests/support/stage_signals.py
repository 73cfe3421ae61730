"""Every stage of the package, and signals that a single stage can be applied to."""

from __future__ import annotations

import torch

from adadps import public_examples
from adadps.engine.rules.gradients import MaterialisedGradients
from adadps.engine.rules.layered import LayeredGradients
from adadps.engine.waist import ReleasedGradient, Step
from adadps.methods.side import RMSPropStatistics, fixed
from adadps.methods.stages import (
    adagrad,
    adam,
    adam_bc,
    average,
    average_weights,
    clip_adaptively,
    clip_automatically,
    mix,
    momentum,
    precondition,
    pretrain,
    privatize,
    reparametrise,
    rmsprop,
    sgd,
    train_locally,
    unscale,
    update_with,
)
from adadps.tensors.sums import Params

TOLD = {"source": "a book", "public_because": "published"}
DATA = public_examples([[1.0, 0.0], [0.0, 2.0]], [0, 1], batch_size=1, **TOLD)
SIDE = fixed({"weight": (torch.tensor([1.0, 0.5]), 1)}, **TOLD)
RULE = RMSPropStatistics(decay=0.9, epsilon=1e-3)
PRIVACY = privatize(clip_norm=1.0, noise_multiplier=2.0)

STAGES = {
    "precondition": precondition(SIDE),
    "privatize": PRIVACY,
    "clip_adaptively": clip_adaptively(PRIVACY),
    "clip_automatically": clip_automatically(PRIVACY),
    "average": average(),
    "mix": mix(DATA, 0.5),
    "momentum": momentum(0.9),
    "unscale": unscale(SIDE),
    "sgd": sgd(0.1),
    "adam": adam(0.1),
    "adam_bc": adam_bc(0.1),
    "rmsprop": rmsprop(0.1),
    "adagrad": adagrad(0.1),
    "update_with": update_with(torch.optim.AdamW, lr=0.1),
    "average_weights": average_weights(0.9),
}
PREPARATIONS = {
    "reparametrise": reparametrise(SIDE),
    "pretrain": pretrain(DATA, rmsprop(0.1), epochs=1),
    "train_locally": train_locally(lr=0.1, batch_size=2),
}
EVERY = {**STAGES, **PREPARATIONS}
UPDATES = ("sgd", "adam", "rmsprop", "adagrad", "update_with")
"""Those that can stand behind any post-processing; `adam_bc` follows the release."""


def parameters() -> Params:
    return {"weight": torch.zeros(3, 2), "bias": torch.zeros(3)}


def per_unit() -> LayeredGradients:
    weight = torch.arange(24.0).reshape(4, 3, 2) - 11
    present = torch.ones(4, dtype=torch.bool)
    return LayeredGradients(
        {"weight": MaterialisedGradients(weight), "bias": MaterialisedGradients(weight[:, :, 0])},
        present,
    )


def released() -> Params:
    weight = torch.arange(6, dtype=torch.float64).reshape(3, 2) - 2
    return ReleasedGradient({"weight": weight, "bias": weight[:, 0].clone()})


class Loud:
    """Known noise: one standard deviation everywhere."""

    def release(self, total: torch.Tensor, *, standard_deviation: float) -> torch.Tensor:
        return total + standard_deviation


def step(index: int = 1) -> Step:
    gradient = {name: torch.ones_like(p) for name, p in parameters().items()}
    applied = {id(SIDE): SIDE.init(parameters()).scale}
    return Step(
        index=index,
        expected_size=4.0,
        noise=Loud(),
        mean_gradient=lambda _batch: gradient,
        applied=applied,
    )
