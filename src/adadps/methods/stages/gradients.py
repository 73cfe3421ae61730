"""Stages that act on gradients, and those that act once, before the first step.

`precondition` scales by side information, before the clip (AdaDPS) or after the noise (DP-R-Pub).
`privatize` is the Gaussian mechanism: clip each unit, add up, add noise, divide by a public
constant. `average` takes its place in the non-private twin of every method.

`reparametrise` weights the features, and `pretrain` starts from a model of public data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from adadps.accounting.groups import Groups
from adadps.data.examples import PublicExamples
from adadps.engine.noise.randomness import SMALLEST_DEVIATION, secure
from adadps.engine.objective import Objective
from adadps.engine.rules.whitening import whitened_mean
from adadps.engine.waist import (
    GradientBatch,
    Leaf,
    ReleasedGradient,
    Step,
    clip_weights,
)
from adadps.errors import OrderError, SideInformationError, require, require_positive
from adadps.methods.side.source import LearnsFromReleases, SideSource, Transform
from adadps.methods.stages.chain import (
    AFTER_RELEASE,
    CountsSteps,
    FollowsRelease,
    ReadsPublic,
    ReadsSide,
    Stage,
)
from adadps.methods.stages.users import Users
from adadps.tensors.sums import Params, Sums
from adadps.types import Kind

SMALLEST_NOISE = 1e-6
"""Less noise than this protects nothing, and its grid would leave the range of float64."""


@dataclass(frozen=True)
class Privatize:
    """(1/b) (Σ_i clip(g_i, C) + N(0, σ²C²)). Build it with `privatize`.

    A clip norm or noise multiplier that is still to be chosen is NaN, which no run takes and no
    accountant prices.
    """

    clip_norm: float
    noise_multiplier: float
    groups: Groups | Users | None

    def completed(self, *, clip_norm: float, noise_multiplier: float) -> Privatize:
        """Return the same stage with this clip norm and noise multiplier."""
        _require_sound(clip_norm, noise_multiplier)
        return replace(self, clip_norm=float(clip_norm), noise_multiplier=float(noise_multiplier))

    @property
    def rule(self) -> Mapping[Kind, Kind]:
        """Gives released gradients."""
        return {Kind.PER_UNIT: Kind.RELEASED}

    def init(self, params: Params) -> Any:
        """The parameters, whose shapes an empty batch's sum will have."""
        return params

    def apply(self, signal: GradientBatch, state: Any, step: Step) -> tuple[ReleasedGradient, Any]:
        """Clip, add, noise; an empty batch is noised like any other."""
        self._require_chosen()
        total = step.sum(signal, lambda norms: self._weights(norms, step), state)
        return self._noised(total, self.clip_norm, step), state

    def _require_chosen(self) -> None:
        if math.isnan(self.clip_norm) or math.isnan(self.noise_multiplier):
            raise OrderError(
                f"Expected a clip norm and a noise multiplier before the first step, found {self}. "
                "Train with `fit` or `PrivateRun`, which choose them, or give both here."
            )

    def _noised(self, total: Sums, clip_norm: float, step: Step) -> ReleasedGradient:
        """(total + N(0, σ²C²)) / b, with the expected number of units b."""
        size = step.expected_size
        units = self.groups.expected_units(size) if self.groups else size
        deviation = self._noise(step) * clip_norm if self.noise_multiplier else 0.0
        released = ReleasedGradient(
            (name, step.release(value, deviation) / units) for name, value in total.items()
        )
        on_devices = self._noise_of_answers(step) * clip_norm if self.noise_multiplier else 0.0
        released.deviation = math.hypot(deviation, on_devices) / units
        return released

    def _noise(self, step: Step) -> float:
        """Of the sum, in units of C: σ, or more where devices add it, or what they left out."""
        if isinstance(self.groups, Users):
            size, answers = step.expected_size, step.answers
            return self.groups.deviation(self.noise_multiplier, size, answers)
        return self.noise_multiplier

    def _noise_of_answers(self, step: Step) -> float:
        """The noise that answers of devices have brought along, in units of C."""
        return math.sqrt(step.answers or 0) * self.noise_on_devices

    @property
    def noise_on_devices(self) -> float:
        """What each device adds to its update, in units of C."""
        if isinstance(self.groups, Users):
            return self.groups.noise.on_device(self.noise_multiplier)
        return 0.0

    @property
    def clipping(self) -> str | None:
        """How gradients are clipped, if not by min(1, C/‖g‖)."""
        return None

    def _weights(self, norms: Tensor, step: Step) -> Tensor:
        step.watch("norms", norms)
        if step.answers is not None and self.noise_on_devices:
            # They were clipped before their noise. A second clip at C would cut the noise itself
            # down to nearly nothing, and with it what the sum of shares is counted on for.
            return torch.isfinite(norms).double()
        return clip_weights(norms, self.clip_norm)

    def __str__(self) -> str:
        grouped = f", {self.groups}" if self.groups else ""
        clip = "open" if math.isnan(self.clip_norm) else f"{self.clip_norm:g}"
        sigma = "open" if math.isnan(self.noise_multiplier) else f"{self.noise_multiplier:g}"
        return f"privatize(C={clip}, σ={sigma}{grouped})"


def privatize(
    *,
    clip_norm: float | None = None,
    noise_multiplier: float | None = None,
    groups: Groups | Users | None = None,
) -> Privatize:
    """Clip each unit's gradient to L2 norm C and add noise N(0, σ²C²) to the sum.

    A unit is an example, or with ``groups`` a group of them (`by_label`, `in_advance`) or all rows
    that a user contributes (`by_user`). The sum is divided by the *expected* number of units, a
    public constant. What is left out is chosen by `fit` and `PrivateRun`: the clip norm is the one
    they are given, the noise multiplier the smallest that fits the budget. A noise multiplier of 0
    or an infinite clip norm is allowed for comparisons, and makes epsilon infinite.

    >>> print(privatize(clip_norm=0.5, noise_multiplier=1.0))
    privatize(C=0.5, σ=1)
    >>> print(privatize(clip_norm=0.5))
    privatize(C=0.5, σ=open)
    """
    _require_sound(1.0 if clip_norm is None else clip_norm, noise_multiplier or 0.0)
    return Privatize(
        math.nan if clip_norm is None else float(clip_norm),
        math.nan if noise_multiplier is None else float(noise_multiplier),
        groups,
    )


def _require_sound(clip_norm: float, noise_multiplier: float) -> None:
    require_positive("clip_norm", clip_norm, infinite=True)
    require(
        noise_multiplier == 0 or SMALLEST_NOISE <= noise_multiplier < float("inf"),
        f"a noise_multiplier of 0 or between {SMALLEST_NOISE:g} and infinity",
        noise_multiplier,
        "It is the noise's standard deviation divided by clip_norm.",
    )
    require(
        noise_multiplier == 0 or clip_norm * noise_multiplier >= SMALLEST_DEVIATION,
        f"noise of a standard deviation of at least {SMALLEST_DEVIATION:g}",
        clip_norm * noise_multiplier,
        "Less is lost in floating point: raise clip_norm.",
    )
    require(
        clip_norm < float("inf") or noise_multiplier == 0,
        "a finite clip_norm where there is noise",
        clip_norm,
        "Noise is proportional to it.",
    )


@dataclass(frozen=True)
class Precondition(ReadsSide):
    """g ↦ (β g + (1 - β) M) / A, on the gradient of each unit or on the released mean."""

    @property
    def rule(self) -> Mapping[Kind, Kind]:
        """Gives the kind of signal that it takes."""
        return {Kind.PER_UNIT: Kind.PER_UNIT, **AFTER_RELEASE}

    def init(self, params: Params) -> Any:
        """Return the initial state of the side information."""
        return self.side.init(params)

    def apply(
        self, signal: GradientBatch | Params, state: Any, step: Step
    ) -> tuple[GradientBatch | Params, Any]:
        """Apply the transform of this step."""
        transform, following = self.side.observe(state, step)
        if isinstance(signal, dict):
            return _transformed(signal, transform), following
        if transform.inputs or transform.outputs:
            signal = signal.whiten(transform.inputs, transform.outputs)
        if transform.mean is not None:
            signal = signal.shift(transform.beta, transform.mean)
        scale = transform.stable_scale()
        if not (transform.inputs or transform.outputs or transform.mean):
            step.applied[id(self.side)] = scale
        return signal.scale(scale), following

    def __str__(self) -> str:
        settings = getattr(self.side, "settings", None)
        return f"precondition({self.provenance.source}{', ' + settings if settings else ''})"


@dataclass(frozen=True)
class PreconditionByReleases(Precondition):
    """The same by a source that learns from what its run has released."""

    def learn(self, state: Any, released: Params, step: Step) -> Any:
        """Pass on what was released to the source."""
        assert isinstance(self.side, LearnsFromReleases)
        return self.side.learn(state, released, step)

    def require_steps(self, steps: int) -> None:
        """Refuse a run that ends before its releases precondition any step."""
        if isinstance(self.side, CountsSteps):
            self.side.require_steps(steps)


def precondition(side: SideSource) -> Precondition:
    """Precondition gradients by side information.

    Before `privatize` this is AdaDPS; after it, the noise is scaled along with the gradient.
    """
    return (
        PreconditionByReleases(side) if isinstance(side, LearnsFromReleases) else Precondition(side)
    )


def _transformed(released: Params, transform: Transform) -> Params:
    if transform.inputs or transform.outputs:
        released = whitened_mean(released, transform.inputs, transform.outputs)
    shifted = released
    if transform.mean is not None:
        shifted = {
            name: transform.beta * value + (1 - transform.beta) * transform.mean[name]
            for name, value in released.items()
        }
    return {name: value * transform.scale[name] for name, value in shifted.items()}


@dataclass(frozen=True)
class Average:
    """(1/b) Σ_i g_i with the expected batch size b; its result is marked as exposed."""

    clip_norm: ClassVar[float] = float("inf")
    noise_multiplier: ClassVar[float] = 0.0
    groups: Users | None = None

    @property
    def rule(self) -> Mapping[Kind, Kind]:
        """Takes per-unit gradients and gives exposed ones."""
        return {Kind.PER_UNIT: Kind.EXPOSED}

    def init(self, params: Params) -> Params:
        """Return the parameters: the sum of an empty batch has their shapes."""
        return params

    def apply(
        self, signal: GradientBatch, state: Params, step: Step
    ) -> tuple[dict[str, Leaf], Params]:
        """Sum the gradients and divide by the expected batch size."""
        total = step.sum(signal, torch.ones_like, state)
        exposed = {name: step.release(value, 0.0) for name, value in total.items()}
        return ReleasedGradient(
            (name, value / step.expected_size) for name, value in exposed.items()
        ), state

    def __str__(self) -> str:
        return f"average({self.groups or ''})"


def average(*, groups: Users | None = None) -> Average:
    """Return the mean gradient without privacy, so that epsilon is infinite.

    With ``groups=by_user(...)`` it is the mean over users.
    """
    return Average(groups)


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
        if transform.inputs or transform.outputs:
            raise SideInformationError(
                "Expected one number per feature to reparametrise with, found matrices from "
                f"'{self.provenance.source}'. Use `precondition(whiten(...))`."
            )
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
    if isinstance(side, LearnsFromReleases):
        raise SideInformationError(
            "Expected side information that is known before the first step, found "
            f"'{side.provenance.source}'. Use `precondition(...)`, which follows it."
        )
    return Reparametrise(side, at)


def pretrain(public: PublicExamples, update: Stage, *, epochs: int) -> Pretrain:
    """Start from weights trained on public data: ``pretrain(data, rmsprop(0.01), epochs=10)``."""
    require(epochs >= 1, "epochs >= 1", epochs, "To skip pretraining, leave the stage out.")
    makes_update = Kind.UPDATE in update.rule.values() and Kind.UPDATE not in update.rule
    if not makes_update or isinstance(update, FollowsRelease):
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
        differentiate=lambda rows: objective.of_public_rows(params, rows.to(device)),
    )


def _per_feature(scale: Tensor, parameter: Tensor) -> Tensor:
    full = scale.expand(parameter.shape)
    averaged = full.flatten(0, -2).mean(0) if full.ndim > 1 else full
    return (averaged / averaged.max()).to(torch.float32)
