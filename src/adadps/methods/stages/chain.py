"""A chain of stages, whose order is checked when it is built.

::

    examples ─▶ per-unit gradients ─▶ released or exposed gradients ─▶ update
      reparametrise   precondition        precondition, mix, momentum
      pretrain        privatize ┐         sgd, adam, update_with ─▶ average_weights
                      average ──┘

Every stage has a rule that says which kind of signal it takes and what it gives. `chain` folds
these rules, so that a wrong order cannot be run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, cast, runtime_checkable

from dp_accounting import DpEvent, NoOpDpEvent

from adadps.accounting.events import exposes, is_free
from adadps.accounting.groups import Groups
from adadps.data.examples import PublicExamples
from adadps.data.identity import PublicRows
from adadps.data.provenance import Provenance
from adadps.engine.objective import Objective
from adadps.engine.waist import GradientBatch, Step, Update
from adadps.errors import OrderError
from adadps.methods.side.source import GivesMatrices, MeasuredSource, SideSource
from adadps.methods.stages.users import Users
from adadps.tensors.sums import Params
from adadps.types import Accountant, Kind, Relation

AFTER_RELEASE: Mapping[Kind, Kind] = {Kind.RELEASED: Kind.RELEASED, Kind.EXPOSED: Kind.EXPOSED}
"""Rule of a stage that post-processes what was released."""

TO_UPDATE: Mapping[Kind, Kind] = {Kind.RELEASED: Kind.UPDATE, Kind.EXPOSED: Kind.UPDATE}
"""Rule of a stage that ends a chain."""


@runtime_checkable
class Stage(Protocol):
    """One step of a method: a rule, a state, and what it does to the signal."""

    @property
    def rule(self) -> Mapping[Kind, Kind]:
        """Which kinds it takes, and what it makes of each."""

    def init(self, params: Params) -> Any:
        """State before the first step."""

    def apply(self, signal: Any, state: Any, step: Step) -> tuple[Any, Any]:
        """Transform the signal; return it with the next state."""


@runtime_checkable
class Preparation(Protocol):
    """A stage that acts once, before the first step."""

    @property
    def rule(self) -> Mapping[Kind, Kind]:
        """Takes and gives examples."""

    def prepare(self, objective: Objective) -> Objective:
        """Change the objective, or its starting point."""

    def resume(self, objective: Objective) -> Objective:
        """What has to be done again when a run resumes from its checkpoint."""


@runtime_checkable
class Informed(Protocol):
    """A stage that reads side information or public data."""

    @property
    def event(self) -> DpEvent:
        """What it cost to know this."""

    @property
    def provenance(self) -> Provenance:
        """Where it came from."""


@runtime_checkable
class Release(Protocol):
    """The stage at which per-unit gradients become one sum."""

    @property
    def clip_norm(self) -> float:
        """C: the largest norm of a unit's contribution."""

    @property
    def noise_multiplier(self) -> float:
        """σ: the noise's standard deviation divided by C."""

    @property
    def groups(self) -> Groups | Users | None:
        """Examples that are clipped as one: groups, or what a user brings."""


@runtime_checkable
class Completable(Protocol):
    """A release whose clip norm or noise multiplier may still be open."""

    def completed(self, *, clip_norm: float, noise_multiplier: float) -> Any:
        """Return the same stage with this clip norm and noise multiplier."""


@runtime_checkable
class TakesLateNoise(Protocol):
    """A stage that only multiplies what was released by a number, so that noise can wait."""

    takes_late_noise: bool


@runtime_checkable
class FollowsRelease(Protocol):
    """A stage that has to know the noise in what it gets, so that nothing may change it before."""

    follows_release: bool


@runtime_checkable
class Learns(Protocol):
    """A stage whose state depends on what its own chain has released in past steps."""

    def learn(self, state: Any, released: Params, step: Step) -> Any:
        """Return the state for the next step, given what this one has released, with its noise."""


@runtime_checkable
class Unscales(Protocol):
    """A stage that takes back, after the noise, what a preconditioner did before the clip."""

    unscales: SideSource


@runtime_checkable
class ReplacesGradients(Protocol):
    """A preparation after which users bring something else than gradients of the model's layers."""

    replaces_gradients: bool


@runtime_checkable
class CountsSteps(Protocol):
    """A stage whose settings may be laid down for some number of steps only."""

    def require_steps(self, steps: int) -> None:
        """Refuse more steps than it has settings for."""


@runtime_checkable
class AveragesWeights(Protocol):
    """A stage that averages the weights of all steps, for evaluations and the result."""

    def averaged(self, state: Any) -> Params:
        """Return the averages."""


def _makes_update(stage: Stage | Preparation) -> bool:
    return Kind.UPDATE in stage.rule.values() and Kind.UPDATE not in stage.rule


@dataclass(frozen=True)
class Chain:
    """A method: stages in a legal order. Build it with `chain`."""

    stages: tuple[Stage | Preparation, ...]

    def __post_init__(self) -> None:
        _require_order(self.stages)

    @cached_property
    def preparations(self) -> tuple[Preparation, ...]:
        """The stages that act once, before the first step."""
        return tuple(stage for stage in self.stages if isinstance(stage, Preparation))

    @cached_property
    def steps(self) -> tuple[Stage, ...]:
        """The stages that act at every step."""
        return tuple(stage for stage in self.stages if isinstance(stage, Stage))

    @cached_property
    def release(self) -> Release:
        """The stage at which per-unit gradients become one sum."""
        return next(stage for stage in self.stages if isinstance(stage, Release))

    @cached_property
    def update(self) -> Stage:
        """The stage that makes an update of what was released."""
        return next(stage for stage in self.steps if _makes_update(stage))

    @cached_property
    def averaging(self) -> AveragesWeights | None:
        """The stage whose averages are the weights that a run gives away, if there is one."""
        return next((stage for stage in self.steps if isinstance(stage, AveragesWeights)), None)

    def require_steps(self, steps: int) -> None:
        """Refuse more steps than all stages have settings for."""
        for stage in self.steps:
            if isinstance(stage, CountsSteps):
                stage.require_steps(steps)

    @property
    def is_open(self) -> bool:
        """Is the clip norm or the noise of this method still to be chosen?"""
        return math.isnan(self.release.clip_norm) or math.isnan(self.release.noise_multiplier)

    def completed(self, *, clip_norm: float, noise_multiplier: float) -> Chain:
        """Return the same method with this clip norm and noise multiplier."""
        return Chain(
            tuple(
                stage.completed(clip_norm=clip_norm, noise_multiplier=noise_multiplier)
                if isinstance(stage, Completable)
                else stage
                for stage in self.stages
            )
        )

    @cached_property
    def informed(self) -> tuple[Informed, ...]:
        """The stages that read side information or public data."""
        return tuple(stage for stage in self.stages if isinstance(stage, Informed))

    @cached_property
    def public_readers(self) -> tuple[tuple[Any, PublicExamples], ...]:
        """What reads public examples, sources and stages, each with the examples that it reads."""
        found = []
        for stage in self.informed:
            reader = getattr(stage, "side", stage)
            held = getattr(reader, "examples", getattr(stage, "public", None))
            if isinstance(held, PublicExamples) and not exposes(stage.event):
                found.append((reader, held))
        return tuple(found)

    @cached_property
    def public_rows(self) -> tuple[PublicRows, ...]:
        """Rows that are public: the public examples that this chain reads, and its corpora."""
        found = []
        for stage in self.informed:
            side = getattr(stage, "side", None)
            held = getattr(stage, "public", None) or getattr(side, "examples", side)
            rows = getattr(held, "rows", None)
            if isinstance(rows, PublicRows) and not exposes(stage.event):
                found.append(rows)
        return tuple(found)

    def side_events(self, relation: Relation, accountant: Accountant) -> tuple[DpEvent, ...]:
        """What the side information costs under these terms, before the first step.

        A source that stands in the chain twice was measured once, and is paid once.
        """
        found: dict[int, DpEvent] = {}
        for stage in self.informed:
            source = getattr(stage, "side", stage)
            if isinstance(source, MeasuredSource):
                found[id(source)] = source.event_under(relation, accountant)
            else:
                found[id(source)] = stage.event
        return tuple(event for event in found.values() if not is_free(event))

    @cached_property
    def exposures(self) -> tuple[str, ...]:
        """Why this chain is not private; empty if it is."""
        reasons = []
        release = self.release
        exposed = any(
            Kind.EXPOSED in stage.rule.values()
            and Kind.PER_UNIT in stage.rule
            and Kind.RELEASED not in stage.rule
            for stage in self.steps
        )
        if self.is_open:
            reasons.append(f"{release} has no clip norm or no noise yet")
        elif exposed or not release.noise_multiplier > 0:
            reasons.append(f"{release} adds no noise")
        elif release.clip_norm == float("inf"):
            reasons.append(f"{release} does not clip")
        reasons += [
            f"{stage} reads private data" for stage in self.informed if exposes(stage.event)
        ]
        return tuple(reasons)

    @cached_property
    def learners(self) -> tuple[Learns | None, ...]:
        """Each step stage if it learns from releases, otherwise None."""
        return tuple(stage if isinstance(stage, Learns) else None for stage in self.steps)

    @cached_property
    def allows_late_noise(self) -> bool:
        """May noise be drawn when the weights are read, instead of at the step?"""
        if any(self.learners):
            return False  # the next step learns from what is released now, noise included
        after = self.steps[self.steps.index(cast(Stage, self.release)) + 1 :]
        return all(isinstance(stage, TakesLateNoise) and stage.takes_late_noise for stage in after)

    def init(self, params: Params) -> tuple[Any, ...]:
        """State of every step stage before the first step."""
        return tuple(stage.init(params) for stage in self.steps)

    def apply(
        self, gradients: GradientBatch, states: tuple[Any, ...], step: Step
    ) -> tuple[Update, tuple[Any, ...]]:
        """From per-unit gradients to the update that is added to the weights.

        Stages that learn get what was released only after all stages have acted: a step is never
        preconditioned by itself, and nobody learns from gradients without their noise.
        """
        signal: Any = gradients
        step = replace(step, late=step.late and self.allows_late_noise)
        released: Params = {}
        following = []
        for stage, state in zip(self.steps, states, strict=True):
            signal, advanced = stage.apply(signal, state, step)
            following.append(advanced)
            if stage is cast(Stage, self.release):
                released = signal
        learnt = (
            stage.learn(state, released, step) if stage else state
            for stage, state in zip(self.learners, following, strict=True)
        )
        return cast(Update, signal), tuple(learnt)

    def __str__(self) -> str:
        return " > ".join(str(stage) for stage in self.stages)


def chain(*stages: Stage | Preparation) -> Chain:
    """Join stages into a method, or say which one stands wrong.

    >>> from adadps.methods.stages import privatize, sgd
    >>> print(chain(privatize(clip_norm=1.0, noise_multiplier=2.0), sgd(0.1)))
    privatize(C=1, σ=2) > sgd(0.1)
    >>> chain(sgd(0.1), privatize(clip_norm=1.0, noise_multiplier=2.0))
    Traceback (most recent call last):
    adadps.errors.OrderError: Cannot place `sgd(0.1)` first: it needs released (privatized) ...
    """
    return Chain(stages)


def _require_order(stages: tuple[Stage | Preparation, ...]) -> None:
    kind, before, last = Kind.EXAMPLES, "first", None
    scaled: list[SideSource] = []
    for stage in stages:
        if not isinstance(stage, Stage | Preparation):
            raise OrderError(
                f"Expected stages, found {stage!r}. Call the function that makes the stage."
            )
        if kind is Kind.EXAMPLES and Kind.EXAMPLES not in stage.rule:
            kind = Kind.PER_UNIT
        if kind not in stage.rule:
            needs = " or ".join(taken.value for taken in stage.rule)
            raise OrderError(
                f"Cannot place `{stage}` {before}: it needs {needs}, found {kind.value}. "
                f"{_cure(stage, kind)}"
            )
        if isinstance(stage, FollowsRelease) and not isinstance(last, Release):
            raise OrderError(
                f"Cannot place `{stage}` {before}: it needs the noise of the release as it was "
                "added. Move it right after `privatize(...)` or `average()`."
            )
        if isinstance(stage, Unscales) and not any(stage.unscales is side for side in scaled):
            raise OrderError(
                f"Cannot place `{stage}` {before}: no stage has applied the scale that it takes "
                "back. Add `precondition(...)` with the same source before the release."
            )
        if isinstance(stage, ReadsSide) and isinstance(stage.side, GivesMatrices):
            _require_place_of_matrices(
                stage, stages, before, scaled if kind is Kind.PER_UNIT else []
            )
        if kind is Kind.PER_UNIT and isinstance(stage, ReadsSide):
            scaled.append(stage.side)
        kind, before, last = stage.rule[kind], f"after `{stage}`", stage
    if sum(isinstance(stage, AveragesWeights) for stage in stages) > 1:
        raise OrderError("Expected one `average_weights(...)`, found several. Leave one of them.")
    if kind is not Kind.UPDATE:
        end = f"Expected a chain that ends with an update of the weights, found {kind.value}."
        raise OrderError(f"{end} Add `sgd(...)`, `adam(...)` or `update_with(...)`.")


def _require_place_of_matrices(
    stage: Any, stages: tuple[Stage | Preparation, ...], before: str, scaled: list[SideSource]
) -> None:
    """Matrices multiply gradients of layers, and only before anything else has scaled them."""
    if any(isinstance(other, ReplacesGradients) for other in stages):
        raise OrderError(
            f"Cannot place `{stage}` in a method with local training: it needs the gradients of "
            "layers, found differences of weights. Use a source with one value per weight."
        )
    if scaled or isinstance(stage, Unscales):
        raise OrderError(
            f"Cannot place `{stage}` {before}: it has matrices, which come first and are not "
            "taken back. Put `precondition(whiten(...))` before every other preconditioner, and "
            "unscale only what multiplies entry by entry."
        )


def _cure(stage: Stage | Preparation, kind: Kind) -> str:
    if isinstance(stage, Preparation):
        return "It acts once: move it before `privatize(...)` or `average()`, to the front."
    if tuple(stage.rule) == (Kind.UPDATE,):
        return "Move it behind the update, such as `sgd(...)`."
    return _CURES[kind]


_CURES = {
    Kind.PER_UNIT: "Add `privatize(...)` or `average()` before it.",
    Kind.RELEASED: "Gradients are privatized once: remove it, or move it before `privatize(...)`.",
    Kind.EXPOSED: "Gradients are averaged once: remove it, or move it before `average()`.",
    Kind.UPDATE: "The update must come last: move it to the end.",
}


@dataclass(frozen=True)
class ReadsSide:
    """A stage that reads side information; event and provenance are those of its source."""

    side: SideSource

    @property
    def event(self) -> DpEvent:
        """What the side information cost."""
        return self.side.event

    @property
    def provenance(self) -> Provenance:
        """Where the side information comes from."""
        return self.side.provenance


@dataclass(frozen=True)
class ReadsPublic:
    """A stage that reads public examples, which costs nothing."""

    public: PublicExamples

    @property
    def event(self) -> DpEvent:
        """Nothing is charged for public data."""
        return NoOpDpEvent()

    @property
    def provenance(self) -> Provenance:
        """Where the public examples come from."""
        return self.public.provenance
