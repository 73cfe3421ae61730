"""Audits that need no data of yours: settings in which a broken mechanism would be detected.

*Few steps, large batches*: nothing hides the example but the noise. *A large δ* for repeated runs:
a claim is a whole curve of (ε, δ), and a few thousand runs can only see the part of it where the
two worlds differ often. *Several steps* where a method learns from what it has released, or moves
its clip norm: it does so from the second step on. *A small δ* for one run, whose bound loses 2 m δ.
*Late noise* needs several steps: the noise of the weight that only the example reads then stays
pending through all of them where the example is absent, and between its batches where it is
present.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from scipy import sparse
from torch import Tensor, nn

from adadps.accounting.epsilon import Budget, calibrate_noise
from adadps.accounting.samplers import Poisson, poisson
from adadps.audit.canaries import own_feature_canaries
from adadps.audit.one_run import audit_one_run
from adadps.audit.outcome import AuditResult
from adadps.audit.repeated import audit_repeated, observers_along, trainer_of
from adadps.audit.worst_case import FAR, WIDTH, pull, worst_case, zero_linear
from adadps.data.examples import PublicExamples, examples, public_examples
from adadps.engine.losses import squared_error
from adadps.errors import require
from adadps.methods.paper import adadps, adadps_public, dp_adam, dp_sgd, whitened
from adadps.methods.side import RMSPropStatistics, frequency
from adadps.methods.side.frequency import given_frequencies
from adadps.methods.stages import Chain, privatize
from adadps.methods.stages.gradients import Privatize
from adadps.methods.successors import (
    dp2,
    dp_adam_bc,
    dp_sgd_adaptive_clip,
    dp_sgd_auto_clip,
    scale_then_privatize,
)
from adadps.types import Accountant

LEARNING_RATE = 0.5
"""It does not change what an observer of the steps can see."""


class NotPlain(nn.Parameter):
    """A subclass of torch's parameter, which gets its noise at every step."""


class Wrapped(nn.Module):
    """A linear model at w = 0 that has no rule by layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, width))

    def forward(self, rows: Tensor) -> Tensor:
        """Return w·x for every row x."""
        return rows @ self.weight.T


def _not_plain(width: int) -> nn.Module:
    model = zero_linear(width)
    model.weight = NotPlain(model.weight.detach())
    return model


@dataclass(frozen=True)
class EnginePath:
    """One path from an example to the weights, and the rows and steps that reveal its faults.

    Late noise stays pending until the end. For that, no other row may touch the weights of the
    example, and there must be several steps.
    """

    make_model: Callable[[int], nn.Module]
    as_sparse: bool
    late_noise: bool = False
    opposing: int = 1
    bystanders: int = 0
    steps: int = 1


PATHS = {
    "dense": EnginePath(zero_linear, as_sparse=False),
    "general": EnginePath(Wrapped, as_sparse=False),
    "sparse": EnginePath(_not_plain, as_sparse=True),
    "late": EnginePath(
        zero_linear, as_sparse=True, late_noise=True, opposing=0, bystanders=8, steps=8
    ),
}
"""Rules by layer; vmap; sparse rows with noise at every step; sparse rows with late noise."""


FOLLOWING = ("dp-sgd-adaptive-clip", "dp2", "scale-then-privatize")
"""Methods whose later steps depend on what earlier ones have released."""


def usual_steps(path: str, method: str = "dp-sgd") -> int:
    """Return the default number of steps: few, except where noise is late or steps follow others.

    >>> usual_steps("dense"), usual_steps("late"), usual_steps("dense", "dp2")
    (1, 8, 4)
    """
    fewest = 4 if method in FOLLOWING else 1
    return max(PATHS[path].steps if path in PATHS else 1, fewest)


def public_rows(width: int, path: EnginePath) -> PublicExamples:
    """Return made-up public rows, one per feature; none of them is a row of the private data.

    Where noise is late there is only one row, for a feature that is neither the example's nor a
    canary's: reading a weight draws its pending noise.
    """
    features = [1] if path.late_noise else list(range(width))
    one_each = sparse.identity(width, format="csr")[features]
    return public_examples(
        2 * one_each if path.as_sparse else 2 * torch.from_numpy(one_each.toarray()).float(),
        torch.linspace(1.0, 2.0, width)[features],
        source="made up",
        public_because="it is part of the audit",
        batch_size=len(features),
    )


def _by_frequency(privacy: Privatize, width: int, path: EnginePath) -> Chain:  # noqa: ARG001
    values = torch.linspace(0.1, 1.0, width)
    given = given_frequencies(values, source="made up", public_because="made up")
    return adadps(frequency(given, floor=0.01), privacy, lr=LEARNING_RATE)


def _by_public_gradients(privacy: Privatize, width: int, path: EnginePath) -> Chain:
    rule = RMSPropStatistics(decay=0.9, epsilon=1e-3)
    return adadps_public(public_rows(width, path), rule, privacy, lr=LEARNING_RATE)


METHODS: dict[str, Callable[[Privatize, int, EnginePath], Chain]] = {
    "dp-sgd": lambda privacy, _width, _path: dp_sgd(privacy, lr=LEARNING_RATE),
    "dp-adam": lambda privacy, _width, _path: dp_adam(privacy, lr=LEARNING_RATE),
    "adadps": _by_frequency,
    "adadps-public": _by_public_gradients,
    "whitened": lambda privacy, width, path: whitened(
        public_rows(width, path), privacy, lr=LEARNING_RATE, refresh_every=2, median_norm=2.0
    ),
    "dp-adam-bc": lambda privacy, _width, _path: dp_adam_bc(privacy, lr=LEARNING_RATE, floor=1.0),
    "dp-sgd-auto-clip": lambda privacy, _width, _path: dp_sgd_auto_clip(privacy, lr=LEARNING_RATE),
    "dp-sgd-adaptive-clip": lambda privacy, _width, _path: dp_sgd_adaptive_clip(
        privacy, lr=LEARNING_RATE
    ),
    "dp2": lambda privacy, _width, _path: dp2(
        privacy, lr=LEARNING_RATE, preconditioned_lr=LEARNING_RATE, delay=1
    ),
    "scale-then-privatize": lambda privacy, _width, _path: scale_then_privatize(
        privacy, lr=LEARNING_RATE
    ),
}
"""The methods by name; their side information is made up for the width and path."""

NEVER_LATE = ("dp-adam", "dp-adam-bc", "dp2", "scale-then-privatize")
"""Methods that read the noise of every step."""


NEED_RULES = ("whitened",)
"""Methods that have to know what layers read, which the general engine does not."""

OTHERS, THEIR_WIDTH = 100, 4
"""The number of ordinary examples beside the canaries, and of their features."""


@dataclass(frozen=True, kw_only=True)
class BuiltIn:
    """A method of the library on one of its paths, with noise for a given claim."""

    method: str
    path: str
    epsilon: float
    delta: float
    steps: int
    rate: float

    def __post_init__(self) -> None:
        for what, name, known in (("method", self.method, METHODS), ("path", self.path, PATHS)):
            names = ", ".join(known)
            require(name in known, f"a {what} among {names}", f"'{name}'", "Choose one of those.")
        require(
            not (self.method in NEVER_LATE and PATHS[self.path].late_noise),
            "a method that allows late noise on the path 'late'",
            f"{self.method}, which reads all noise at every step",
            "Audit it on another path.",
        )
        require(
            not (self.method in NEED_RULES and self.path == "general"),
            "a method that needs gradients alone on the path 'general'",
            f"{self.method}, which needs layers that have a rule",
            "Audit it on another path.",
        )
        require(0 < self.rate <= 1, "0 < rate <= 1", self.rate, "It is a probability.")
        require(self.steps >= 1, "at least one step", self.steps, "One step reveals the most.")
        require(
            self.steps > 1 or not PATHS[self.path].late_noise,
            f"several steps on the path '{self.path}'",
            self.steps,
            "No noise is late in a single step: take 8 steps, or another path.",
        )

    def _method(self, sampler: Poisson, width: int) -> Chain:
        budget = Budget(epsilon=self.epsilon, delta=self.delta)
        sigma = calibrate_noise(sampler, self.steps, budget=budget, accountant=Accountant.PLD)
        privacy = privatize(clip_norm=1.0, noise_multiplier=sigma)
        return METHODS[self.method](privacy, width, PATHS[self.path])


@dataclass(frozen=True, kw_only=True)
class RepeatedSettings(BuiltIn):
    """Repeated runs with and without the worst-case example."""

    def audit(self, *, runs: int, confidence: float) -> AuditResult:
        """Train ``runs`` times and bound ε."""
        path = PATHS[self.path]
        # A row that opposes the example would hide it if the row were sampled too.
        opposing = path.opposing if self.rate == 1 else 0
        count = 1 + max(1, opposing + path.bystanders)
        sampler = poisson(examples=count, expected_size=count * self.rate)
        method = self._method(sampler, WIDTH)
        trainer = trainer_of(
            lambda: path.make_model(WIDTH),
            squared_error,
            method=method,
            sampler=sampler,
            steps=self.steps,
            every_step=not path.late_noise,
            delta=self.delta,
            accountant=Accountant.PLD,
        )
        return audit_repeated(
            trainer,
            worst_case(
                sampler.relation,
                opposing=opposing,
                bystanders=path.bystanders,
                as_sparse=path.as_sparse,
            ),
            observers=observers_along(pull()),
            runs=runs,
            confidence=confidence,
            settings={**asdict(self), "chain": str(method)},
        )


@dataclass(frozen=True, kw_only=True)
class CanarySettings(BuiltIn):
    """One run with canaries that own a feature each, among some ordinary examples."""

    canaries: int

    def audit(self, *, confidence: float) -> AuditResult:
        """Train once and bound ε."""
        path = PATHS[self.path]
        rows, targets = torch.rand(OTHERS, THEIR_WIDTH), torch.rand(OTHERS)
        others = examples(sparse.csr_matrix(rows.numpy()) if path.as_sparse else rows, targets)
        data, canaries = own_feature_canaries(others, count=self.canaries, target=-FAR)
        count, width = OTHERS + self.canaries, THEIR_WIDTH + self.canaries
        sampler = poisson(examples=count, expected_size=count * self.rate)
        return audit_one_run(
            path.make_model(width),
            squared_error,
            data,
            canaries=canaries,
            method=self._method(sampler, width),
            sampler=sampler,
            steps=self.steps,
            confidence=confidence,
            delta=self.delta,
            accountant=Accountant.PLD,
            settings=asdict(self),
        )
