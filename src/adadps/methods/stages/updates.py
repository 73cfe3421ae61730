"""Updates: from a released (or exposed) gradient to the change of the weights.

All of them are post-processing: they see private data only through what was released.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, cast

import torch

from adadps.engine.waist import Leaf, ReleasedGradient, Schedule, Step, Update, at
from adadps.errors import OrderError, SettingError, require, require_positive
from adadps.methods.stages.chain import TO_UPDATE
from adadps.tensors.sums import Params
from adadps.types import Kind


@dataclass(frozen=True)
class UpdateRule:
    """What all updates have in common: their place at the end of a chain, and a learning rate."""

    lr: Schedule

    @property
    def rule(self) -> Mapping[Kind, Kind]:
        """Takes released or exposed gradients and gives an update, which ends a chain."""
        return TO_UPDATE

    def init(self, params: Params) -> Any:  # noqa: ARG002
        """Return no state; updates that have one override this."""
        return None

    def rate(self, step: Step) -> float:
        """Return the learning rate of this step."""
        rate = at(self.lr, step.index)
        if not 0 <= rate < float("inf"):
            raise SettingError(
                f"Expected a finite learning rate >= 0, found {rate}. Fix the schedule."
            )
        return rate

    def __str__(self) -> str:
        return f"{type(self).__name__.lower()}({described(self.lr)})"


@dataclass(frozen=True)
class SGD(UpdateRule):
    """(1 - α_t λ) w - α_t g."""

    weight_decay: float
    takes_late_noise: ClassVar[bool] = True

    def apply(self, signal: dict[str, Leaf], state: None, step: Step) -> tuple[Update, None]:
        """Scale the gradient by the learning rate."""
        rate = self.rate(step)
        update = Update({name: -rate * value for name, value in signal.items()})
        update.keep = 1 - rate * self.weight_decay
        if update.keep <= 0:
            raise SettingError(
                "Expected lr · weight_decay < 1 at every step, found "
                f"{rate * self.weight_decay}. Lower one of them."
            )
        return update, state

    def __str__(self) -> str:
        decay = f", weight_decay={self.weight_decay:g}" if self.weight_decay else ""
        return f"{super().__str__()[:-1]}{decay})"


@dataclass(frozen=True)
class Adam(UpdateRule):
    """m̂ / (√v̂ + ε), with m and v moving averages of g and g²."""

    betas: tuple[float, float]
    epsilon: float

    def init(self, params: Params) -> tuple[Params, Params]:
        """Return zero moments."""
        return _zeros(params), _zeros(params)

    def apply(
        self, signal: Params, state: tuple[Params, Params], step: Step
    ) -> tuple[Update, tuple[Params, Params]]:
        """Apply Algorithm 2 of the paper, from the Gaussian mechanism on."""
        (beta1, beta2), t = self.betas, step.index
        first, second = self._moments(signal, state)
        update = {
            name: -self.rate(step)
            * (first[name] / (1 - beta1**t))
            / ((second[name] / (1 - beta2**t)).sqrt() + self.epsilon)
            for name in signal
        }
        return Update(update), (first, second)

    def _moments(self, signal: Params, state: tuple[Params, Params]) -> tuple[Params, Params]:
        beta1, beta2 = self.betas
        first = {n: beta1 * state[0][n] + (1 - beta1) * g for n, g in signal.items()}
        second = {n: beta2 * state[1][n] + (1 - beta2) * g.square() for n, g in signal.items()}
        return first, second


@dataclass(frozen=True)
class AdamBC(Adam):
    """m̂ / √max(v̂ - Φ̂, γ), with Φ a moving average of the noise's variance; ``epsilon`` is γ."""

    follows_release: ClassVar[bool] = True

    def init(self, params: Params) -> Any:
        """Return zero moments, and a zero variance of the noise."""
        return *super().init(params), torch.zeros((), dtype=torch.float64)

    def apply(self, signal: Params, state: Any, step: Step) -> tuple[Update, Any]:
        """Subtract from the second moment what the noise adds to it.

        The variance is averaged as the squares are: adaptive clipping and answers of devices change
        it from step to step.
        """
        if not isinstance(signal, ReleasedGradient):
            raise OrderError(
                "Expected what `privatize(...)` or `average()` gives, whose noise is known, found "
                f"something else before `{self}`. Place it right after the release."
            )
        (beta1, beta2), t = self.betas, step.index
        first, second = self._moments(cast(Params, signal), state[:2])
        noise = beta2 * state[2] + (1 - beta2) * signal.deviation**2
        update = {
            name: -self.rate(step)
            * (first[name] / (1 - beta1**t))
            / ((second[name] - float(noise)) / (1 - beta2**t)).clamp_min(self.epsilon).sqrt()
            for name in signal
        }
        return Update(update), (first, second, noise)

    def __str__(self) -> str:
        return f"adam_bc({described(self.lr)}, floor={self.epsilon:g})"


@dataclass(frozen=True)
class RMSProp(UpdateRule):
    """g / (√v + ε), with v a moving average of g²."""

    decay: float
    epsilon: float

    def init(self, params: Params) -> Params:
        """Return a zero second moment."""
        return _zeros(params)

    def apply(self, signal: Params, state: Params, step: Step) -> tuple[Update, Params]:
        """Divide the gradient by the root of the moving average."""
        second = {
            n: self.decay * state[n] + (1 - self.decay) * g.square() for n, g in signal.items()
        }
        return _divided(signal, second, self.rate(step), self.epsilon), second


@dataclass(frozen=True)
class AdaGrad(UpdateRule):
    """g / (√v + ε), with v the sum of g²."""

    epsilon: float

    def init(self, params: Params) -> Params:
        """Return a zero sum of squares."""
        return _zeros(params)

    def apply(self, signal: Params, state: Params, step: Step) -> tuple[Update, Params]:
        """Divide the gradient by the root of the sum of squares."""
        second = {name: state[name] + g.square() for name, g in signal.items()}
        return _divided(signal, second, self.rate(step), self.epsilon), second


def sgd(lr: Schedule, *, weight_decay: float = 0.0) -> SGD:
    """Update w ← (1 - α_t λ) w - α_t g: plain SGD with decoupled weight decay λ.

    The noise enters the weights linearly, so that it can be drawn when a weight is next read.

    >>> print(sgd(0.5), sgd(0.5, weight_decay=0.01))
    sgd(0.5) sgd(0.5, weight_decay=0.01)
    """
    require(
        0 <= weight_decay < float("inf"), "weight_decay >= 0", weight_decay, "0 means no decay."
    )
    return SGD(_checked(lr), float(weight_decay))


def adam(lr: Schedule, *, betas: tuple[float, float] = (0.9, 0.999), epsilon: float = 1e-8) -> Adam:
    """Update w ← w - α_t m̂ / (√v̂ + ε)."""
    return Adam(_checked(lr), _averages(betas), require_positive("epsilon", epsilon))


def adam_bc(
    lr: Schedule, *, betas: tuple[float, float] = (0.9, 0.999), floor: float = 1e-8
) -> AdamBC:
    """Update w ← w - α_t m̂ / √max(v̂ - Φ, γ): Adam whose second moment is rid of the noise.

    The moving average of squared noisy gradients is too large by Φ = (σC/b)², the variance of the
    noise in each entry, which is public. DP-AdamBC (Tang and Lécuyer, 2023) subtracts it, and
    ``floor`` is γ, the least that is left. Where the noise changes from step to step, Φ is averaged
    as the squares are. It must stand right after the release, where Φ is known.

    >>> print(adam_bc(0.1, floor=1e-6))
    adam_bc(0.1, floor=1e-06)
    """
    return AdamBC(_checked(lr), _averages(betas), require_positive("floor", floor))


def rmsprop(lr: Schedule, *, decay: float = 0.99, epsilon: float = 1e-8) -> RMSProp:
    """Update w ← w - α_t g / (√v + ε), where v is a moving average of g²."""
    require(0 <= decay < 1, "decay in [0, 1)", decay, "Choose a moving average in that range.")
    return RMSProp(_checked(lr), decay, require_positive("epsilon", epsilon))


def adagrad(lr: Schedule, *, epsilon: float = 1e-8) -> AdaGrad:
    """Update w ← w - α_t g / (√v + ε), where v is the sum of g²."""
    return AdaGrad(_checked(lr), require_positive("epsilon", epsilon))


def _checked(lr: Schedule) -> Schedule:
    require_positive("lr", at(lr, 1))
    return lr


def _averages(betas: tuple[float, float]) -> tuple[float, float]:
    for beta in betas:
        require(0 <= beta < 1, "betas in [0, 1)", beta, "Choose moving averages in that range.")
    return betas


def _zeros(params: Params) -> Params:
    return {name: torch.zeros_like(p, dtype=torch.float64) for name, p in params.items()}


def _divided(gradient: Params, second: Params, rate: float, epsilon: float) -> Update:
    return Update(
        {name: -rate * g / (second[name].sqrt() + epsilon) for name, g in gradient.items()}
    )


# --- learning rates ---


@dataclass(frozen=True)
class InverseSqrt:
    """The schedule α/√t."""

    start: float

    def __call__(self, index: int) -> float:
        """Return the value at step ``index``."""
        return self.start / math.sqrt(index)

    def __str__(self) -> str:
        return f"{self.start:g}/√t"


def inverse_sqrt(start: float) -> InverseSqrt:
    """Return α/√t, the learning rate of the paper's convex theorems.

    >>> inverse_sqrt(1.0)(4)
    0.5
    """
    return InverseSqrt(start)


@dataclass(frozen=True)
class Alternating:
    """One schedule for ``steps`` steps, another one for ``other_steps``, and so on."""

    first: Schedule
    steps: int
    second: Schedule
    other_steps: int

    def __call__(self, index: int) -> float:
        """Return the value at step ``index``."""
        place = (index - 1) % (self.steps + self.other_steps)
        return at(self.first if place < self.steps else self.second, index)

    def __str__(self) -> str:
        first, second = described(self.first), described(self.second)
        return f"{first} for {self.steps}, {second} for {self.other_steps} steps"


def alternate(first: Schedule, steps: int, second: Schedule, other_steps: int) -> Alternating:
    """Return ``first`` for some steps, then ``second`` for others, and so on.

    >>> [alternate(1.0, 2, 0.1, 1)(index) for index in (1, 2, 3, 4)]
    [1.0, 1.0, 0.1, 1.0]
    """
    for count in (steps, other_steps):
        require(count >= 1, "at least one step", count, "Give the number of steps of each phase.")
    return Alternating(first, steps, second, other_steps)


def described(value: Any) -> str:
    """Describe a schedule, or another setting, by a text that is the same in every process.

    >>> described(0.5), described(math.sqrt), described(partial(pow, exp=2)), described(object())
    ('0.5', 'sqrt', 'pow(exp=2)', 'object')
    """
    if isinstance(value, partial):
        given = [described(one) for one in value.args]
        given += [f"{name}={described(one)}" for name, one in value.keywords.items()]
        return f"{described(value.func)}({', '.join(given)})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name}={described(one)}' for name, one in value.items())}}}"
    if isinstance(value, Iterable) and not isinstance(value, str | type):
        return f"({', '.join(map(described, value))})"
    if isinstance(value, float):
        return f"{value:g}"
    if str(value) == object.__repr__(value):  # which has its address
        return type(value).__qualname__
    return str(getattr(value, "__qualname__", value))
