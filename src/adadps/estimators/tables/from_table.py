"""From a table on disk to a model in a folder: everything is checked before anything is paid."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path

from adadps.accounting.ledger import DiskLedger
from adadps.accounting.ledger.summary import summarise
from adadps.data.declared_reads import DeclaredRead, declared_read
from adadps.data.examples import Examples
from adadps.data.row_store import RowStore
from adadps.data.tables import read_chunks
from adadps.errors import AssumedPublicWarning, BudgetError
from adadps.estimators.tables.budgeting import shared_ledger, terms_for
from adadps.estimators.tables.kept_run import KeptRun
from adadps.estimators.tables.loading import load_rows
from adadps.estimators.tables.methods import Plan, plan_training
from adadps.estimators.tables.paid_levels import Measured, paid_levels
from adadps.estimators.tables.public_words import PublicWords
from adadps.estimators.tables.request import Declared, Request
from adadps.estimators.tables.saved import TableModel, save_model
from adadps.estimators.tables.survey import complete, facts
from adadps.estimators.tables.users import OfUsers
from adadps.files.writing import new_folder
from adadps.report.result import Result
from adadps.training.evaluation import on_held_out
from adadps.training.fit import fit

LARGE_EPSILON = 10.0
HELD_OUT = "held-out rows"
ROWS_DIFFERENTIATED_AT_ONCE = 8192
"""Larger batches are differentiated in pieces, which changes neither the result nor the price."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class _Prepared:
    """A model, its rows, and what is public about both."""

    model: TableModel
    words: PublicWords
    train: Examples
    test: Examples | None
    assumed_public: list[str]
    read_off: list[str]


def kept_run(request: Request) -> KeptRun:
    """Where this run is kept."""
    return KeptRun(request.run_folder, request.ledger, is_ours=request.checkpoint is None)


def train_from_table(request: Request, say: Say) -> Result:
    """Train and save as asked; the folder appears when everything has gone well."""
    declared = request.declared()
    kept = kept_run(request)
    with new_folder(request.out) as draft, kept.cleaned(), ExitStack() as opened:
        if request.epsilon > LARGE_EPSILON:
            say(f"ε = {request.epsilon:g} promises little: common budgets lie between 0.1 and 10.")
        say(f"Reading {request.data} ...")
        words = _words(request, declared)
        measured = paid_levels(request, declared, words, kept, opened) if declared.pays else None
        if measured is not None:
            say(f"Paid for {', '.join(declared.schema.unknown)}: {measured.paid.facts[0]}.")
        prepared = _prepare(request, declared, words, measured, opened)
        say("Planning the noise ...")
        plan = _plan(request, declared, prepared, measured)
        choice = plan.choice
        _warn(declared, prepared.read_off, say)
        say(
            f"Training {choice.steps} steps with noise multiplier {choice.noise_multiplier:g} for "
            f"ε = {choice.budget.epsilon:g} at δ = {choice.budget.delta:.3g} ..."
        )
        held = kept.latest()
        if held is not None:
            say(f"Resuming from step {held.taken} of {held.planned}, by {kept.folder} ...")
        result = _train(request, prepared, plan, kept, declared.of_users, measured)
        save_model(prepared.model, result, draft)
    kept.end(request.out)
    return result


def _words(request: Request, declared: Declared) -> PublicWords:
    if not declared.schema.texts:
        return PublicWords((), "")
    known_classes = declared.schema.label.known_classes
    informed = declared.method.takes_side_information
    return request.word_source.read(declared.schema, known_classes, informed=informed)


def _prepare(
    request: Request,
    declared: Declared,
    words: PublicWords,
    measured: Measured | None,
    stores: ExitStack,
) -> _Prepared:
    schema = measured.schema if measured else declared.schema
    read_off = schema.unknown
    if read_off:
        schema = complete(schema, read_chunks(request.data))
    model = TableModel(schema, words.vocabulary)
    compared = request.public is not None
    train = _stored(request, request.data, model, stores, named=compared, user=request.user)
    test = None
    if request.test is not None:  # all of it, whether or not it was trained on: see overlap_check
        test = _stored(request, request.test, model, stores, named=False)
    told = [f"the vocabulary: {words.in_words}"] if schema.texts else []
    told += facts(declared.schema, schema, only_found=False if measured else None)
    if declared.counted is None:
        told.insert(0, f"the number of {declared.units}, read off the data: {_count(train)}")
    return _Prepared(model, words, train, test, told, read_off)


def _warn(declared: Declared, read_off: list[str], say: Say) -> None:
    """Tell, before anything is trained, what epsilon does not cover, and the two ways out.

    A number of examples or users alone is no warning: people are told of it, and so is the card.
    """
    paying = " or pay for classes, levels and bounds by --rare other;" if read_off else ""
    number = [f"the number of {declared.units}"] if declared.counted is None else []
    told = (
        f"Read off the private data, and assumed public: {', '.join([*read_off, *number])}. "
        f"Epsilon does not cover that. Declare what is known without the data;{paying} "
        "--strict refuses instead."
    )
    if read_off:
        warnings.warn(told, AssumedPublicWarning, stacklevel=3)
    elif number:
        say(told)


@declared_read(DeclaredRead.NUMBER)
def _count(rows: Examples) -> int:
    """How many units of privacy there are: users where they are known, else rows."""
    return len(rows) if rows.users is None else int(rows.users.max()) + 1


def _stored(
    request: Request,
    path: Path,
    model: TableModel,
    stores: ExitStack,
    *,
    named: bool,
    user: str | None = None,
) -> Examples:
    beside = request.run_folder.parent
    folder = request.store or (beside if beside.is_dir() else None)
    store = stores.enter_context(RowStore(folder, width=model.features.width))
    return load_rows(path, model, store, named=named, user=user)


def _train(
    request: Request,
    prepared: _Prepared,
    plan: Plan,
    kept: KeptRun,
    of_users: OfUsers | None,
    measured: Measured | None,
) -> Result:
    model, choice = prepared.model, plan.choice
    layer, targets = model.layer(), model.targets
    evaluations = []
    if prepared.test is not None:
        test = prepared.test
        evaluations = [
            on_held_out(HELD_OUT, test.features, test.targets, every=None, **targets.metrics)
        ]
    rows = choice.sampler.expected_size * (of_users.most if of_users else 1)
    many = rows > ROWS_DIFFERENTIATED_AT_ONCE
    choice.sampler.require_declared(_count(prepared.train))
    shared = nullcontext(measured.ledger) if measured else shared_ledger(request, choice.budget)
    with shared or nullcontext() as ledger:
        try:
            result = fit(
                layer,
                targets.loss,
                prepared.train,
                method=plan.chain,
                sampler=choice.sampler,
                steps=choice.steps,
                evaluate=evaluations,
                accountant=choice.accountant,
                ledger=ledger,
                budget=choice.budget,
                physical_batch_size=ROWS_DIFFERENTIATED_AT_ONCE if many else None,
                assumed_public=prepared.assumed_public,
                checkpoints=kept.checkpoints(steps=choice.steps, weights=layer.weight.numel()),
                measured=measured.paid if measured else None,
                tuning_trials=request.trials,
                settings={**plan.settings, "model": model.in_words},
            )
        except BudgetError as error:
            raise _with_what_is_left(error, request.ledger) from error
        return result if ledger is None else _claimed(result, ledger)


def _claimed(result: Result, ledger: DiskLedger) -> Result:
    """What may be claimed beside other runs on the ledger: its whole budget."""
    own = sum(charge["count"] for charge in result.privacy.charges or ())
    if ledger.budget is None or ledger.entries == own:
        return result
    steps_paid = result.privacy.steps_paid
    return result.claiming(ledger.budget.epsilon, steps_paid=steps_paid)


def _plan(
    request: Request, declared: Declared, prepared: _Prepared, measured: Measured | None
) -> Plan:
    """Batches, noise and rates; where something was paid for before, as they were planned then."""
    examples = declared.counted or _count(prepared.train)
    terms = terms_for(request, examples)
    return plan_training(
        declared.method,
        prepared.model.features,
        prepared.model.targets,
        examples=examples,
        budget=terms.budget,
        accountant=terms.accountant,
        wishes=request.wishes,
        frequencies=prepared.words.frequencies,
        of_users=declared.of_users,
        federation=request.federation,
        chosen=measured.plan.by_rule if measured else None,
    )


def _with_what_is_left(error: BudgetError, ledger: Path | None) -> BudgetError:
    left = summarise(ledger)["left"] if ledger is not None else None
    return error if left is None else BudgetError(f"{error} Left: epsilon = {left:.4g}.")
