"""What a run on a table has on disk: checkpoints and the ledger that pays, then the trained model.

Unless a folder for checkpoints is named, it is created beside the model and removed once the model
is written; the run's own ledger then moves into the model's folder. A folder in which nothing was
paid is removed. Files of others are never removed, and a ledger is never deleted.

`TableModel` is the linear model of a table: how it reads rows, what it predicts, and its files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adadps.accounting.epsilon import Budget
from adadps.accounting.events import default_delta
from adadps.accounting.ledger import DiskLedger, require_same_budget
from adadps.accounting.ledger.file import discard_unused
from adadps.data.examples import Examples
from adadps.data.identity import Identities, identities_of_texts, joined
from adadps.data.provenance import DeclaredRead, declared_read
from adadps.data.row_store import RowStore
from adadps.data.sparse_rows import SparseRows
from adadps.data.tables import ROWS_AT_ONCE, Table, joined_texts, read_chunks, users
from adadps.engine.objective import predict
from adadps.errors import AdadpsError, ContractError, DataError, SettingError, SideInformationError
from adadps.estimators.planner.methods import linear_layer
from adadps.estimators.tables.features import RowFeatures, Targets
from adadps.estimators.tables.request import TrainingRequest
from adadps.estimators.tables.schema import Label, Schema, schema_of
from adadps.estimators.text import BagOfWords, Negation, counted, directions_of, negation_of
from adadps.files import move_ledger, new_file, remove_file, remove_if_empty
from adadps.methods.side import Embeddings, embeddings_described
from adadps.methods.side.fitted import describe_fitted, load_fitted, save_fitted
from adadps.report.html import report_of_run
from adadps.report.result import RESULT_FILE, WEIGHTS_FILE, Result
from adadps.report.saved_result import RESTORE, load_result, of_another_format, read_json
from adadps.training.checkpoint import LEDGER, Checkpoint, Checkpoints
from adadps.types import Accountant

MEASURED, BEGUN = "measured.json", "begun.txt"
OFTEN, SELDOM, LARGE = 50, 8, 2**22
"""Checkpoints per run: `OFTEN`, or `SELDOM` where there are more than `LARGE` weights."""


@dataclass(frozen=True)
class RunBudget:
    """What the run may spend, and which accountant composes it."""

    budget: Budget
    accountant: Accountant


def budget_of(request: TrainingRequest, examples: int) -> RunBudget:
    """Return the run's own epsilon, with delta and accountant of its ledger if that exists."""
    fitting: tuple[Accountant, ...] = (Accountant.PLD, Accountant.RDP)
    if request.federation is not None:
        fitting = request.federation.accountants
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
    return RunBudget(Budget(request.epsilon, delta), accountant)


def shared_ledger(request: TrainingRequest, path: Path, budget: Budget) -> DiskLedger:
    """Open the ledger that was named. Call this once nothing else can be refused."""
    if os.path.exists(path):
        return DiskLedger(path)
    whole = budget.epsilon if request.ledger_budget is None else request.ledger_budget
    if whole < budget.epsilon:
        raise SettingError(
            f"Expected a ledger with room for this run, found --ledger-budget {whole:g} below "
            f"--epsilon {budget.epsilon:g}. Give the ledger more or the run less."
        )
    return DiskLedger(path, budget=Budget(whole, budget.delta))


def paying_ledger(request: TrainingRequest, own: Path, budget: Budget) -> DiskLedger:
    """Open the ledger that was named, or the run's ``own`` one."""
    if request.ledger is None:
        return DiskLedger(own, budget=budget)
    return shared_ledger(request, request.ledger, budget)


@dataclass(frozen=True)
class TableRunFolder:
    """The folder of a run. An unnamed one (``is_ours``) is removed at the end of the run."""

    path: Path
    ledger: Path | None
    is_ours: bool

    @classmethod
    def of(cls, request: TrainingRequest) -> TableRunFolder:
        """Return the folder of a requested run."""
        return cls(request.run_folder, request.ledger, is_ours=request.checkpoint is None)

    @property
    def own_ledger(self) -> Path:
        """Return the ledger that pays for the run, unless another one is named."""
        return self.path / LEDGER

    @property
    def measured(self) -> Path:
        """Return the file of what this run has paid for and measured before its first step."""
        return self.path / MEASURED

    @property
    def begun(self) -> Path:
        """Return the file with the name under which this run pays for what it measures first."""
        return self.path / BEGUN

    def begin_payment(self, run: str) -> None:
        """Note the name of a run before it pays, to find its charges among those of others."""
        self.path.mkdir(parents=True, exist_ok=True)
        with new_file(self.begun, overwrite=True) as draft:
            draft.write_text(run + "\n", encoding="utf-8")

    def checkpoints(self, *, steps: int, weights: int) -> Checkpoints:
        """Return how often the run writes a checkpoint here."""
        return Checkpoints(self.path, max(1, steps // (SELDOM if weights > LARGE else OFTEN)))

    def latest(self) -> Checkpoint | None:
        """Return the checkpoint from which the run would resume."""
        return Checkpoints(self.path).latest()

    @contextmanager
    def cleaned(self) -> Iterator[None]:
        """Remove a folder of ours after an error if nothing was paid in it."""
        existed = self.own_ledger.exists()
        try:
            yield
        except ContractError as error:
            if not self.is_ours or self.latest() is None:
                self._remove_if_unpaid(existed)
                raise
            raise ContractError(
                f"{error} (That folder is {self.path}, of a run that was interrupted. Delete it "
                "to start again: what it has paid is lost.)"
            ) from error
        except BaseException:
            self._remove_if_unpaid(existed)
            raise

    def finish(self, model: Path) -> None:
        """Remove what is ours, and move the run's own ledger into the folder of the model."""
        if self.is_ours:
            if self.ledger is None:
                move_ledger(self.own_ledger, model)
            self._remove_steps()

    def charges(self) -> int:
        """Return how many charges this run has paid so far."""
        held = self.latest()
        if held is None:
            return self._charged_before_steps()
        with DiskLedger(self.ledger or self.own_ledger) as ledger:
            return sum(count for _, count in ledger.charged(held.run))

    def _charged_before_steps(self) -> int:
        """Return how many charges the run has paid while there is no checkpoint."""
        if self.ledger is None:
            own = self.own_ledger
            return _entries(own) if own.exists() else int(self.measured.exists())
        if not self.begun.exists() or not self.ledger.exists():
            return int(self.measured.exists())
        run = self.begun.read_text(encoding="utf-8").strip()
        with DiskLedger(self.ledger) as ledger:
            return sum(count for _, count in ledger.charged(run))

    def _remove_if_unpaid(self, ledger_existed: bool) -> None:
        with suppress(AdadpsError):  # a file that cannot be read may not be ours
            if self.is_ours and self.path.is_dir() and not self.charges():
                if self.ledger is None and not ledger_existed:
                    discard_unused(self.own_ledger)
                self._remove_steps()

    def _remove_steps(self) -> None:
        with suppress(OSError):
            Checkpoints(self.path).remove()
            remove_file(self.measured)
            remove_file(self.begun)
            remove_if_empty(self.path)


def _entries(path: Path) -> int:
    with DiskLedger(path) as ledger:
        return ledger.entries


FORMAT, EARLIER_FORMATS, FIRST_FORMAT = 5, (4, 3, 2), 1
"""4 has no negated words, 3 no fitted vectors, 2 no embeddings, the first texts alone."""
MODEL_FILE, REPORT_FILE, VECTORS_FILE = "model.json", "report.html", "vectors.safetensors"
_KIND, _FIRST_KIND = "linear model of a table", "linear text classifier"


@dataclass(frozen=True)
class TableModel:
    """The public facts that turn rows into features, and outputs into predictions."""

    schema: Schema
    vocabulary: tuple[str, ...]
    embeddings: Embeddings | None = None
    fitted: Embeddings | None = None
    negation: Negation | None = None

    def __post_init__(self) -> None:
        if self.vocabulary or (self.schema.texts and self.embeddings is None):
            BagOfWords(self.vocabulary)
        if self.schema.unknown:
            raise DataError(
                f"Expected a whole schema, found that it lacks {', '.join(self.schema.unknown)}. "
                "Declare it."
            )

    @property
    def features(self) -> RowFeatures:
        """Return what makes features of rows, each row by itself."""
        return RowFeatures(
            self.schema, self.vocabulary, self.embeddings, self.fitted, self.negation
        )

    @property
    def targets(self) -> Targets:
        """Return what makes targets of labels, and predictions of outputs."""
        return Targets(self.schema.label)

    def layer(self) -> torch.nn.Linear:
        """Return the layer before training, with a constant feature for a bias.

        All weights are zero, but for those of embeddings: a text is scored by how similar it is to
        the name of each class, which is public.

        >>> schema = Schema(("text",), (), (), Label("kind", ("ham", "spam")))
        >>> TableModel(schema, ("prize",)).layer()
        Linear(in_features=1, out_features=2, bias=False)
        """
        features, label = self.features, self.schema.label
        layer = linear_layer(features.width, label.outputs)
        if self.embeddings is not None and not label.regression:
            start = torch.from_numpy(directions_of(label.known_classes, self.embeddings))
            embedded = slice(features.words, features.words + features.embedded)
            with torch.no_grad():
                layer.weight[:, embedded] = start.repeat(1, len(self.schema.texts))
        return layer

    @property
    def in_words(self) -> str:
        """Return the model in a line: the columns that it reads, and what it predicts."""
        schema, label = self.schema, self.schema.label
        reads = [f"'{name}' (text)" for name in schema.texts]
        reads += [f"'{column.name}' (number)" for column in schema.numeric]
        reads += [f"'{column.name}' (category)" for column in schema.categorical]
        what = "a number" if label.regression else f"one of {label.outputs} classes"
        text = f"linear; reads {', '.join(reads)}; predicts '{label.column}' ({what})"
        forms = []
        if self.vocabulary:
            forms.append(f"log(1 + count) of {counted(self.vocabulary)}")
        if self.embeddings is not None:
            forms.append(f"embeddings of width {self.embeddings.width} ({self.embeddings.name})")
        if self.fitted is not None:
            forms.append(f"vectors of width {self.fitted.width} fitted to public texts")
        if schema.texts:
            text += f"; texts as {' and '.join(forms)}"
        return text

    def describe(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return {
            "format": FORMAT,
            "kind": _KIND,
            "schema": self.schema.describe(),
            "vocabulary": list(self.vocabulary),
            "negation": self.negation.describe() if self.negation else None,
            "embeddings": self.embeddings.describe() if self.embeddings else None,
            "fitted": describe_fitted(self.fitted) if self.fitted else None,
        }


@dataclass(frozen=True)
class TrainedModel:
    """A model with its trained weights."""

    model: TableModel
    result: Result

    def reading(self, text_column: str) -> TrainedModel:
        """Return the same model for tables with their texts in another column."""
        schema = self.model.schema
        if len(schema.texts) != 1:
            raise SettingError(
                f"Expected a model of one text column for --text, found {len(schema.texts)}. Name "
                "the columns of the table as in training."
            )
        if text_column in (*schema.inputs[1:], schema.label.column):
            schema = replace(schema, label=replace(schema.label, column=""))
        renamed = replace(schema, texts=(text_column,))
        return TrainedModel(replace(self.model, schema=renamed), self.result)

    def treating_missing(self, *, fill: bool) -> TrainedModel:
        """Return the same model that fills missing cells as declared, or refuses them."""
        schema = replace(self.model.schema, fill_missing=fill)
        return TrainedModel(replace(self.model, schema=schema), self.result)

    @cached_property
    def _layer(self) -> torch.nn.Module:
        return self.result.restore(self.model.layer())

    def predictions(
        self, table: Table, *, probabilities: bool = False
    ) -> dict[str, Sequence[str] | Sequence[float]]:
        """Return new columns for the rows of a table. Undeclared levels have no feature."""
        rows = SparseRows.from_scipy(self.model.features(table, refuse_unseen=False))
        outputs = predict(self._layer, rows, self.result.feature_weights)
        return self.model.targets.predictions(outputs, probabilities=probabilities)


@declared_read(DeclaredRead.ENCODING)
def load_rows(
    path: Path,
    model: TableModel,
    store: RowStore,
    *,
    named: bool,
    user: str | None = None,
    rows_at_once: int = ROWS_AT_ONCE,
) -> Examples:
    """Return the rows of a table as examples that stay on disk.

    ``named`` keeps 16 bytes per row by which public rows are recognised. ``user`` is the column
    that tells users apart: they are numbered in the order in which they occur.
    """
    names: list[Identities] = []
    numbers: dict[str, int] = {}
    for chunk in read_chunks(path, rows_at_once):
        owners = None
        if user is not None:
            owners = np.array(
                [numbers.setdefault(name, len(numbers)) for name in users(chunk, user)]
            )
        store.append(model.features(chunk), model.targets(chunk), owners)
        if named:
            names.append(identities_of_texts(joined_texts(chunk, model.schema.texts)))
    return store.examples(joined(names) if named else None)


def save_model(model: TableModel, result: Result, draft: Path) -> None:
    """Write the files of a model into the folder ``draft``."""
    result.write_into(draft)
    text = json.dumps(model.describe(), indent=1, allow_nan=False, ensure_ascii=False)
    (draft / MODEL_FILE).write_text(text + "\n", encoding="utf-8")
    if model.fitted is not None:
        save_fitted(model.fitted, draft / VECTORS_FILE)
    report_of_run(result, draft / REPORT_FILE, title=draft.name)


def load_model(folder: str | Path, embeddings: str | None = None) -> TrainedModel:
    """Read a saved model without executing it; ``embeddings`` says where its vectors are now."""
    source = Path(folder)
    if (source / RESULT_FILE).exists() and not (source / MODEL_FILE).exists():
        raise DataError(
            f"Expected a saved model with {source / MODEL_FILE}, found no such file. Runs from "
            "Python or on Flower have none: load `adadps.load_result(folder).params` into the "
            f"module that was trained. A model from a table has lost it: {RESTORE}"
        )
    held, file = read_json(source, MODEL_FILE), source / MODEL_FILE
    found = (held.get("format"), held.get("kind")) if isinstance(held, dict) else (None, None)
    later = (FORMAT, *EARLIER_FORMATS)
    if found not in (*((one, _KIND) for one in later), (FIRST_FORMAT, _FIRST_KIND)):
        known = found[0] if found[1] in (_KIND, _FIRST_KIND) else None
        raise of_another_format(f"a {_KIND} of format {FORMAT}", file, known)
    try:
        first = found[0] == FIRST_FORMAT
        model = _first_model_of(held) if first else _model_of(held, source, embeddings)
    except SideInformationError as error:
        raise DataError(f"{error} (The model is {source}.)") from error
    except (DataError, TypeError) as error:
        raise DataError(
            f"Expected the columns, classes and words of a model in {file}, found some that do not "
            f"fit together. {RESTORE}"
        ) from error
    result = load_result(source)
    _require_fit(model, result, source)
    return TrainedModel(model, result)


def _model_of(held: dict[str, Any], folder: Path, moved: str | None) -> TableModel:
    vocabulary, schema = held.get("vocabulary"), held.get("schema")
    if not isinstance(vocabulary, list) or not isinstance(schema, dict):
        raise DataError("Expected a schema and a list of words, found something else.")
    described = held.get("embeddings")
    if moved is not None and described is None:
        raise SettingError("Expected a model with embeddings, found one without. Leave it out.")
    vectors = None if described is None else embeddings_described(described, moved)
    stored = held.get("fitted")
    fitted = None if stored is None else load_fitted(stored, folder / VECTORS_FILE)
    negation = negation_of(held.get("negation"))
    return TableModel(schema_of(schema), tuple(vocabulary), vectors, fitted, negation)


def _first_model_of(held: dict[str, Any]) -> TableModel:
    """Read a model of texts alone, in the first format."""
    classes: Any = held.get("classes")
    vocabulary: Any = held.get("vocabulary")
    column: Any = held.get("text_column")
    lists = isinstance(classes, list) and isinstance(vocabulary, list)
    if not lists or not isinstance(column, str) or held.get("dampened") is not True:
        raise DataError("Expected classes, words and a column of texts, found something else.")
    label = Label("" if column else "label", tuple(classes))  # the label's column was not saved
    return TableModel(Schema((column,), (), (), label), tuple(vocabulary))


def _require_fit(model: TableModel, result: Result, source: Path) -> None:
    """Compare shapes before anything of that size is allocated."""
    expected = (model.schema.label.outputs, model.features.width)
    weight = result.params.get("weight")
    weights = result.feature_weights
    fits = len(result.params) == 1 and weight is not None and tuple(weight.shape) == expected
    fits = fits and (weights is None or tuple(weights.shape) == expected[1:])
    if not fits or not all(
        value.is_floating_point() and bool(torch.isfinite(value).all())
        for value in (weight, weights)
        if value is not None
    ):
        raise DataError(
            f"Expected finite weights of {expected[0]} outputs and {expected[1]} features, as "
            f"{MODEL_FILE} says, in {source / WEIGHTS_FILE}, found others. {RESTORE}"
        )
