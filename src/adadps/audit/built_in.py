"""Audits that need no data of yours: settings in which a broken mechanism would be seen.

*Few steps, large batches*: nothing hides the example but the noise. *A large δ* for repeated runs:
a claim is a whole curve of (ε, δ), and some thousand runs can only see the part of it where the
worlds differ often. *A small δ* for one run, whose bound loses 2 m δ. *Noise that waits* needs
several steps: the weight that the example owns then waits through all of them where it is absent,
and between its batches where it is there.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from scipy import sparse

from adadps.accounting.epsilon import Budget, calibrate_noise
from adadps.accounting.samplers import Poisson, poisson
from adadps.audit.canaries import own_feature_canaries
from adadps.audit.engine_paths import METHODS, PATHS
from adadps.audit.observers import observers_along
from adadps.audit.one_run import audit_one_run
from adadps.audit.outcome import AuditResult
from adadps.audit.repeated import audit_repeated, trainer_of
from adadps.audit.worst_case import FAR, WIDTH, pull, worst_case
from adadps.data.examples import examples
from adadps.engine.losses import squared_error
from adadps.errors import require
from adadps.methods.stages import Chain, privatize
from adadps.types import Accountant

OTHERS, THEIR_WIDTH = 100, 4
"""Ordinary examples beside the canaries, and their features."""


@dataclass(frozen=True, kw_only=True)
class BuiltIn:
    """A method of the library on one of its paths, with noise for a wanted claim."""

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
            (self.method, self.path) != ("dp-adam", "late"),
            "a method whose noise may wait on the path 'late'",
            "dp-adam, which reads all noise at every step",
            "Audit it on another path.",
        )
        require(0 < self.rate <= 1, "0 < rate <= 1", self.rate, "It is a probability.")
        require(self.steps >= 1, "at least one step", self.steps, "One leaves the most to see.")
        require(
            self.steps > 1 or not PATHS[self.path].noise_waits,
            f"several steps on the path '{self.path}'",
            self.steps,
            "No noise waits in one step: take 8, or another path.",
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
        """Train ``runs`` times, and bound ε."""
        path = PATHS[self.path]
        # A row that opposes the example would hide it if it were drawn by chance.
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
            every_step=not path.noise_waits,
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
        """Train once, and bound ε."""
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
