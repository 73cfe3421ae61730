"""From a table on disk to a model in a folder: everything is checked before anything is paid."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import nn

from adadps.accounting.ledger import Ledger
from adadps.accounting.ledger.summary import summarise
from adadps.data.examples import Examples
from adadps.data.provenance import DeclaredRead, Provenance, declared_read
from adadps.data.row_store import RowStore
from adadps.data.tables import read_chunks, users
from adadps.engine.group import Group, Meeting
from adadps.errors import AssumedPublicWarning, BudgetError, SideInformationWarning
from adadps.estimators.planner.methods import (
    embedding_share,
    takes_side_information,
)
from adadps.estimators.planner.plan import PlannedRun
from adadps.estimators.short_texts import short_by_rule, worth_embedding
from adadps.estimators.tables.chosen_mix import ChosenMix, choose_mix
from adadps.estimators.tables.features import plan_for_rows, prepare_for_rows
from adadps.estimators.tables.paid_levels import MeasuredSchema, measure_levels
from adadps.estimators.tables.paid_once import PaidFirst
from adadps.estimators.tables.public_start import start_at_public_rows, why_labels_are_unused
from adadps.estimators.tables.request import Declared, TrainingRequest
from adadps.estimators.tables.run_folder import TableRunFolder, budget_of, shared_ledger
from adadps.estimators.tables.saved_model import TableModel, load_rows, save_model
from adadps.estimators.tables.schema import facts
from adadps.estimators.tables.survey import complete
from adadps.estimators.text import (
    TableVocabulary,
)
from adadps.estimators.together import BudgetInWords, refuse_choice
from adadps.files import new_folder
from adadps.report.result import Result
from adadps.training.evaluation import on_held_out
from adadps.training.fit import fit
from adadps.training.processes import (
    current_group,
    first_speaks,
    opened_for_all,
    told_by_first,
)
from adadps.training.progress import at_work
from adadps.types import TextFeatures

LARGE_EPSILON = 10.0
HELD_OUT = "held-out rows"
ROWS_DIFFERENTIATED_AT_ONCE = 8192
"""Larger batches are differentiated in pieces, which changes neither the result nor the cost."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class _Prepared:
    """A model, its rows, and what is public about both."""

    model: TableModel
    vocabulary: TableVocabulary
    train: Examples
    test: Examples | None
    assumed_public: list[str]
    read_off: list[str]


def train_from_table(request: TrainingRequest, say: Say) -> Result:
    """Train and save a model; its folder appears once everything has succeeded.

    Of several processes, the first one alone pays, writes and speaks.
    """
    group = current_group()
    with group.together(), first_speaks(group):
        return _trained(request, say if group.is_first else _say_nothing, group)


def _say_nothing(_text: str) -> None:
    pass


def _trained(request: TrainingRequest, say: Say, group: Group) -> Result:
    declared = request.declared()
    folder = TableRunFolder.of(request)
    with ExitStack() as files, ExitStack() as opened:
        draft = None
        if group.is_first:
            draft = files.enter_context(new_folder(request.out))
            files.enter_context(folder.cleaned())
        if request.epsilon > LARGE_EPSILON:
            say(f"ε = {request.epsilon:g} promises little: common budgets lie between 0.1 and 10.")
        say(f"Reading {request.data} ...")
        vocabulary = _vocabulary(request, declared)
        measured, first = None, None
        if declared.pays:
            measured = measure_levels(request, declared, vocabulary, folder, opened, group)
            first = measured.first
            say(f"Paid for {', '.join(declared.schema.unknown)}: {first.paid.facts[0]}.")
        prepared = _prepare(request, declared, vocabulary, measured, opened)
        _warn_of_unused_labels(request, prepared.model)
        say("Planning the noise ...")
        if request.features is TextFeatures.CHOOSE:
            refuse_choice(group)
            chosen = _choose(request, declared, prepared, folder, opened)
            plan, first = chosen.plan, chosen.first
            say(f"Paid for {'; '.join(first.paid.facts)}.")
        else:
            plan = _plan(request, declared, prepared, measured, group)
        settings = plan.settings
        _warn(declared, prepared.read_off, say)
        say(
            f"Training {settings.steps} steps with noise multiplier "
            f"{settings.noise_multiplier:g} for ε = {settings.budget.epsilon:g} at "
            f"δ = {settings.budget.delta:.3g} ..."
        )
        latest = folder.latest() if group.is_first else None
        if latest is not None:
            say(f"Resuming from step {latest.taken} of {latest.planned}, by {folder.path} ...")
        result = _train(request, prepared, plan, folder, first, group)
        if draft is not None:
            save_model(prepared.model, result, draft)
    if group.is_first:
        folder.finish(request.out)
    return result


def _vocabulary(request: TrainingRequest, declared: Declared) -> TableVocabulary:
    if not declared.schema.texts or request.features is TextFeatures.EMBEDDINGS:
        return TableVocabulary((), "")
    known_classes = declared.schema.label.known_classes
    informed = takes_side_information(declared.method)
    with at_work("learning from public texts" if request.public else "reading words"):
        return request.vocabulary_source.read(declared.schema, known_classes, informed=informed)


def _prepare(
    request: TrainingRequest,
    declared: Declared,
    vocabulary: TableVocabulary,
    measured: MeasuredSchema | None,
    stores: ExitStack,
) -> _Prepared:
    schema = measured.schema if measured else declared.schema
    read_off = schema.unknown
    if read_off:
        schema = complete(schema, read_chunks(request.data))
    count = declared.count or (_count_in_file(request) if schema.texts else 1)
    share = embedding_share(count, schema.label.outputs, request.epsilon)
    vectors = request.text_embeddings(schema)
    texts_alone = not (schema.numeric or schema.categorical)
    if request.features is TextFeatures.AUTO:
        vectors = vectors if worth_embedding(share, texts_alone=texts_alone) else None
    model = TableModel(
        schema,
        vocabulary.words,
        vectors,
        vocabulary.fitted,
        vocabulary.negation,
        short_by_rule(share),
    )
    compared = request.public is not None
    rows = count if request.user is None and (declared.count or schema.texts) else None
    train = _stored(
        request, request.data, model, stores, named=compared, user=request.user, rows=rows
    )
    test = None
    if request.test is not None:  # all rows, whether or not they were trained on: see overlap
        test = _stored(request, request.test, model, stores, named=False)
    assumed = [f"the vocabulary: {vocabulary.in_words}"] if vocabulary.words else []
    assumed += facts(declared.schema, schema, only_found=False if measured else None)
    if declared.count is None:
        assumed.insert(0, f"the number of {declared.unit_name}, read off the data: {_count(train)}")
    return _Prepared(model, vocabulary, train, test, assumed, read_off)


def _warn(declared: Declared, read_off: list[str], say: Say) -> None:
    """Say what epsilon does not cover before anything is trained, and the two ways out.

    A number of examples or users alone is no warning: it is said on a terminal, and on the card.
    """
    paying = " or pay for classes, levels and bounds by --rare other;" if read_off else ""
    number = [f"the number of {declared.unit_name}"] if declared.count is None else []
    text = (
        f"Read off the private data, and assumed public: {', '.join([*read_off, *number])}. "
        f"Epsilon does not cover that. Declare what is known without the data;{paying} "
        "--strict refuses instead."
    )
    if read_off:
        warnings.warn(text, AssumedPublicWarning, stacklevel=3)
    elif number:
        say(text)


def _warn_of_unused_labels(request: TrainingRequest, model: TableModel) -> None:
    """Say that labels of public rows tell nothing, rather than to ignore them silently."""
    if request.public is None:
        return
    why = why_labels_are_unused(request.public, model.schema.label)
    if why is not None:
        warnings.warn(why, SideInformationWarning, stacklevel=3)


@declared_read(DeclaredRead.NUMBER)
def _count_in_file(request: TrainingRequest) -> int:
    """Count the units of privacy before their features are made, which depend on the number."""
    if request.user is None:
        return sum(len(chunk) for chunk in read_chunks(request.data))
    return len({name for chunk in read_chunks(request.data) for name in users(chunk, request.user)})


@declared_read(DeclaredRead.NUMBER)
def _count(rows: Examples) -> int:
    """Count the units of privacy: users where they are known, else rows."""
    return len(rows) if rows.users is None else int(rows.users.max()) + 1


def _stored(
    request: TrainingRequest,
    path: Path,
    model: TableModel,
    stores: ExitStack,
    *,
    named: bool,
    user: str | None = None,
    rows: int | None = None,
) -> Examples:
    """Make features of the rows of a file; ``rows`` is their number, if that is public."""
    beside = request.run_folder.parent
    folder = request.store or (beside if beside.is_dir() else None)
    store = stores.enter_context(RowStore(folder, width=model.features.width))
    with at_work(f"turning the rows of {path.name} into features", rows=rows) as done:
        return load_rows(path, model, store, named=named, user=user, done=done)


def _plan(
    request: TrainingRequest,
    declared: Declared,
    prepared: _Prepared,
    measured: MeasuredSchema | None,
    group: Group,
) -> PlannedRun:
    """Plan the run; where something was paid for before, with the settings planned then."""
    model, frequencies = prepared.model, prepared.vocabulary.frequencies
    if measured:
        method = partial(prepare_for_rows, declared.method, model.features, frequencies)
        return measured.plan.with_method(method, model.schema.label.outputs)
    examples = declared.count or _count(prepared.train)
    run = told_by_first(
        group, lambda: budget_of(request, examples), BudgetInWords.encode, BudgetInWords.decode
    )
    return plan_for_rows(
        request,
        declared,
        model.features,
        model.targets,
        frequencies,
        examples=examples,
        budget=run.budget,
        accountant=run.accountant,
    )


def _choose(
    request: TrainingRequest,
    declared: Declared,
    prepared: _Prepared,
    folder: TableRunFolder,
    opened: ExitStack,
) -> ChosenMix:
    """Plan the run, and choose the mix of words and embeddings for a part of its budget."""
    return choose_mix(
        request,
        declared,
        prepared.model,
        prepared.vocabulary.frequencies,
        prepared.train,
        folder,
        opened,
        units=declared.count or _count(prepared.train),
        layer=lambda plan: _untrained(request, prepared.model, plan)[0],
        most_rows_at_once=ROWS_DIFFERENTIATED_AT_ONCE,
    )


def _untrained(
    request: TrainingRequest, model: TableModel, plan: PlannedRun
) -> tuple[nn.Linear, Provenance | None]:
    """Return the model before training, and where its weights come from if from public rows."""
    layer = model.layer()
    if request.public is None or request.public_because is None:
        return layer, None
    given = (request.public, request.public_because)
    return layer, start_at_public_rows(layer, *given, model, plan.prepared)


def _train(
    request: TrainingRequest,
    prepared: _Prepared,
    plan: PlannedRun,
    folder: TableRunFolder,
    first: PaidFirst | None,
    group: Group,
) -> Result:
    model, settings = prepared.model, plan.settings
    layer, start = _untrained(request, model, plan)
    targets = model.targets
    sources = [held.provenance for held in model.features.vectors]
    evaluations = []
    if prepared.test is not None:
        test = prepared.test
        evaluations = [
            on_held_out(HELD_OUT, test.features, test.targets, every=None, **targets.metrics)
        ]
    rows = settings.sampler.expected_size * (plan.users.most if plan.users else 1)
    many = rows > ROWS_DIFFERENTIATED_AT_ONCE
    settings.sampler.require_declared(_count(prepared.train))
    shared: AbstractContextManager[Ledger | None] = nullcontext(first.ledger if first else None)
    if first is None and request.ledger is not None:
        path = request.ledger
        shared = opened_for_all(group, lambda: shared_ledger(request, path, settings.budget))
    with shared as ledger:
        try:
            result = fit(
                layer,
                targets.loss,
                prepared.train,
                method=plan.chain,
                sampler=settings.sampler,
                steps=settings.steps,
                evaluate=evaluations,
                accountant=settings.accountant,
                ledger=ledger,
                budget=settings.budget,
                physical_batch_size=ROWS_DIFFERENTIATED_AT_ONCE if many else None,
                assumed_public=prepared.assumed_public,
                checkpoints=folder.checkpoints(steps=settings.steps, weights=layer.weight.numel()),
                measured=first.paid if first else None,
                tuning_trials=request.trials,
                feature_sources=[*sources, *([start] if start else [])],
                settings={**plan.describe(), "model": model.in_words, **_told(start)},
                processes=request.processes,
            )
        except BudgetError as error:
            named = request.ledger if group.is_first else None
            raise _with_remaining_epsilon(error, named) from error
        if ledger is None:
            return result
        return _claimed(result, ledger, group.tell(Meeting.LEDGER, lambda: ledger.entries))


def _told(start: Provenance | None) -> dict[str, str]:
    """Return where the weights start, if that is a model of public rows."""
    return {} if start is None else {"start": start.source.removeprefix("starting weights: ")}


def _claimed(result: Result, ledger: Ledger, entries: int) -> Result:
    """Claim the whole budget of the ledger if other runs have been charged to it."""
    own = sum(charge["count"] for charge in result.privacy.charges or ())
    if ledger.budget is None or entries == own:
        return result
    steps_paid = result.privacy.steps_paid
    return result.claiming(ledger.budget.epsilon, steps_paid=steps_paid)


def _with_remaining_epsilon(error: BudgetError, ledger: Path | None) -> BudgetError:
    left = summarise(ledger)["left"] if ledger is not None else None
    return error if left is None else BudgetError(f"{error} Left: epsilon = {left:.4g}.")
