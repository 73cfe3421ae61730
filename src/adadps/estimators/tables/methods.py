"""Methods by name, with settings that follow from public quantities alone.

Batch size, steps, clip norm and learning rate are those of
`adadps.estimators.planner.defaults.choose`, which is told how long a typical row is where it meets
the clip and the noise. Typical rows are drawn from public frequencies, never from the data.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from dp_accounting import DpEvent
from scipy import sparse

from adadps.accounting.epsilon import Budget
from adadps.errors import SettingError, require_positive
from adadps.estimators.planner.defaults import Choice, choose, usual_size
from adadps.estimators.planner.named_methods import Method, adam_rate, chain_for, norms_for, shaped
from adadps.estimators.planner.typical_texts import Numbers, along_features, median_norm
from adadps.estimators.tables.features import RowFeatures
from adadps.estimators.tables.federation import Federation
from adadps.estimators.tables.targets import Targets
from adadps.estimators.tables.users import OfUsers
from adadps.methods.side import Frequencies
from adadps.methods.side.source import Fixed
from adadps.methods.stages import Chain, by_user, privatize
from adadps.types import Accountant, Unit


def chosen_for(method: Method, *, has_text: bool, on_devices: bool = False) -> Method:
    """The method itself; for auto, the one that suits the columns.

    In a federation it is one that devices can follow: they are sent weights and D, not features.

    >>> chosen_for(Method.AUTO, has_text=True).value
    'dp-sgd-weighted'
    >>> chosen_for(Method.AUTO, has_text=True, on_devices=True).value
    'adadps-two-sided'
    """
    if method is not Method.AUTO:
        return method
    if not has_text:
        return Method.DP_SGD
    return Method.ADADPS_TWO_SIDED if on_devices else Method.DP_SGD_WEIGHTED


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """Settings that a person gives; None is "choose for me"."""

    batch_size: float | None = None
    epochs: float | None = None
    clip_norm: float | None = None
    lr: float | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "epochs", "clip_norm", "lr"):
            if getattr(self, name) is not None:
                require_positive(name, getattr(self, name))


@dataclass(frozen=True)
class Plan:
    """A run that costs its budget; nothing in it depends on private data.

    ``by_rule`` is the choice before a federation has made its own of it.
    """

    choice: Choice
    chain: Chain
    by_rule: Choice
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Scales:
    """Typical rows, and A for all features where there is side information."""

    typical: sparse.csr_matrix
    side: Fixed | None

    def norms(self, method: Method) -> tuple[float, float]:
        """Of a typical row where the clip meets it, and where the noise does."""
        plain = median_norm(self.typical)
        scaled = plain if self.side is None else median_norm(self.typical, _a_of(self.side))
        return norms_for(method, plain=plain, scaled=scaled)


def plan_training(
    method: Method,
    features: RowFeatures,
    targets: Targets,
    *,
    examples: int,
    budget: Budget,
    accountant: Accountant,
    wishes: Wishes,
    frequencies: Frequencies | None = None,
    of_users: OfUsers | None = None,
    federation: Federation | None = None,
    besides: tuple[DpEvent, ...] = (),
    chosen: Choice | None = None,
) -> Plan:
    """Poisson batches of a declared number of examples, and the noise with which they fit.

    With ``of_users``, ``examples`` is the declared number of users; with a ``federation`` they
    train locally, in its cohorts. ``besides`` is what the run pays before its first step, and
    ``chosen`` what was planned before that: then nothing is chosen again.
    """
    if method.takes_side_information and frequencies is None:
        raise SettingError(
            f"Expected side information for {method.value}, found none. Give it, or use dp-sgd."
        )
    scales = _scales(method, features, frequencies)
    choice = chosen or _chosen(
        method,
        scales,
        targets,
        examples=examples,
        budget=budget,
        accountant=accountant,
        wishes=wishes,
        of_users=of_users,
        federation=federation,
        besides=besides,
    )
    by_rule = choice
    settings = {"method": method.value, "epochs": choice.epochs, "lr": choice.lr}
    if federation is not None:
        assert of_users is not None  # a federation is of users
        choice, made = federation.planned(method, scales.side, choice, of_users, wishes.clip_norm)
        return Plan(choice, made, by_rule, {**settings, "federated": True})
    return Plan(choice, _chain(method, choice, scales.side, of_users), by_rule, settings)


def _chosen(
    method: Method,
    scales: _Scales,
    targets: Targets,
    *,
    examples: int,
    budget: Budget,
    accountant: Accountant,
    wishes: Wishes,
    of_users: OfUsers | None,
    federation: Federation | None,
    besides: tuple[DpEvent, ...],
) -> Choice:
    clipped, noised = scales.norms(method)
    sampler, rounds = None, None
    if federation is not None:
        cohort = wishes.batch_size or usual_size(examples)
        sampler, rounds = federation.sampler(examples, cohort), federation.rounds
        noised *= federation.more_noise(cohort)
    choice = choose(
        examples=examples,
        sampler=sampler,
        steps=rounds,
        budget=budget,
        gradient_norm=targets.first_gradient,
        accountant=accountant,
        clipped_norm=clipped,
        noised_norm=noised,
        batch_size=wishes.batch_size,
        epochs=wishes.epochs,
        clip_norm=None if federation else wishes.clip_norm,
        lr=wishes.lr,
        unit=Unit.EXAMPLE if of_users is None else Unit.USER,
        besides=besides,
    )
    if wishes.lr is None and method is Method.DP_ADAM:
        choice = replace(choice, lr=adam_rate(choice.steps, noised))
    elif wishes.lr is None and targets.curvature is not None:
        choice = replace(choice, lr=min(choice.lr, 1 / (targets.curvature * clipped * noised)))
    return choice


def _chain(method: Method, choice: Choice, side: Fixed | None, of_users: OfUsers | None) -> Chain:
    privacy = privatize(
        clip_norm=choice.clip_norm,
        noise_multiplier=choice.noise_multiplier,
        groups=by_user(most=of_users.most, column=of_users.column) if of_users else None,
    )
    return chain_for(method, side, privacy, choice.lr)


def _scales(method: Method, features: RowFeatures, frequencies: Frequencies | None) -> _Scales:
    typical = features.typical(frequencies)
    if frequencies is None or not method.takes_side_information:
        return _Scales(typical, None)
    of_words = shaped(frequencies, method)
    return _Scales(typical, _for_all_features(of_words, features, typical))


def _for_all_features(of_words: Fixed, features: RowFeatures, typical: sparse.csr_matrix) -> Fixed:
    """A for the words of every text column, and a neutral one for all other features.

    Neutral is what leaves each block its share of a row's norm: if D makes typical texts longer by
    a factor t, other features get D = t.
    """
    words = np.tile(_a_of(of_words), len(features.schema.texts))
    texts = typical[:, : features.words]
    longer = median_norm(texts, words) / median_norm(texts)
    others = np.full(features.width - features.words, 1 / longer)
    whole = torch.from_numpy(np.concatenate([words, others]))
    return replace(of_words, named={"weight": (whole, 1)})


def _a_of(side: Fixed) -> Numbers:
    found = along_features(side)
    assert found is not None  # made here, of one number a feature
    return found
