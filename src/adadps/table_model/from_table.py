"""From a table on disk to a model in a folder: everything is checked before anything is paid."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path

from adadps.accounting import Budget, default_delta
from adadps.data.declared_reads import DeclaredRead, declared_read
from adadps.data.examples import Examples
from adadps.data.row_store import RowStore
from adadps.data.tables import read_chunks
from adadps.errors import BudgetError, SettingError
from adadps.evaluation import on_held_out
from adadps.ledger import DiskLedger, require_same_budget
from adadps.ledger.summary import summarise
from adadps.result import Result
from adadps.table_model.kept_run import KeptRun
from adadps.table_model.loading import load_rows
from adadps.table_model.methods import Plan, plan_training
from adadps.table_model.public_words import PublicWords
from adadps.table_model.request import Declared, Request
from adadps.table_model.saved import TableModel, save_model
from adadps.table_model.survey import complete, facts
from adadps.table_model.users import OfUsers
from adadps.training import fit
from adadps.types import Accountant
from adadps.whole_budget import claiming_the_whole
from adadps.writing import new_folder

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


def kept_run(request: Request) -> KeptRun:
    """Where this run is kept."""
    return KeptRun(request.run_folder, request.ledger, is_ours=request.checkpoint is None)


def train_from_table(request: Request, say: Say) -> Result:
    """Train and save as asked; the folder appears when everything has gone well."""
    declared = request.declared()
    kept = kept_run(request)
    with new_folder(request.out) as draft, kept.cleaned(), ExitStack() as stores:
        if request.epsilon > LARGE_EPSILON:
            say(f"ε = {request.epsilon:g} promises little: common budgets lie between 0.1 and 10.")
        prepared = _prepare(request, declared, stores, say)
        say("Planning the noise ...")
        plan = _plan(request, declared, prepared)
        choice = plan.choice
        say(
            f"Training {choice.steps} steps with noise multiplier {choice.noise_multiplier:g} for "
            f"ε = {choice.budget.epsilon:g} at δ = {choice.budget.delta:.3g} ..."
        )
        held = kept.latest()
        if held is not None:
            say(f"Going on from step {held.taken} of {held.planned}, by {kept.folder} ...")
        result = _train(request, prepared, plan, kept, declared.of_users)
        save_model(prepared.model, result, draft)
    kept.end(request.out)
    return result


def _prepare(request: Request, declared: Declared, stores: ExitStack, say: Say) -> _Prepared:
    say(f"Reading {request.data} ...")
    schema = declared.schema
    if schema.unknown:
        schema = complete(schema, read_chunks(request.data))
    read_off = [*declared.schema.unknown]
    counted = declared.examples if declared.of_users is None else declared.users
    read_off += [f"the number of {declared.units}"] if counted is None else []
    if read_off:
        say(
            f"Read off the private data, and assumed public: {', '.join(read_off)}. Declare them "
            "if they are not; --strict refuses instead."
        )
    words = PublicWords((), "")
    if schema.texts:
        known_classes = declared.schema.label.known_classes
        informed = declared.method.takes_side_information
        words = request.word_source.read(schema, known_classes, informed=informed)
    model = TableModel(schema, words.vocabulary)
    compared = request.public is not None
    train = _stored(request, request.data, model, stores, named=compared, user=request.user)
    test = None
    if request.test is not None:  # all of it, whether or not it was trained on: see overlap_check
        test = _stored(request, request.test, model, stores, named=False)
    told = [f"the vocabulary: {words.in_words}"] if schema.texts else []
    told += facts(declared.schema, schema)
    if counted is None:
        told.insert(0, f"the number of {declared.units}, read off the data: {_count(train)}")
    return _Prepared(model, words, train, test, told)


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
    with _ledger(request, choice.budget) or nullcontext() as ledger:
        try:
            result = fit(
                layer,
                targets.loss,
                prepared.train,
                method=plan.chain,
                sampler=choice.sampler,
                steps=choice.steps,
                evaluate=evaluations,
                delta=choice.budget.delta,
                accountant=choice.accountant,
                ledger=ledger,
                budget=choice.budget if ledger is None else None,
                physical_batch_size=ROWS_DIFFERENTIATED_AT_ONCE if many else None,
                assumed_public=prepared.assumed_public,
                checkpoints=kept.checkpoints(steps=choice.steps, weights=layer.weight.numel()),
                most_epsilon=choice.budget.epsilon,
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
    return claiming_the_whole(result, ledger.budget.epsilon, steps_paid=steps_paid)


def _plan(request: Request, declared: Declared, prepared: _Prepared) -> Plan:
    """The run's own epsilon, at the ledger's delta and by its accountant where there is one."""
    counted = declared.examples if declared.of_users is None else declared.users
    examples = counted or _count(prepared.train)
    fitting: tuple[Accountant, ...] = (Accountant.PLD, Accountant.RDP)
    if request.federation is not None:
        fitting = request.federation.accountants()
    accountant, delta = fitting[0], default_delta(examples)
    if request.ledger is not None:
        accountant = Accountant.RDP
        if os.path.exists(request.ledger):
            with DiskLedger(request.ledger) as ledger:
                accountant = ledger.choose_accountant(fitting)
                held = ledger.budget
            delta = held.delta if held is not None else delta
            if request.ledger_budget is not None:
                require_same_budget(
                    held,
                    request.ledger_budget,
                    where=f"the ledger {request.ledger}",
                    cure="Leave --ledger-budget out to continue.",
                )
    delta = delta if request.delta is None else request.delta
    return plan_training(
        declared.method,
        prepared.model.features,
        prepared.model.targets,
        examples=examples,
        budget=Budget(request.epsilon, delta),
        accountant=accountant,
        wishes=request.wishes,
        frequencies=prepared.words.frequencies,
        of_users=declared.of_users,
        federation=request.federation,
    )


def _ledger(request: Request, budget: Budget) -> DiskLedger | None:
    """Made only now, when nothing but the training itself can fail."""
    if request.ledger is None:
        return None
    if os.path.exists(request.ledger):
        return DiskLedger(request.ledger)
    whole = budget.epsilon if request.ledger_budget is None else request.ledger_budget
    if whole < budget.epsilon:
        raise SettingError(
            f"Expected a ledger with room for this run, found --ledger-budget {whole:g} below "
            f"--epsilon {budget.epsilon:g}. Give the ledger more or the run less."
        )
    return DiskLedger(request.ledger, budget=Budget(whole, budget.delta))


def _with_what_is_left(error: BudgetError, ledger: Path | None) -> BudgetError:
    left = summarise(ledger)["left"] if ledger is not None else None
    return error if left is None else BudgetError(f"{error} Left: epsilon = {left:.4g}.")
