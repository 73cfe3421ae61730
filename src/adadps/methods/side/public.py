"""Statistics of the gradients of a public data set: option 1 of Algorithm 1.

At step t the mean gradient ĝ on a public batch updates

    A^t = φ(A^{t-1}, ĝ),    M^t = ϕ(M^{t-1}, ĝ),    g ↦ 𝒜(g, A^t, M^t) = (β g + (1 - β) M) / A.

RMSProp: v ← b₂ v + (1 - b₂) ĝ², A = √v + ε.  AdaGrad: v ← v + ĝ², A = √v + ε.
Adam: as RMSProp, with M ← b₁ M + (1 - b₁) ĝ and the mixing weight β.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from dp_accounting import DpEvent, NonPrivateDpEvent, NoOpDpEvent
from torch import Tensor

from adadps.data.examples import Examples, PublicExamples
from adadps.data.provenance import Provenance
from adadps.engine.waist import Schedule, Step, at
from adadps.errors import require
from adadps.methods.side.source import Transform, positive
from adadps.tensors.sums import Params


@dataclass(frozen=True)
class GradientMoments:
    """Running moments of the public gradient, and the transform computed from them.

    ``first_left`` and ``second_left`` are the weights that the initial zeros still have in the
    moving averages, i.e. the products of all decays so far; debiasing divides by one minus them.
    """

    first: Params
    second: Params
    first_left: float = 1.0
    second_left: float = 1.0
    transform: Transform | None = None


class Statistics(Protocol):
    """The recurrences φ, ϕ and the map 𝒜 of one adaptive method."""

    def update(self, moments: GradientMoments, gradient: Params, index: int) -> GradientMoments:
        """Return the new moments, with the transform for step ``index``."""


@dataclass(frozen=True, kw_only=True)
class RMSPropStatistics:
    """A = √v + ε, or √(v + ε) with ``epsilon_inside_root``; v is a moving average of ĝ².

    ``debias`` divides v by 1 minus the product of all decays, as Adam does.
    """

    decay: Schedule
    epsilon: Schedule
    epsilon_inside_root: bool = False
    debias: bool = False

    def update(self, moments: GradientMoments, gradient: Params, index: int) -> GradientMoments:
        """v ← b₂ v + (1 - b₂) ĝ²."""
        decay = _decay(self.decay, index)
        second = _average(moments.second, decay, {n: g.square() for n, g in gradient.items()})
        left = moments.second_left * decay
        correction = 1 - left if self.debias else 1.0
        scale = _inverse_root(second, correction, at(self.epsilon, index), self.epsilon_inside_root)
        return replace(
            moments, second=second, second_left=left, transform=Transform(scale, lent=False)
        )


@dataclass(frozen=True, kw_only=True)
class AdaGradStatistics:
    """A = √v + ε, or √(v + ε) with ``epsilon_inside_root``; v is the sum of ĝ²."""

    epsilon: Schedule
    epsilon_inside_root: bool = False

    def update(self, moments: GradientMoments, gradient: Params, index: int) -> GradientMoments:
        """v ← v + ĝ²."""
        second = {name: moments.second[name] + g.square() for name, g in gradient.items()}
        scale = _inverse_root(second, 1.0, at(self.epsilon, index), self.epsilon_inside_root)
        return replace(moments, second=second, transform=Transform(scale, lent=False))


@dataclass(frozen=True, kw_only=True)
class AdamStatistics:
    """(β g + (1 - β) M) / A with M a moving average of ĝ and A as in RMSProp, debiased."""

    mixing: Schedule
    first_decay: Schedule
    second_decay: Schedule
    epsilon: Schedule
    epsilon_inside_root: bool = False

    def update(self, moments: GradientMoments, gradient: Params, index: int) -> GradientMoments:
        """M ← b₁ M + (1 - b₁) ĝ and v ← b₂ v + (1 - b₂) ĝ²."""
        rms = RMSPropStatistics(
            decay=self.second_decay,
            epsilon=self.epsilon,
            epsilon_inside_root=self.epsilon_inside_root,
            debias=True,
        ).update(moments, gradient, index)
        decay = _decay(self.first_decay, index)
        first = _average(moments.first, decay, gradient)
        left = moments.first_left * decay
        mean = {name: value / (1 - left) for name, value in first.items()}
        assert rms.transform is not None
        mixing = at(self.mixing, index)
        require(
            0 <= mixing <= 1,
            "0 <= mixing <= 1",
            mixing,
            "It is the weight of the private gradient.",
        )
        transform = Transform(rms.transform.scale, mean, mixing, lent=False)
        return replace(rms, first=first, first_left=left, transform=transform)


@dataclass(frozen=True)
class GradientStatistics:
    """Side information from gradients on ``examples``, refreshed every ``every`` steps."""

    examples: PublicExamples
    statistics: Statistics
    every: int
    event: DpEvent

    @property
    def provenance(self) -> Provenance:
        """The provenance of the examples."""
        return self.examples.provenance

    def init(self, params: Params) -> GradientMoments:
        """Return zero moments."""
        zeros = {
            name: torch.zeros_like(value, dtype=torch.float64) for name, value in params.items()
        }
        return GradientMoments(zeros, zeros)

    def observe(self, state: GradientMoments, step: Step) -> tuple[Transform, GradientMoments]:
        """Refresh the moments if they are due, and return their transform."""
        if state.transform is None or (step.index - 1) % self.every == 0:
            gradient = step.public_gradient(self.examples)
            wide = {name: value.double() for name, value in gradient.items()}
            state = self.statistics.update(state, wide, step.index)
        assert state.transform is not None
        return state.transform, state


def public(
    examples: PublicExamples, statistics: Statistics, *, refresh_every: int = 1
) -> GradientStatistics:
    """Use statistics of the gradients on public examples, updated every ``refresh_every`` steps."""
    require(refresh_every >= 1, "refresh_every >= 1", refresh_every, "Refresh at least once.")
    return GradientStatistics(examples, statistics, refresh_every, NoOpDpEvent())


def oracle(
    private: Examples, statistics: Statistics, *, batch_size: int, seed: int = 0
) -> GradientStatistics:
    """Use the same statistics of the *private* data: an upper bound, with infinite epsilon."""
    provenance = Provenance("the private training data", "it is NOT public: an oracle bound")
    drawn = PublicExamples(private, provenance, batch_size, seed=seed)
    return GradientStatistics(drawn, statistics, 1, NonPrivateDpEvent())


def _decay(schedule: Schedule, index: int) -> float:
    decay = at(schedule, index)
    require(0 <= decay < 1, "0 <= decay < 1", decay, "Choose a moving average in that range.")
    return decay


def _average(old: Params, decay: float, new: Params) -> Params:
    return {name: decay * old[name] + (1 - decay) * value for name, value in new.items()}


def _inverse_root(second: Params, correction: float, epsilon: float, inside: bool) -> Params:
    require(
        epsilon > 0, "epsilon > 0", epsilon, "It keeps coordinates with a zero gradient finite."
    )

    def diagonal(value: Tensor) -> Tensor:
        moment = value / correction
        return (moment + epsilon).sqrt() if inside else moment.sqrt() + epsilon

    return {name: 1 / positive(name, diagonal(value)) for name, value in second.items()}
