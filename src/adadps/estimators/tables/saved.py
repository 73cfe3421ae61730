"""A trained model in a folder: weights, statement, and what turns a row into features."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from adadps.data.sparse_rows import SparseRows
from adadps.data.tables import Table
from adadps.data.text import BagOfWords
from adadps.engine.objective import predict
from adadps.errors import DataError, SettingError
from adadps.estimators.tables.features import RowFeatures
from adadps.estimators.tables.schema import Label, Schema
from adadps.estimators.tables.schema_file import schema_of
from adadps.estimators.tables.targets import Targets
from adadps.report.html import report_of_run
from adadps.report.result import RESULT_FILE, WEIGHTS_FILE, Result
from adadps.report.saved_result import RESTORE, load_result, of_another_format, read_json
from adadps.tensors.feature_major import sparse_linear

FORMAT, FIRST_FORMAT = 2, 1
MODEL_FILE, REPORT_FILE = "model.json", "report.html"
_KIND, _FIRST_KIND = "linear model of a table", "linear text classifier"


@dataclass(frozen=True)
class TableModel:
    """Public facts that turn rows into features, and outputs into predictions."""

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
        """From a chunk of a table to rows; each depends on its own row alone."""
        return RowFeatures(self.schema, self.vocabulary)

    @property
    def targets(self) -> Targets:
        """From labels to targets, and from outputs to predictions."""
        return Targets(self.schema.label)

    def layer(self) -> torch.nn.Linear:
        """The layer before training: all zeros, and no bias, which the constant feature is.

        >>> schema = Schema(("text",), (), (), Label("kind", ("ham", "spam")))
        >>> TableModel(schema, ("prize",)).layer()
        Linear(in_features=1, out_features=2, bias=False)
        """
        layer = sparse_linear(self.features.width, self.schema.label.outputs, bias=False)
        torch.nn.init.zeros_(layer.weight)
        return layer

    @property
    def in_words(self) -> str:
        """The model in a line: the columns that it reads, and what it predicts."""
        schema, label = self.schema, self.schema.label
        reads = [f"'{name}' (text)" for name in schema.texts]
        reads += [f"'{column.name}' (number)" for column in schema.numeric]
        reads += [f"'{column.name}' (category)" for column in schema.categorical]
        what = "a number" if label.regression else f"one of {label.outputs} classes"
        told = f"linear; reads {', '.join(reads)}; predicts '{label.column}' ({what})"
        if schema.texts:
            told += f"; texts as log(1 + count) of {len(self.vocabulary)} public words"
        return told

    def describe(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
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
        """The same model for tables whose texts stand in another column."""
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
        """The same model that fills missing cells as its schema declares, or refuses them."""
        schema = replace(self.model.schema, fill_missing=fill)
        return TrainedModel(replace(self.model, schema=schema), self.result)

    @cached_property
    def _layer(self) -> torch.nn.Module:
        return self.result.restore(self.model.layer())

    def predictions(
        self, table: Table, *, probabilities: bool = False
    ) -> dict[str, Sequence[str] | Sequence[float]]:
        """New columns for the rows of a table. Levels that were not declared have no feature."""
        rows = SparseRows.from_scipy(self.model.features(table, refuse_unseen=False))
        outputs = predict(self._layer, rows, self.result.feature_weights)
        return self.model.targets.predictions(outputs, probabilities=probabilities)


def save_model(model: TableModel, result: Result, draft: Path) -> None:
    """Write the files of a model into ``draft``, a folder that takes its place when all is well."""
    result.write_into(draft)
    text = json.dumps(model.describe(), indent=1, allow_nan=False, ensure_ascii=False)
    (draft / MODEL_FILE).write_text(text + "\n", encoding="utf-8")
    report_of_run(result, draft / REPORT_FILE, title=draft.name)


def load_model(folder: str | Path) -> TrainedModel:
    """Read a saved model; nothing in it is executed."""
    source = Path(folder)
    if (source / RESULT_FILE).exists() and not (source / MODEL_FILE).exists():
        raise DataError(
            f"Expected a saved model with {source / MODEL_FILE}, found no such file. Runs from "
            "Python or on Flower have none: load `adadps.load_result(folder).params` into the "
            f"module that was trained. Of a model from a table it was lost: {RESTORE}"
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
    """Models of texts alone, as they were saved at first."""
    classes: Any = held.get("classes")
    vocabulary: Any = held.get("vocabulary")
    column: Any = held.get("text_column")
    lists = isinstance(classes, list) and isinstance(vocabulary, list)
    if not lists or not isinstance(column, str) or held.get("dampened") is not True:
        raise DataError("Expected classes, words and a column of texts, found something else.")
    label = Label("" if column else "label", tuple(classes))  # the label's column was not kept
    return TableModel(Schema((column,), (), (), label), tuple(vocabulary))


def _require_fit(model: TableModel, result: Result, source: Path) -> None:
    """Compare shapes before anything of that size is made."""
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
