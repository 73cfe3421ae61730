"""`--rare other`: plan, pay, then count what is not declared, all under the plan of one run.

Noise, batches and number of steps are fixed before anything is counted, with placeholders for what
is not known, so that PLD may compose the count with the training. A table that cannot be trained on
is refused before anything is paid. What was measured is kept in the run's folder: it is paid for
once, and drawn once.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from adadps.accounting.epsilon import grouping_of, units_of
from adadps.accounting.ledger import DiskLedger
from adadps.accounting.noisy_counts.price import Paid, Price, pay, price_of
from adadps.data.provenance import DeclaredRead, declared_read
from adadps.data.tables import read_chunks, users
from adadps.engine.noise.randomness import secure
from adadps.errors import AdadpsError, ContractError, DataError
from adadps.estimators.planner.plan import PlannedRun
from adadps.estimators.tables.features import plan_for_rows
from adadps.estimators.tables.paid_survey import columns_of, measure
from adadps.estimators.tables.request import Declared, TrainingRequest
from adadps.estimators.tables.run_folder import TableModel, TableRunFolder, budget_of, shared_ledger
from adadps.estimators.tables.schema import Schema, facts, schema_of
from adadps.estimators.text import TableVocabulary
from adadps.files import new_file, parse_json
from adadps.training.describe import plan_of
from adadps.types import Relation

MEASURED = "measured with noise"
FORMAT = 1


@dataclass(frozen=True)
class MeasuredSchema:
    """A whole schema, the plan under which it was paid for, and the ledger of both."""

    schema: Schema
    plan: PlannedRun
    paid: Paid
    ledger: DiskLedger


def measure_levels(
    request: TrainingRequest,
    declared: Declared,
    vocabulary: TableVocabulary,
    folder: TableRunFolder,
    opened: ExitStack,
) -> MeasuredSchema:
    """Pay for and measure what is not declared, or read what this run has measured before."""
    schema = declared.schema.with_placeholders()
    vectors = request.text_embeddings(schema)
    placeholder = TableModel(schema, vocabulary.words, vectors, vocabulary.fitted)
    found = _count_units(request, placeholder)
    units = declared.count or found
    run = budget_of(request, units)
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
        shared_ledger(request, run.budget) or DiskLedger(folder.own_ledger, budget=run.budget)
    )
    held = _measured_once(request, declared.schema, price, plan, folder, ledger)
    measured = (price.in_words(), *facts(declared.schema, held.schema, MEASURED, only_found=True))
    return MeasuredSchema(held.schema, plan, Paid(held.run, price.events, measured), ledger)


def _measured_once(
    request: TrainingRequest,
    schema: Schema,
    price: Price,
    plan: PlannedRun,
    folder: TableRunFolder,
    ledger: DiskLedger,
) -> _LevelsFile:
    settings, chain = plan.settings, plan.chain
    run = plan_of(chain, settings.sampler, settings.steps, price.accountant, price.events)
    hashed = run.plan_hash(price.relation, price.accountant)
    held = _LevelsFile.read(folder.levels, plan=hashed, ledger=ledger.identity)
    if held is not None:
        return held
    if folder.latest() is not None:
        raise DataError(
            f"Expected what was measured for the run in {folder.path}, found none. Restore "
            f"{folder.levels}, or choose another folder to start again."
        )
    units = units_of(chain, settings.sampler)
    name = pay(
        ledger,
        price,
        run,
        step=units.step_event(settings.noise_multiplier, 1, price.accountant, grouping_of(chain)),
        charged_steps=units.charged_steps(settings.steps),
        own=request.ledger is None,
    )
    found = measure(schema, read_chunks(request.data), price, secure(), user=request.user)
    held = _LevelsFile(name, hashed, ledger.identity, found)
    held.write(folder.levels)
    return held


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


@dataclass(frozen=True)
class _LevelsFile:
    """A measured schema, the run that has paid for it, and the plan and ledger of that run."""

    run: str
    plan: str
    ledger: str
    schema: Schema

    def write(self, file: Path) -> None:
        """Write the file, whole or not at all."""
        held = {"format": FORMAT, "run": self.run, "plan": self.plan, "ledger": self.ledger}
        text = json.dumps({**held, "schema": self.schema.describe()}, indent=1, ensure_ascii=False)
        with new_file(file, overwrite=False) as draft:
            draft.write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, file: Path, *, plan: str, ledger: str) -> _LevelsFile | None:
        """Return what a run with this plan has measured on this ledger, None if nothing."""
        try:
            held = parse_json(file.read_text(encoding="utf-8"))
            found = cls(held["run"], held["plan"], held["ledger"], schema_of(held["schema"]))
            whole = held["format"] == FORMAT and isinstance(found.run, str)
        except FileNotFoundError:
            return None
        except (OSError, KeyError, TypeError, ValueError, AdadpsError) as error:
            raise DataError(
                f"Expected what was measured for this run in {file}, found something unreadable. "
                "Restore a copy, or delete the folder to start again: what it has paid is lost."
            ) from error
        if not whole or (found.plan, found.ledger) != (plan, ledger):
            raise ContractError(
                f"Expected the plan and the ledger for which {file} was measured, found others. "
                "Resume with the same command, or choose another folder."
            )
        return found
