"""A linear model of a table: how it reads rows, what it predicts, and its files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adadps.data.declared_reads import DeclaredRead, declared_read
from adadps.data.examples import Examples
from adadps.data.identity import Identities, identities_of_texts, joined
from adadps.data.row_store import RowStore
from adadps.data.sparse_rows import SparseRows
from adadps.data.tables import ROWS_AT_ONCE, Table, read_chunks
from adadps.data.text import BagOfWords
from adadps.engine.objective import predict
from adadps.errors import DataError, SettingError
from adadps.estimators.models import linear_layer
from adadps.estimators.tables.cells import joined_texts, users
from adadps.estimators.tables.features import RowFeatures
from adadps.estimators.tables.schema import Label, Schema
from adadps.estimators.tables.schema_file import schema_of
from adadps.estimators.tables.targets import Targets
from adadps.report.html import report_of_run
from adadps.report.result import RESULT_FILE, WEIGHTS_FILE, Result
from adadps.report.saved_result import RESTORE, load_result, of_another_format, read_json

FORMAT, FIRST_FORMAT = 2, 1
MODEL_FILE, REPORT_FILE = "model.json", "report.html"
_KIND, _FIRST_KIND = "linear model of a table", "linear text classifier"


@dataclass(frozen=True)
class TableModel:
    """The public facts that turn rows into features, and outputs into predictions."""

    schema: Schema
    vocabulary: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.schema.texts or self.vocabulary:
            BagOfWords(self.vocabulary)
        if self.schema.unknown:
            raise DataError(
                f"Expected a whole schema, found that it lacks {', '.join(self.schema.unknown)}. "
                "Declare it."
            )

    @property
    def features(self) -> RowFeatures:
        """Return what makes features of rows, each row by itself."""
        return RowFeatures(self.schema, self.vocabulary)

    @property
    def targets(self) -> Targets:
        """Return what makes targets of labels, and predictions of outputs."""
        return Targets(self.schema.label)

    def layer(self) -> torch.nn.Linear:
        """Return the layer before training: all zeros, with a constant feature for a bias.

        >>> schema = Schema(("text",), (), (), Label("kind", ("ham", "spam")))
        >>> TableModel(schema, ("prize",)).layer()
        Linear(in_features=1, out_features=2, bias=False)
        """
        return linear_layer(self.features.width, self.schema.label.outputs)

    @property
    def in_words(self) -> str:
        """Return the model in a line: the columns that it reads, and what it predicts."""
        schema, label = self.schema, self.schema.label
        reads = [f"'{name}' (text)" for name in schema.texts]
        reads += [f"'{column.name}' (number)" for column in schema.numeric]
        reads += [f"'{column.name}' (category)" for column in schema.categorical]
        what = "a number" if label.regression else f"one of {label.outputs} classes"
        text = f"linear; reads {', '.join(reads)}; predicts '{label.column}' ({what})"
        if schema.texts:
            text += f"; texts as log(1 + count) of {len(self.vocabulary)} public words"
        return text

    def describe(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return {
            "format": FORMAT,
            "kind": _KIND,
            "schema": self.schema.describe(),
            "vocabulary": list(self.vocabulary),
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
            names.append(identities_of_texts(joined_texts(chunk, model.schema)))
    return store.examples(joined(names) if named else None)


def save_model(model: TableModel, result: Result, draft: Path) -> None:
    """Write the files of a model into the folder ``draft``."""
    result.write_into(draft)
    text = json.dumps(model.describe(), indent=1, allow_nan=False, ensure_ascii=False)
    (draft / MODEL_FILE).write_text(text + "\n", encoding="utf-8")
    report_of_run(result, draft / REPORT_FILE, title=draft.name)


def load_model(folder: str | Path) -> TrainedModel:
    """Read a saved model, without executing anything in it."""
    source = Path(folder)
    if (source / RESULT_FILE).exists() and not (source / MODEL_FILE).exists():
        raise DataError(
            f"Expected a saved model with {source / MODEL_FILE}, found no such file. Runs from "
            "Python or on Flower have none: load `adadps.load_result(folder).params` into the "
            f"module that was trained. A model from a table has lost it: {RESTORE}"
        )
    held, file = read_json(source, MODEL_FILE), source / MODEL_FILE
    found = (held.get("format"), held.get("kind")) if isinstance(held, dict) else (None, None)
    if found not in ((FORMAT, _KIND), (FIRST_FORMAT, _FIRST_KIND)):
        known = found[0] if found[1] in (_KIND, _FIRST_KIND) else None
        raise of_another_format(f"a {_KIND} of format {FORMAT}", file, known)
    try:
        model = _model_of(held) if found[0] == FORMAT else _first_model_of(held)
    except (DataError, TypeError) as error:
        raise DataError(
            f"Expected the columns, classes and words of a model in {file}, found some that do not "
            f"fit together. {RESTORE}"
        ) from error
    result = load_result(source)
    _require_fit(model, result, source)
    return TrainedModel(model, result)


def _model_of(held: dict[str, Any]) -> TableModel:
    vocabulary, schema = held.get("vocabulary"), held.get("schema")
    if not isinstance(vocabulary, list) or not isinstance(schema, dict):
        raise DataError("Expected a schema and a list of words, found something else.")
    return TableModel(schema_of(schema), tuple(vocabulary))


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
