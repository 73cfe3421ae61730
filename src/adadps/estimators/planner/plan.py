"""One call from public facts to a planned run: its settings and its chain."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from dp_accounting import DpEvent

from adadps.accounting.epsilon import Budget
from adadps.estimators.planner.federation import FederatedSettings, UserColumn
from adadps.estimators.planner.methods import Method, Norms, PreparedMethod, adam_rate
from adadps.estimators.planner.settings import (
    RULE,
    DefaultRule,
    GivenSettings,
    Settings,
    choose_settings,
    default_batch_size,
)
from adadps.methods.stages import Chain, by_user, privatize
from adadps.types import Accountant, Unit


@dataclass(frozen=True)
class LossFacts:
    """What the planner needs to know about a loss.

    ``gradient_norm`` is the typical norm of its gradient by the outputs at the start.
    ``curvature`` is its second derivative by the outputs, where that does not flatten out: a step
    longer than 2 / (curvature · ‖x‖²) overshoots further every time. ``largest_lr`` bounds the
    learning rate by itself.
    """

    gradient_norm: float
    curvature: float | None = None
    largest_lr: float | None = None

    def bounded(self, lr: float, norms: Norms) -> float:
        """Return the learning rate, or the largest one with which this loss converges."""
        if self.curvature is not None:
            lr = min(lr, 1 / (self.curvature * norms.clipped * norms.noised))
        return lr if self.largest_lr is None else min(lr, self.largest_lr)


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
        return self.prepared.chain(privacy, self.settings.lr)

    def describe(self) -> dict[str, Any]:
        """Return the settings that a result states beside those of its chain."""
        local = self.method is not Method.DP_ADAM and self.federation is not None
        lr = self.settings.local_lr if local else self.settings.lr
        described = {"method": self.method.value, "epochs": self.settings.epochs, "lr": lr}
        return described if self.federation is None else {**described, "federated": True}


def plan_training(
    prepared: PreparedMethod,
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

    With ``users``, ``examples`` is the declared number of users; with a ``federation`` they train
    locally, in its cohorts. ``besides`` is what the run pays before its first step.

    >>> budget = Budget(1.0, 5e-6)
    >>> plan = plan_training(
    ...     PreparedMethod(Method.DP_SGD), examples=20_000, budget=budget, loss=LossFacts(0.7)
    ... )
    >>> plan.settings.steps, str(plan.chain).partition("(")[0]
    (400, 'privatize')
    """
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
        adaptive = prepared.method is Method.DP_ADAM
        lr = adam_rate(settings.steps, norms.noised) if adaptive else settings.lr
        settings = replace(settings, lr=lr if adaptive else loss.bounded(lr, norms))
    if federation is not None:
        settings = federation.adapted(settings, prepared.method, given.clip_norm)
    plan = PlannedRun(prepared, settings, users, federation)
    _ = plan.chain  # so that what cannot be chained is refused now
    return plan
