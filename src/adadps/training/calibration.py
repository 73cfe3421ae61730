"""From what a caller asks for to a method with its noise, a sampler and a number of steps.

Nothing is given twice: a sampler *or* a batch size, steps *or* epochs, the clip norm in the method
*or* beside it. Noise that the method leaves open is calibrated: the smallest multiplier with which
all steps, and all side information that has to be paid for, fit the budget. Whether a method and
its data fit together is checked here, too, before anything is paid for or drawn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral

import torch
from torch.optim import Optimizer

from adadps.accounting.epsilon import Budget, calibrate_noise, grouping_of, units_of
from adadps.accounting.events import exposes, is_free
from adadps.accounting.samplers import Sampler, poisson
from adadps.data.examples import Examples, require_examples
from adadps.data.provenance import DeclaredRead, declared_read
from adadps.errors import ContractError, DataError, OrderError, SideInformationError, require
from adadps.methods.stages.chain import Chain, Informed
from adadps.methods.stages.users import Users
from adadps.training.describe import number_read_off
from adadps.training.payment import PaymentTerms, accountant_for
from adadps.types import Accountant, Unit


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a caller asks for, before it is completed."""

    method: Chain
    clip_norm: float | None = None
    batch_size: float | None = None
    sampler: Sampler | None = None
    steps: int | None = None
    epochs: float | None = None
    examples: int | None = None


@dataclass(frozen=True)
class TrainingPlan:
    """A method whose noise is known, the sampler of its batches, and the number of steps."""

    method: Chain
    sampler: Sampler
    steps: int
    read_off: tuple[str, ...] = ()
    """What was read off the data to make the plan, and is assumed to be public."""


def complete_plan(wanted: Wanted, data: Examples, terms: PaymentTerms) -> TrainingPlan:
    """Complete what a caller asks for, or say what is missing or given twice."""
    method = wanted.method
    if not isinstance(method, Chain):
        kind = type(method).__name__
        cure = (
            f"Give what makes it: `chain(privatize(), update_with(torch.optim.{kind}, lr=...))`."
            if isinstance(method, Optimizer)
            else "Build one by the functions of `adadps.methods`."
        )
        raise OrderError(
            f"Expected a method such as `dp_sgd(...)` or `chain(...)`, found {kind}. {cure}"
        )
    _require_kinds(wanted, terms)
    sampler, read_off = _sampler(wanted, data)
    steps = _steps(wanted, sampler)
    if wanted.clip_norm is not None or method.is_open:
        method = _completed(method, wanted.clip_norm, sampler, steps, terms)
    require_examples(data)
    return TrainingPlan(method, sampler, steps, (*read_off, *data.read_off))


def _require_kinds(wanted: Wanted, terms: PaymentTerms) -> None:
    """Refuse values of other types, before they are stated in a result or priced."""
    for name in ("steps", "examples"):
        value = getattr(wanted, name)
        whole = value is None or (isinstance(value, Integral) and not isinstance(value, bool))
        require(whole, f"a whole number of {name}", value, f"Give `{name}=` as an integer.")
    require(
        terms.budget is None or isinstance(terms.budget, Budget),
        "a budget",
        terms.budget,
        "Give `budget=Budget(epsilon=..., delta=...)`.",
    )
    require(
        terms.accountant is None or isinstance(terms.accountant, Accountant),
        "an accountant",
        terms.accountant,
        "Give `accountant=Accountant.PLD` or `Accountant.RDP`.",
    )


def _sampler(wanted: Wanted, data: Examples) -> tuple[Sampler, tuple[str, ...]]:
    """The given sampler, or Poisson sampling at the rate that batch size and number imply."""
    if wanted.sampler is not None:
        if wanted.batch_size is not None or wanted.examples is not None:
            raise ContractError(
                "Expected a sampler, or a batch_size (and perhaps examples), found both. The "
                "sampler has its own expected_size and declared number: give it alone."
            )
        return wanted.sampler, ()
    if wanted.batch_size is None:
        raise ContractError(
            "Expected a batch_size or a sampler, found neither. Give `batch_size=...`, or for "
            "another way of drawing batches `sampler=poisson(...)`, `fixed_size` or `shuffled`."
        )
    by_user = isinstance(wanted.method.release.groups, Users)
    number = _number_of_units(data, by_user) if wanted.examples is None else wanted.examples
    size = wanted.batch_size
    sampler = (
        poisson(users=number, expected_size=size)
        if by_user
        else poisson(examples=number, expected_size=size)
    )
    return sampler, (number_read_off(sampler),) if wanted.examples is None else ()


def _number_of_units(data: Examples, by_user: bool) -> int:
    require_examples(data)
    if by_user and data.users is not None:
        with declared_read(DeclaredRead.NUMBER):
            return len(torch.unique(data.users))
    return len(data)


def _steps(wanted: Wanted, sampler: Sampler) -> int:
    if (wanted.steps is None) == (wanted.epochs is None):
        raise ContractError("Expected either steps or epochs, found both or none. Give one.")
    steps = wanted.steps if wanted.steps is not None else sampler.steps(wanted.epochs or 0)
    require(steps >= 1, "steps >= 1", steps, "Train for at least one step.")
    return steps


def _completed(
    method: Chain, clip_norm: float | None, sampler: Sampler, steps: int, terms: PaymentTerms
) -> Chain:
    """The method with its clip norm, and with the noise that its budget asks for."""
    release = method.release
    own_clip = not math.isnan(release.clip_norm)
    if own_clip and clip_norm is not None:
        raise ContractError(
            f"Expected one clip norm, found {clip_norm:g} beside the one of {release}. Leave "
            "`clip_norm` out, or leave it out of `privatize(...)`."
        )
    if not own_clip and clip_norm is None:
        raise ContractError(
            f"Expected a clip norm for {release}, found none. Give `clip_norm=...`; 1.0 is a "
            "common start."
        )
    clip = release.clip_norm if clip_norm is None else clip_norm
    sigma = release.noise_multiplier
    if not math.isnan(sigma):  # only the clip norm was left open
        return method.completed(clip_norm=clip, noise_multiplier=sigma)
    budget = terms.budget or (terms.ledger.budget if terms.ledger else None)
    if budget is None:
        raise ContractError(
            f"Expected a budget to calibrate the noise of {release}, found none. Give "
            "`budget=Budget(epsilon=..., delta=...)`, or a noise multiplier: "
            "`privatize(clip_norm=..., noise_multiplier=...)`."
        )
    return method.completed(
        clip_norm=clip, noise_multiplier=_sigma(method, clip, sampler, steps, terms, budget)
    )


def _sigma(
    method: Chain,
    clip_norm: float,
    sampler: Sampler,
    steps: int,
    terms: PaymentTerms,
    budget: Budget,
) -> float:
    trial = method.completed(clip_norm=clip_norm, noise_multiplier=1.0)
    if trial.exposures:
        raise ContractError(
            "Expected a private method to calibrate, found one that is not: "
            f"{'; '.join(trial.exposures)}. Give `noise_multiplier` yourself to compare with it."
        )
    accountant = accountant_for(trial, sampler, terms)
    besides = terms.measured.events if terms.measured else ()
    return calibrate_noise(
        units_of(trial, sampler),
        steps,
        budget=budget,
        accountant=accountant,
        grouping=grouping_of(trial),
        besides=[*besides, *trial.side_events(sampler.relation, accountant)],
    )


def require_parts(method: Chain, data: Examples) -> None:
    """Refuse data that lacks what the method needs, or that the method would not protect."""
    require_examples(data)
    by_user = isinstance(method.release.groups, Users)
    if by_user and data.users is None:
        raise DataError(
            "Expected the user of each example, found none. Give `examples(..., users=...)`."
        )
    if data.users is not None and not by_user and not method.exposures:
        raise ContractError(
            "Expected a method that protects users, since the data has users, found one that "
            "protects single examples. Give `privatize(..., groups=by_user(most=...))`, or leave "
            "`users` out of the examples."
        )
    _require_side_information(method, data, Unit.USER if by_user else Unit.EXAMPLE)


def _require_side_information(method: Chain, data: Examples, unit: Unit) -> None:
    """What was measured on private data must have been measured and priced for the same unit."""
    count = len(data)
    if unit is Unit.USER and data.users is not None:
        with declared_read(DeclaredRead.NUMBER):
            count = len(torch.unique(data.users))
    for stage in method.informed:
        source = getattr(stage, "side", None)
        require_rows = getattr(source, "require_rows", None)
        if require_rows is not None:
            require_rows(count, unit)
        else:
            require_price_for(unit, stage)


def require_price_for(unit: Unit, stage: Informed) -> None:
    """Refuse side information whose price is for another unit than the method protects."""
    if is_free(stage.event) or exposes(stage.event):
        return
    found = getattr(getattr(stage, "side", None), "unit", Unit.EXAMPLE)
    if found is not unit:
        raise SideInformationError(
            f"Expected side information whose price is for one {unit.value}, found one for "
            f"one {found.value}. Measure it so that one {unit.value} is bounded, and say "
            "so: `side.fixed(..., event=..., unit=...)`."
        )
