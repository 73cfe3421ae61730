"""`--rare other`: plan, pay, then count what is not declared, all under the plan of one run.

Noise, batches and number of steps are fixed before anything is counted, with placeholders for what
is not known, so that PLD may compose the count with the training. A table that cannot be trained on
is refused before anything is paid. What was measured is kept in the run's folder (`paid_once`).
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from adadps.accounting.ledger import DiskLedger
from adadps.accounting.noisy_counts.price import Paid, price_of
from adadps.data.provenance import DeclaredRead, declared_read
from adadps.data.tables import read_chunks, users
from adadps.engine.group import ALONE, Group
from adadps.engine.noise.randomness import secure
from adadps.estimators.planner.plan import PlannedRun
from adadps.estimators.tables.features import plan_for_rows
from adadps.estimators.tables.paid_once import Content, MeasuredFile, PaidFirst, measured_once
from adadps.estimators.tables.paid_survey import columns_of, measure
from adadps.estimators.tables.request import Declared, TrainingRequest
from adadps.estimators.tables.run_folder import TableRunFolder, budget_of, paying_ledger
from adadps.estimators.tables.saved_model import TableModel
from adadps.estimators.tables.schema import Schema, facts, schema_of
from adadps.estimators.text import (
    TableVocabulary,
)
from adadps.estimators.together import BudgetInWords, FileInWords
from adadps.training.processes import opened_for_all, own_ledger, told_by_first
from adadps.types import Relation

MEASURED = "measured with noise"


@dataclass(frozen=True)
class MeasuredSchema:
    """A whole schema, the plan under which it was paid for, and the payment."""

    schema: Schema
    plan: PlannedRun
    first: PaidFirst


def measure_levels(
    request: TrainingRequest,
    declared: Declared,
    vocabulary: TableVocabulary,
    folder: TableRunFolder,
    opened: ExitStack,
    group: Group = ALONE,
) -> MeasuredSchema:
    """Pay for and measure what is not declared, or read what this run has measured before.

    Of several processes, the first one does; the others check the rows and are told.
    """
    schema = declared.schema.with_placeholders()
    vectors = request.text_embeddings(schema)
    placeholder = TableModel(
        schema, vocabulary.words, vectors, vocabulary.fitted, vocabulary.negation
    )
    found = _count_units(request, placeholder)
    units = declared.count or found
    run = told_by_first(
        group, lambda: budget_of(request, units), BudgetInWords.encode, BudgetInWords.decode
    )
    price = price_of(
        columns_of(declared.schema),
        units=units,
        what=declared.unit_name,
        budget=run.budget,
        accountant=run.accountant,
        relation=_relation(request, units),
    )
    plan = plan_for_rows(
        request,
        declared,
        placeholder.features,
        placeholder.targets,
        vocabulary.frequencies,
        examples=units,
        budget=run.budget,
        accountant=run.accountant,
        besides=price.events,
    )
    plan.settings.sampler.require_declared(found)
    ledger = opened.enter_context(
        opened_for_all(group, lambda: paying_ledger(request, folder.own_ledger, run.budget))
    )

    def counted() -> Content:
        chunks = read_chunks(request.data)
        found = measure(declared.schema, chunks, price, secure(), user=request.user)
        return {"schema": found.describe()}

    def paid_for() -> MeasuredFile:
        own = own_ledger(ledger)
        assert isinstance(own, DiskLedger)  # of several processes, only the first one measures
        return measured_once(folder, price, plan, own, measure=counted, check=_schema_in)

    held = told_by_first(group, paid_for, FileInWords.encode, FileInWords.decode)
    schema = _schema_in(held.content)
    measured = (price.in_words(), *facts(declared.schema, schema, MEASURED, only_found=True))
    first = PaidFirst(Paid(held.run, price.events, measured), ledger)
    return MeasuredSchema(schema, plan, first)


def _schema_in(content: Content) -> Schema:
    return schema_of(content["schema"])


@declared_read(DeclaredRead.FORM)
def _count_units(request: TrainingRequest, placeholder: TableModel) -> int:
    """Count the units of privacy, and refuse every row that training would refuse."""
    rows, seen = 0, set[str]()
    for chunk in read_chunks(request.test) if request.test is not None else ():
        placeholder.features(chunk)
        placeholder.targets(chunk)
    for chunk in read_chunks(request.data):
        placeholder.features(chunk)
        placeholder.targets(chunk)
        rows += len(chunk)
        if request.user is not None:
            seen.update(users(chunk, request.user))
    return len(seen) if request.user is not None else rows


def _relation(request: TrainingRequest, units: int) -> Relation:
    if request.federation is None:
        return Relation.ADD_OR_REMOVE_ONE
    return request.federation.sampler(units, 1).relation
