"""`--rare other`: plan, pay, then count what was not declared; all under the plan of one run.

Noise, batches and number of steps are fixed before anything is counted, with something in place of
what is not known, so that PLD may compose the count with the training. A table that cannot be
trained on is refused before anything is paid.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from adadps.accounting.epsilon import grouping_of, units_of
from adadps.accounting.ledger import DiskLedger
from adadps.accounting.noisy_counts.price import Paid, Price, pay, price_of
from adadps.data.declared_reads import DeclaredRead, declared_read
from adadps.data.tables import read_chunks
from adadps.engine.noise.randomness import secure
from adadps.errors import DataError
from adadps.estimators.tables.budgeting import shared_ledger, terms_for
from adadps.estimators.tables.kept_run import KeptRun
from adadps.estimators.tables.levels_file import KeptLevels, kept_levels
from adadps.estimators.tables.loading import users_in
from adadps.estimators.tables.methods import Plan, plan_training
from adadps.estimators.tables.paid_survey import columns_of, measure
from adadps.estimators.tables.public_words import PublicWords
from adadps.estimators.tables.request import Declared, Request
from adadps.estimators.tables.saved import TableModel
from adadps.estimators.tables.schema import Schema
from adadps.estimators.tables.survey import facts
from adadps.training.checkpoint import LEDGER
from adadps.training.describe import plan_of
from adadps.types import Relation

MEASURED = "measured with noise"


@dataclass(frozen=True)
class Measured:
    """A whole schema, the plan under which it was paid for, and the ledger of both."""

    schema: Schema
    plan: Plan
    paid: Paid
    ledger: DiskLedger
    units: int


def paid_levels(
    request: Request,
    declared: Declared,
    words: PublicWords,
    kept: KeptRun,
    opened: ExitStack,
) -> Measured:
    """What was not declared, measured and paid for; from the run's folder if that was done."""
    stand_in = TableModel(declared.schema.stand_in(), words.vocabulary)
    found = _checked_units(request, stand_in)
    units = declared.counted or found
    terms = terms_for(request, units)
    price = price_of(
        columns_of(declared.schema),
        units=units,
        what=declared.units,
        budget=terms.budget,
        accountant=terms.accountant,
        relation=_relation(request, units),
    )
    plan = plan_training(
        declared.method,
        stand_in.features,
        stand_in.targets,
        examples=units,
        budget=terms.budget,
        accountant=terms.accountant,
        wishes=request.wishes,
        frequencies=words.frequencies,
        of_users=declared.of_users,
        federation=request.federation,
        besides=price.events,
    )
    plan.choice.sampler.require_declared(found)
    budget = plan.choice.budget
    ledger = opened.enter_context(
        shared_ledger(request, budget) or DiskLedger(kept.folder / LEDGER, budget=budget)
    )
    held = _measured_once(request, declared.schema, price, plan, kept, ledger)
    told = (price.in_words(), *facts(declared.schema, held.schema, MEASURED, only_found=True))
    return Measured(held.schema, plan, Paid(held.run, price.events, told), ledger, found)


def _measured_once(
    request: Request, schema: Schema, price: Price, plan: Plan, kept: KeptRun, ledger: DiskLedger
) -> KeptLevels:
    choice, chain = plan.choice, plan.chain
    run = plan_of(chain, choice.sampler, choice.steps, price.accountant, price.events)
    hashed = run.plan_hash(price.relation, price.accountant)
    held = kept_levels(kept.levels, plan=hashed, ledger=ledger.identity)
    if held is not None:
        return held
    if kept.latest() is not None:
        raise DataError(
            f"Expected what was measured for the run in {kept.folder}, found none. Restore "
            f"{kept.levels}, or choose another folder to begin anew."
        )
    units = units_of(chain, choice.sampler)
    name = pay(
        ledger,
        price,
        run,
        step=units.step_event(choice.noise_multiplier, 1, price.accountant, grouping_of(chain)),
        charged_steps=units.charged_steps(choice.steps),
        own=request.ledger is None,
    )
    found = measure(schema, read_chunks(request.data), price, secure(), user=request.user)
    held = KeptLevels(name, hashed, ledger.identity, found)
    held.write(kept.levels)
    return held


@declared_read(DeclaredRead.FORM)
def _checked_units(request: Request, stand_in: TableModel) -> int:
    """How many units there are; whatever will be refused about a row is refused now."""
    rows, users = 0, set[str]()
    for chunk in read_chunks(request.test) if request.test is not None else ():
        stand_in.features(chunk)
        stand_in.targets(chunk)
    for chunk in read_chunks(request.data):
        stand_in.features(chunk)
        stand_in.targets(chunk)
        rows += len(chunk)
        if request.user is not None:
            users.update(users_in(chunk, request.user))
    return len(users) if request.user is not None else rows


def _relation(request: Request, units: int) -> Relation:
    if request.federation is None:
        return Relation.ADD_OR_REMOVE_ONE
    return request.federation.sampler(units, 1).relation
