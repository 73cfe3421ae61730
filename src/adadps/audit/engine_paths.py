"""The library's own methods on each of its ways through the engines, as trainers to audit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from adadps.accounting import Budget, calibrate_noise
from adadps.audit.repeated import Neighbours, Trainer, trainer_of
from adadps.audit.worst_case import WIDTH, half_squared, worst_case, zero_linear
from adadps.data.examples import PublicExamples, public_examples
from adadps.errors import SettingError
from adadps.methods import adadps, adadps_public, dp_adam, dp_sgd
from adadps.sampling import Poisson, poisson
from adadps.side import RMSPropStatistics, frequency
from adadps.side.frequency import given_frequencies
from adadps.stages import Chain, privatize
from adadps.stages.privatize import Privatize
from adadps.types import Accountant

RATE = 0.5
"""The learning rate; it changes nothing about what an observer of every step sees."""


class NotPlain(nn.Parameter):
    """A parameter of another class than torch's own: its noise does not wait."""


class Wrapped(nn.Module):
    """A model that no layer-by-layer engine knows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, width))

    def forward(self, rows: Tensor) -> Tensor:
        """A linear layer, written by hand."""
        return rows @ self.weight.T


def _not_plain(width: int = WIDTH) -> nn.Module:
    model = zero_linear(width)
    model.weight = NotPlain(model.weight.detach())
    return model


@dataclass(frozen=True)
class EnginePath:
    """One way from an example to its weights."""

    describe: str
    make_model: Callable[[], nn.Module]
    as_sparse: bool
    every_step: bool = True


PATHS = {
    "dense": EnginePath("closed forms, noise at every step", zero_linear, as_sparse=False),
    "general": EnginePath("vmap, noise at every step", lambda: Wrapped(WIDTH), as_sparse=False),
    "sparse": EnginePath("sparse rows, noise at every step", _not_plain, as_sparse=True),
    "late": EnginePath(
        "sparse rows, noise when they are read", zero_linear, as_sparse=True, every_step=False
    ),
}


def public_frequencies() -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Made-up word frequencies, the example's word among the rare ones."""
    return np.linspace(0.1, 1.0, WIDTH)


def public_rows(*, as_sparse: bool) -> PublicExamples:
    """Made-up public rows, one for each feature; none of them is a row of the private data."""
    features = 2 * torch.eye(WIDTH)
    return public_examples(
        features.to_sparse_csr() if as_sparse else features,
        torch.linspace(1.0, 2.0, WIDTH),
        source="made up",
        public_because="it is part of the audit",
        batch_size=WIDTH,
    )


def _frequency(privacy: Privatize, *, as_sparse: bool) -> Chain:  # noqa: ARG001
    given = given_frequencies(public_frequencies(), source="made up", public_because="made up")
    return adadps(frequency(given, floor=0.01), privacy, RATE)


def _public(privacy: Privatize, *, as_sparse: bool) -> Chain:
    rule = RMSPropStatistics(decay=0.9, epsilon=1e-3)
    return adadps_public(public_rows(as_sparse=as_sparse), rule, privacy, RATE)


METHODS: dict[str, Callable[..., Chain]] = {
    "dp-sgd": lambda privacy, **_: dp_sgd(privacy, RATE),
    "dp-adam": lambda privacy, **_: dp_adam(privacy, RATE),
    "adadps": _frequency,
    "adadps-public": _public,
}


@dataclass(frozen=True, kw_only=True)
class RepeatedSettings:
    """What is audited: few steps, large batches, and a δ at which a difference can be seen."""

    method: str
    path: str
    epsilon: float
    delta: float
    steps: int
    rate: float

    def __post_init__(self) -> None:
        for what, name, known in (("method", self.method, METHODS), ("path", self.path, PATHS)):
            if name not in known:
                raise SettingError(
                    f"Expected a {what} among {', '.join(known)}, found '{name}'. Choose one."
                )
        if self.method == "dp-adam" and self.path == "late":
            raise SettingError(
                "Expected a method whose noise may wait, found dp-adam, which reads every weight's "
                "noise at every step. Audit it on another path."
            )
        if not 0 < self.rate <= 1:
            raise SettingError(
                f"Expected a rate between 0 and 1, found {self.rate}. It is the probability with "
                "which an example joins a batch."
            )

    def sampler(self) -> Poisson:
        """Poisson sampling of the example and one row that opposes it."""
        return poisson(examples=2, expected_size=2 * self.rate)

    def neighbours(self) -> Neighbours:
        """The worst case for this path."""
        return worst_case(self.sampler().relation, as_sparse=PATHS[self.path].as_sparse)

    def trainer(self) -> Trainer:
        """The library, with noise for the wanted ε."""
        path, sampler, accountant = PATHS[self.path], self.sampler(), Accountant.PLD
        budget = Budget(epsilon=self.epsilon, delta=self.delta)
        sigma = calibrate_noise(sampler, self.steps, budget=budget, accountant=accountant)
        privacy = privatize(clip_norm=1.0, noise_multiplier=sigma)
        return trainer_of(
            path.make_model,
            half_squared,
            method=METHODS[self.method](privacy, as_sparse=path.as_sparse),
            sampler=sampler,
            steps=self.steps,
            every_step=path.every_step,
            delta=self.delta,
            accountant=accountant,
        )
