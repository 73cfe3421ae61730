"""Side information from what the run itself has released in earlier steps.

A released gradient carries its noise and is paid for; what is computed from it is post-processing,
and costs nothing more. It is applied before the clip of *later* steps only: the chain hands over
what a step has released when the step is done (`adadps.methods.stages.chain`).

- `delayed_releases`: the average of s releases of plain DP-SGD, whose noise is √s times smaller,
  preconditions the next steps (DP², Li et al. 2023).
- `release_moments`: a moving average of squared releases, as Adam has it, scales every step, and
  `unscale` takes the scale back after the noise (Ganesh, McMahan and Thakurta, 2025).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from dp_accounting import DpEvent, NoOpDpEvent

from adadps.data.provenance import Provenance
from adadps.engine.waist import Step
from adadps.errors import SettingError, require, require_positive
from adadps.methods.side.source import Transform, Uniform, positive
from adadps.tensors.sums import Params

OWN = "computed from what this run has released and paid for"


@dataclass(frozen=True)
class DelayedReleases:
    """A = √v + ε from averages of earlier releases. Build it with `delayed_releases`."""

    delay: int
    reuse: int
    decay: float
    epsilon: float
    gain: float

    @property
    def event(self) -> DpEvent:
        """Nothing more is charged for what was released before."""
        return NoOpDpEvent()

    @property
    def provenance(self) -> Provenance:
        """The run itself."""
        settings = f"s={self.delay}, reuse={self.reuse}, β={self.decay:g}, ε={self.epsilon:g}"
        gain = "" if self.gain == 1 else f", gain={self.gain:g}"
        return Provenance(
            f"delayed averages of its own releases: {settings}{gain}", public_because=OWN
        )

    def require_steps(self, steps: int) -> None:
        """Refuse a run whose steps are all plain."""
        if steps <= self.delay:
            raise SettingError(
                f"Expected more steps than the delay of {self.delay}, found {steps}: no step would "
                "be preconditioned, and the method would be DP-SGD. Choose a shorter delay."
            )

    def init(self, params: Params) -> tuple[Params, Params]:
        """Return the sum of releases and the second moment v, both zero."""
        return _zeros(params), _zeros(params)

    def observe(
        self, state: tuple[Params, Params], step: Step
    ) -> tuple[Transform, tuple[Params, Params]]:
        """Return D = 1 while releases are averaged, and 1/A of the last average after that."""
        if self._place(step) < self.delay:
            return Uniform().init(state[0]), state
        scale = {
            name: self.gain / positive(name, value.sqrt() + self.epsilon)
            for name, value in state[1].items()
        }
        return Transform(scale, lent=False), state

    def learn(
        self, state: tuple[Params, Params], released: Params, step: Step
    ) -> tuple[Params, Params]:
        """Add up releases of the plain steps; after the last of them, v ← β v + (1 - β) (G/s)²."""
        total, second = state
        if self._place(step) >= self.delay:
            return state
        total = {name: value + released[name] for name, value in total.items()}
        if self._place(step) < self.delay - 1:
            return total, second
        second = {
            name: self.decay * value + (1 - self.decay) * (total[name] / self.delay).square()
            for name, value in second.items()
        }
        return {name: torch.zeros_like(value) for name, value in total.items()}, second

    def _place(self, step: Step) -> int:
        """The place of a step in its period: the plain steps come first."""
        return (step.index - 1) % (self.delay + self.reuse)


def delayed_releases(
    *,
    delay: int,
    reuse: int | None = None,
    decay: float = 0.9,
    epsilon: float = 1e-3,
    gain: float = 1.0,
) -> DelayedReleases:
    """Precondition by an average of the run's own releases (DP²), which costs nothing more.

    ``delay`` steps s are plain DP-SGD, and their releases are averaged, G/s. Then with ``decay`` β
    v ← β v + (1 - β) (G/s)², and the next ``reuse`` steps (by default as many) divide gradients by
    √v + ε before the clip. ``gain`` multiplies them, so that one clip norm C fits both kinds of
    steps: gradients divided by √v + ε are clipped at C/gain.

    >>> print(delayed_releases(delay=10).provenance.source)
    delayed averages of its own releases: s=10, reuse=10, β=0.9, ε=0.001
    """
    reuse = delay if reuse is None else reuse
    for name, steps in (("delay", delay), ("reuse", reuse)):
        whole = isinstance(steps, int) and not isinstance(steps, bool) and steps >= 1
        require(whole, f"a whole number {name} >= 1", steps, "It is a number of steps.")
    _require_decay(decay)
    require_positive("epsilon", epsilon)
    require_positive("gain", gain)
    return DelayedReleases(delay, reuse, decay, epsilon, gain)


@dataclass(frozen=True)
class ReleaseMoments:
    """D = m/(√v̂ + ε) from all earlier releases. Build it with `release_moments`."""

    decay: float
    epsilon: float

    @property
    def event(self) -> DpEvent:
        """Nothing more is charged for what was released before."""
        return NoOpDpEvent()

    @property
    def provenance(self) -> Provenance:
        """The run itself."""
        return Provenance(
            f"second moments of its own releases: β={self.decay:g}, ε={self.epsilon:g}",
            public_because=OWN,
        )

    def init(self, params: Params) -> tuple[Params, int]:
        """Return a zero second moment, of no release."""
        return _zeros(params), 0

    def observe(
        self,
        state: tuple[Params, int],
        step: Step,  # noqa: ARG002
    ) -> tuple[Transform, tuple[Params, int]]:
        """Return D = m/(√v̂ + ε), with v̂ debiased as in Adam; 1 before the first release."""
        second, count = state
        if count == 0:
            return Uniform().init(second), state
        correction = 1 - self.decay**count
        roots = {
            name: positive(name, (value / correction).sqrt() + self.epsilon)
            for name, value in second.items()
        }
        squares = sum(float(root.square().sum()) for root in roots.values())
        usual = math.sqrt(squares / sum(root.numel() for root in roots.values()))
        return Transform({name: usual / root for name, root in roots.items()}, lent=False), state

    def learn(self, state: tuple[Params, int], released: Params, step: Step) -> tuple[Params, int]:
        """v ← β v + (1 - β) (g̃/D)²: the second moment of releases in the scale of gradients."""
        second, count = state
        scale = step.applied.get(id(self))
        unscaled = (
            released
            if scale is None
            else {name: value / scale[name] for name, value in released.items()}
        )
        following = {
            name: self.decay * value + (1 - self.decay) * unscaled[name].square()
            for name, value in second.items()
        }
        return following, count + 1


def release_moments(*, decay: float = 0.999, epsilon: float = 1e-8) -> ReleaseMoments:
    """Scale by second moments of the run's own releases, which costs nothing more.

    v is a moving average of squared releases, taken back to the scale of gradients. Gradients are
    multiplied by D = m/(√v̂ + ε), where m is the root mean square of √v̂ + ε over all entries. So
    the clip norm keeps its meaning, D is 1 in the first step, and noise of deviation σC is as long
    as that of DP-SGD after `unscale`, but distributed like the gradients. Without m, as it is
    published, C would be a clip norm for gradients divided by their own size.

    >>> print(release_moments(decay=0.9).provenance.source)
    second moments of its own releases: β=0.9, ε=1e-08
    """
    _require_decay(decay)
    return ReleaseMoments(decay, require_positive("epsilon", epsilon))


def _require_decay(decay: float) -> None:
    require(0 <= decay < 1, "0 <= decay < 1", decay, "Choose a moving average in that range.")


def _zeros(params: Params) -> Params:
    return {name: torch.zeros_like(p, dtype=torch.float64) for name, p in params.items()}
