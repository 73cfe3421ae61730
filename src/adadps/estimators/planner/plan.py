"""One call from public facts to a planned run, with settings that need no tuning.

The rule knows a declared number of examples n, a budget (ε, δ), and rows of bounded norm. Batches
are a fixed share q of the examples and there are T steps, so σ follows from the budget. Two
settings are left, and both are free of scale:

- the clip norm is a share of the norm that a gradient has at the start, which for a row x and
  cross-entropy over K classes is ‖x‖ √(1 - 1/K);
- the learning rate follows from how much noise an output may have at the end. After T steps the
  output for a row x carries noise of standard deviation lr · σ C √T / b · ‖x‖. At a given budget
  σ √T / b depends little on b and T. A smaller budget or fewer examples then mean shorter steps,
  and the learning rate need not be searched for.

Where the constants come from: docs/results/defaults.md.

In a federation, users train locally and a server sums their updates. The learning rate by the rule
becomes that of the devices, and a user's update is clipped where one step at that rate would be.
With a server learning rate of 1, a federation whose users take one local step is then the
user-level method itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from dp_accounting import DpEvent

from adadps.accounting.epsilon import Budget, calibrate_noise
from adadps.accounting.samplers import Sampler, fixed_size, poisson, shuffled
from adadps.errors import SettingError, require, require_positive
from adadps.estimators.planner.methods import Norms, PreparedMethod, adam_rate, embedding_share
from adadps.estimators.planner.successors import NORMALISED, SUCCESSORS, rate_factor
from adadps.methods.stages import (
    Chain,
    adam,
    by_each_device,
    by_server,
    by_user,
    chain,
    in_shares,
    momentum,
    precondition,
    privatize,
    reparametrise,
    sgd,
    train_locally,
)
from adadps.methods.stages.noise_place import NoisePlace, deviation
from adadps.types import Accountant, DrawnBy, Method, NoiseBy, Unit

SMALLEST_BATCH = 64


@dataclass(frozen=True)
class DefaultRule:
    """The constants of the rule.

    ``rate`` is q, ``clip`` the share of the first gradient's norm, ``output_noise`` the noise that
    an output may have, ``longest`` the largest lr · T.
    """

    rate: float = 1 / 16
    steps: int = 400
    clip: float = 0.25
    output_noise: float = 0.6
    longest: float = 100_000.0


RULE = DefaultRule()


@dataclass(frozen=True, kw_only=True)
class GivenSettings:
    """Settings that the caller fixes; the rule chooses those that are None."""

    batch_size: float | None = None
    steps: int | None = None
    epochs: float | None = None
    clip_norm: float | None = None
    lr: float | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "epochs", "clip_norm", "lr"):
            if getattr(self, name) is not None:
                require_positive(name, getattr(self, name))


@dataclass(frozen=True)
class Settings:
    """The settings of a run; none of them depends on private data.

    ``local_lr`` is the learning rate on the devices of a federation.
    """

    sampler: Sampler
    steps: int
    noise_multiplier: float
    clip_norm: float
    lr: float
    budget: Budget
    accountant: Accountant
    local_lr: float | None = None

    @property
    def epochs(self) -> float:
        """Return how often an example is drawn, on average."""
        return self.steps * self.sampler.expected_size / self.sampler.examples


def first_gradient(outputs: int) -> float:
    """Return the norm of cross-entropy's gradient by K outputs that are all alike.

    >>> round(first_gradient(2), 3)
    0.707
    """
    return math.sqrt(1 - 1 / max(2, outputs))


def default_batch_size(examples: int, rule: DefaultRule = RULE) -> int:
    """Return the expected batch size by the rule.

    >>> default_batch_size(20_000)
    1250
    """
    return min(examples, max(SMALLEST_BATCH, round(rule.rate * examples)))


def choose_settings(
    *,
    examples: int,
    budget: Budget,
    gradient_norm: float,
    accountant: Accountant = Accountant.PLD,
    norms: Norms = Norms(),  # noqa: B008  (frozen)
    given: GivenSettings = GivenSettings(),  # noqa: B008  (frozen)
    unit: Unit = Unit.EXAMPLE,
    sampler: Sampler | None = None,
    rule: DefaultRule = RULE,
    besides: tuple[DpEvent, ...] = (),
) -> Settings:
    """Return the settings that are ``given``, and the rule's for the rest.

    ``gradient_norm`` is the norm of the loss's gradient by the outputs at the start (see
    `first_gradient`), and ``norms`` are those of a typical row. Where the ``unit`` is a user,
    ``examples`` and the batch size count users. ``sampler`` replaces the Poisson sampler.
    ``besides`` is what the same budget pays for before the first step.

    >>> budget = Budget(1.0, 5e-6)
    >>> held = choose_settings(examples=20_000, budget=budget, gradient_norm=first_gradient(2))
    >>> held.sampler.expected_size, held.steps
    (1250.0, 400)
    """
    require(examples >= 1, "examples >= 1", examples, "Declare how many there are.")
    if sampler is None:
        wanted = given.batch_size
        size = float(default_batch_size(examples, rule) if wanted is None else wanted)
        if unit is Unit.USER:
            sampler = poisson(users=examples, expected_size=size)
        else:
            sampler = poisson(examples=examples, expected_size=size)
    steps = given.steps
    if steps is None:
        steps = rule.steps if given.epochs is None else sampler.steps(given.epochs)
    sigma = calibrate_noise(sampler, steps, budget=budget, accountant=accountant, besides=besides)
    clip_norm = given.clip_norm
    if clip_norm is None:
        clip_norm = rule.clip * gradient_norm * norms.clipped
    require_positive("clip_norm", clip_norm)
    lr = given.lr
    if lr is None:
        noise_at_rate_one = sigma * clip_norm * math.sqrt(steps) / sampler.expected_size
        lr = min(rule.output_noise / (noise_at_rate_one * norms.noised), rule.longest / steps)
    require_positive("lr", lr)
    return Settings(sampler, steps, sigma, clip_norm, lr, budget, accountant)


@dataclass(frozen=True)
class LossFacts:
    """What the planner needs to know about a loss.

    ``gradient_norm`` is the typical norm of its gradient by the outputs at the start.
    ``curvature`` is its second derivative by the outputs, where that does not flatten out: a step
    longer than 2 / (curvature · ‖x‖²) overshoots further every time. ``largest_lr`` bounds the
    learning rate by itself. ``outputs`` is the number of the model's outputs.
    """

    gradient_norm: float
    curvature: float | None = None
    largest_lr: float | None = None
    outputs: int = 1

    def bounded(self, lr: float, norms: Norms) -> float:
        """Return the learning rate, or the largest one with which this loss converges."""
        if self.curvature is not None:
            lr = min(lr, 1 / (self.curvature * norms.clipped * norms.noised))
        return lr if self.largest_lr is None else min(lr, self.largest_lr)


PrepareByShare = Callable[[float], PreparedMethod]
"""Prepares a method for texts, given the share of embeddings in their squared norm."""


@dataclass(frozen=True)
class PlannedRun:
    """A run that costs its budget; nothing in it depends on private data."""

    prepared: PreparedMethod
    settings: Settings
    users: UserColumn | None = None
    federation: FederatedSettings | None = None

    @property
    def method(self) -> Method:
        """Return the method that is trained."""
        return self.prepared.method

    @cached_property
    def chain(self) -> Chain:
        """Return the chain of the run."""
        if self.federation is not None:
            assert self.users is not None  # a federation is one of users
            return self.federation.chain(self.prepared, self.settings, self.users)
        groups = by_user(most=self.users.most, column=self.users.name) if self.users else None
        privacy = privatize(
            clip_norm=self.settings.clip_norm,
            noise_multiplier=self.settings.noise_multiplier,
            groups=groups,
        )
        settings = self.settings
        size = settings.sampler.expected_size
        return self.prepared.chain(privacy, settings.lr, steps=settings.steps, size=size)

    def with_method(self, prepare: PrepareByShare, outputs: int) -> PlannedRun:
        """Return this run with a method for what became known after it was planned."""
        examples, epsilon = self.settings.sampler.examples, self.settings.budget.epsilon
        return replace(self, prepared=prepare(embedding_share(examples, outputs, epsilon)))

    def describe(self) -> dict[str, Any]:
        """Return the settings that a result states beside those of its chain."""
        local = self.method is not Method.DP_ADAM and self.federation is not None
        lr = self.settings.local_lr if local else self.settings.lr
        described = {"method": self.method.value, "epochs": self.settings.epochs, "lr": lr}
        return described if self.federation is None else {**described, "federated": True}


def plan_training(
    prepared: PreparedMethod | PrepareByShare,
    *,
    examples: int,
    budget: Budget,
    loss: LossFacts,
    accountant: Accountant = Accountant.PLD,
    given: GivenSettings = GivenSettings(),  # noqa: B008  (frozen)
    users: UserColumn | None = None,
    federation: FederatedSettings | None = None,
    rule: DefaultRule = RULE,
    besides: tuple[DpEvent, ...] = (),
) -> PlannedRun:
    """Plan a run on a declared number of examples, with noise that fits the budget.

    A method for texts is ``prepared`` here, with the share that embeddings have by rule. With
    ``users``, ``examples`` is the declared number of users; with a ``federation`` they train
    locally, in its cohorts. ``besides`` is what the run pays before its first step.

    >>> budget = Budget(1.0, 5e-6)
    >>> plan = plan_training(
    ...     PreparedMethod(Method.DP_SGD), examples=20_000, budget=budget, loss=LossFacts(0.7)
    ... )
    >>> plan.settings.steps, str(plan.chain).partition("(")[0]
    (400, 'privatize')
    """
    if not isinstance(prepared, PreparedMethod):
        prepared = prepared(embedding_share(examples, loss.outputs, budget.epsilon))
    norms, sampler, fixed = prepared.norms, None, given
    if federation is not None:
        cohort = given.batch_size or default_batch_size(examples)
        sampler = federation.sampler(examples, cohort)
        norms = replace(norms, noised=norms.noised * federation.noise_factor(cohort))
        fixed = replace(given, steps=federation.rounds, clip_norm=None)
    settings = choose_settings(
        examples=examples,
        budget=budget,
        gradient_norm=loss.gradient_norm,
        accountant=accountant,
        norms=norms,
        given=fixed,
        unit=Unit.EXAMPLE if users is None else Unit.USER,
        sampler=sampler,
        rule=rule,
        besides=besides,
    )
    if given.lr is None:
        settings = replace(settings, lr=_rate(prepared.method, settings, loss, norms))
    if federation is not None:
        settings = federation.adapted(settings, prepared.method, given.clip_norm)
    plan = PlannedRun(prepared, settings, users, federation)
    _ = plan.chain  # so that what cannot be chained is refused now
    return plan


def _rate(method: Method, settings: Settings, loss: LossFacts, norms: Norms) -> float:
    """Return the learning rate of a method by the rule."""
    clip_share = settings.clip_norm / (loss.gradient_norm * norms.clipped)
    factor = rate_factor(method, clip_share) if method in SUCCESSORS else 1.0
    if method in NORMALISED:
        return factor * adam_rate(settings.steps, norms.noised)
    return loss.bounded(factor * settings.lr, norms)


@dataclass(frozen=True)
class UserColumn:
    """The column that tells users apart; at most ``most`` rows of a user count in one step."""

    name: str
    most: int


@dataclass(frozen=True, kw_only=True)
class FederatedSettings:
    """Settings that only a federation has; the planner chooses those that are None.

    ``minimum`` is the smallest number of answers with which a round counts. ``sampling`` is by
    default Poisson where the server adds the noise, and shuffled elsewhere.
    """

    local_epochs: int = 1
    local_batch_size: int = 100
    local_lr: float | None = None
    server_momentum: float = 0.0
    noise: NoiseBy = NoiseBy.SERVER
    minimum: int | None = None
    sampling: DrawnBy | None = None
    rounds: int | None = None

    def __post_init__(self) -> None:
        if self.local_lr is not None:
            require_positive("local_lr", self.local_lr)
        require(
            0 <= self.server_momentum < 1,
            "0 <= server momentum < 1",
            self.server_momentum,
            "0.9 is common, 0 is none.",
        )
        if self.noise is NoiseBy.SHARES and self.minimum is None:
            raise SettingError(
                "Expected --minimum COUNT with --noise shares, found none. It is the smallest "
                "number of answers with which a round counts: their shares make up all of the "
                "noise."
            )
        if self.noise is not NoiseBy.SHARES and self.minimum is not None:
            raise SettingError(
                f"Expected --minimum only with --noise shares, found it with --noise "
                f"{self.noise.value}. Leave it out."
            )
        if self.noise is not NoiseBy.SERVER and self.drawn_by is not DrawnBy.SHUFFLED:
            raise SettingError(
                f"Expected --sampling shuffled with --noise {self.noise.value}, found "
                f"{self.drawn_by.value}. Sampling protects nobody where the noise depends on who "
                "answers, so that every participation is paid for: leave --sampling out."
            )

    @property
    def drawn_by(self) -> DrawnBy:
        """Return how users are drawn."""
        usual = DrawnBy.POISSON if self.noise is NoiseBy.SERVER else DrawnBy.SHUFFLED
        return self.sampling or usual

    @property
    def noise_place(self) -> NoisePlace:
        """Return where the noise is added."""
        if self.noise is NoiseBy.SHARES:
            assert self.minimum is not None  # required above
            return in_shares(minimum=self.minimum)
        return by_server() if self.noise is NoiseBy.SERVER else by_each_device()

    @property
    def accountants(self) -> tuple[Accountant, ...]:
        """Return the accountants that can price the cohorts, the default first."""
        if self.drawn_by is DrawnBy.FIXED:
            return (Accountant.RDP,)
        return (Accountant.PLD, Accountant.RDP)

    def sampler(self, users: int, cohort: float) -> Sampler:
        """Return a sampler of cohorts of this size, on average, among the declared users."""
        match self.drawn_by:
            case DrawnBy.POISSON:
                return poisson(users=users, expected_size=cohort)
            case DrawnBy.FIXED:
                return fixed_size(users=users, expected_size=round(cohort))
            case DrawnBy.SHUFFLED:
                return shuffled(users=users, expected_size=round(cohort))

    def noise_factor(self, cohort: float) -> float:
        """Return how many times the noise of the server alone a cohort's sum has."""
        return deviation(self.noise_place, 1.0, round(cohort))

    def adapted(self, by_rule: Settings, method: Method, clip_norm: float | None) -> Settings:
        """Return the rule's settings for devices and server; ``clip_norm`` is that of an update."""
        adaptive = method is Method.DP_ADAM
        local_lr = self.local_lr or (1.0 if adaptive else by_rule.lr)
        return replace(
            by_rule,
            clip_norm=clip_norm or local_lr * by_rule.clip_norm,
            lr=by_rule.lr if adaptive else 1.0,
            local_lr=local_lr,
        )

    def chain(self, prepared: PreparedMethod, settings: Settings, users: UserColumn) -> Chain:
        """Return the chain: local training, the release at the server, the server's update."""
        method, side = prepared.method, prepared.side
        if method in SUCCESSORS:
            raise SettingError(
                f"Expected a method of federations, found {method.value}, which is planned for "
                "rows in one place. Use dp-sgd, dp-adam, adadps or adadps-two-sided."
            )
        groups = by_user(most=users.most, column=users.name, noise=self.noise_place)
        groups.units_of(settings.sampler).accountants(groups.grouping)  # refuses what cannot be
        release = privatize(
            clip_norm=settings.clip_norm, noise_multiplier=settings.noise_multiplier, groups=groups
        )
        on_device = method in (Method.ADADPS, Method.ADADPS_TWO_SIDED)
        assert settings.local_lr is not None  # made by `adapted`
        local = train_locally(
            lr=settings.local_lr,
            batch_size=self.local_batch_size,
            epochs=self.local_epochs,
            side=side if on_device else None,
        )
        first = [reparametrise(side)] if side is not None and not on_device else []
        after = [precondition(side)] if side and method is Method.ADADPS_TWO_SIDED else []
        slow = [momentum(self.server_momentum)] if self.server_momentum else []
        last = adam(settings.lr) if method is Method.DP_ADAM else sgd(settings.lr)
        return chain(*first, local, release, *after, *slow, last)
