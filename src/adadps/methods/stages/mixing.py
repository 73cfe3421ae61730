"""Post-processing of released gradients: public gradients, momentum, the way back from a scale."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from adadps.data.examples import PublicExamples
from adadps.engine.waist import Schedule, Step, at
from adadps.errors import SideInformationError, require
from adadps.methods.side.source import SideSource
from adadps.methods.stages.chain import AFTER_RELEASE, ReadsPublic, ReadsSide
from adadps.tensors.sums import Params
from adadps.types import Kind


@dataclass(frozen=True)
class Mix(ReadsPublic):
    """β_t g̃ + (1 - β_t) ĝ with the public gradient ĝ."""

    beta: Schedule

    @property
    def rule(self) -> Mapping[Kind, Kind]:
        """Takes and gives released or exposed gradients."""
        return AFTER_RELEASE

    def init(self, params: Params) -> None:
        """Return no state."""

    def apply(self, signal: Params, state: None, step: Step) -> tuple[Params, None]:
        """Mix the signal with the public gradient of this step."""
        beta, gradient = at(self.beta, step.index), step.public_gradient(self.public)
        _require_share(beta)
        mixed = {name: beta * value + (1 - beta) * gradient[name] for name, value in signal.items()}
        return mixed, state

    def __str__(self) -> str:
        return f"mix({self.provenance.source})"


@dataclass(frozen=True)
class Momentum:
    """m ← β m + (1 - β) g, divided by 1 - β^t where it is debiased."""

    beta: float
    debias: bool

    @property
    def rule(self) -> Mapping[Kind, Kind]:
        """Takes and gives released or exposed gradients."""
        return AFTER_RELEASE

    def init(self, params: Params) -> Params:
        """Return zero momentum."""
        return {name: torch.zeros_like(p, dtype=torch.float64) for name, p in params.items()}

    def apply(self, signal: Params, state: Params, step: Step) -> tuple[Params, Params]:
        """Update the moving average and return it."""
        following = {
            name: self.beta * state[name] + (1 - self.beta) * value
            for name, value in signal.items()
        }
        correction = 1 - self.beta**step.index if self.debias else 1.0
        return {name: value / correction for name, value in following.items()}, following

    def __str__(self) -> str:
        return f"momentum({self.beta:g})"


def mix(public: PublicExamples, beta: Schedule) -> Mix:
    """Mix the released gradient with a public one: β_t g̃ + (1 - β_t) ĝ."""
    _require_share(at(beta, 1))
    return Mix(public, beta)


def _require_share(beta: float) -> None:
    require(0 <= beta <= 1, "0 <= beta <= 1", beta, "It is the weight of the private gradient.")


def momentum(beta: float, *, debias: bool = False) -> Momentum:
    """Replace released gradients by their moving average: m ← β m + (1 - β) g.

    >>> print(momentum(0.9))
    momentum(0.9)
    """
    require(0 <= beta < 1, "0 <= beta < 1", beta, "0 means no momentum.")
    return Momentum(beta, debias)


@dataclass(frozen=True)
class Unscale(ReadsSide):
    """g̃ ↦ A ∘ g̃ with the A by which this step's gradients were divided before the clip."""

    @property
    def rule(self) -> Mapping[Kind, Kind]:
        """Takes and gives released or exposed gradients."""
        return AFTER_RELEASE

    @property
    def unscales(self) -> SideSource:
        """The source whose scale is taken back."""
        return self.side

    def init(self, params: Params) -> None:
        """Return no state."""

    def apply(self, signal: Params, state: None, step: Step) -> tuple[Params, None]:
        """Divide by D = 1/A, as it was applied in this step."""
        if id(self.side) not in step.applied:
            raise SideInformationError(
                "Expected one positive number per entry to divide by, found a mean or matrices "
                f"from '{self.provenance.source}'. Unscale only what multiplies entry by entry."
            )
        scale = step.applied[id(self.side)]
        return {name: value / scale[name] for name, value in signal.items()}, state

    def __str__(self) -> str:
        return f"unscale({self.provenance.source})"


def unscale(side: SideSource) -> Unscale:
    """Take back, after the noise, the scale that ``precondition(side)`` applied before the clip.

    Gradients are then clipped, and noise is added, in the geometry of the side information, and the
    stages behind see gradients of the usual size: ``chain(precondition(side), privatize(...),
    unscale(side), adam(lr))``.
    """
    return Unscale(side)


@dataclass(frozen=True)
class Cosine:
    """The schedule cos(π t / (2 K)), which is 0 from step K on."""

    horizon: int

    def __call__(self, index: int) -> float:
        """Return the value at step ``index``."""
        return math.cos(math.pi * min(index, self.horizon) / (2 * self.horizon))

    def __str__(self) -> str:
        return f"cos(πt/{2 * self.horizon})"


def cosine(horizon: int) -> Cosine:
    """Return cos(π t / 2K), the mixing weight of PDA-DPMD: from almost 1 to 0 over K steps.

    >>> round(cosine(10)(5), 3), round(cosine(10)(10), 3)
    (0.707, 0.0)
    """
    require(horizon >= 1, "a horizon of at least one step", horizon, "Give the number of steps.")
    return Cosine(horizon)
