"""The linear model of a table: how it reads rows, what it predicts, and its files.

`TableModel` holds the public facts, which are saved as ``model.json``. A folder of an earlier
format predicts what it predicted then; one of a later format is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adadps.data.examples import Examples
from adadps.data.identity import Identities, identities_of_texts, joined
from adadps.data.provenance import DeclaredRead, declared_read
from adadps.data.row_store import RowStore
from adadps.data.sparse_rows import SparseRows
from adadps.data.tables import ROWS_AT_ONCE, Table, joined_texts, read_chunks, users
from adadps.engine.objective import predict
from adadps.errors import DataError, SettingError, SideInformationError
from adadps.estimators.planner.methods import linear_layer
from adadps.estimators.short_texts import SHORT, checked_short
from adadps.estimators.tables.features import RowFeatures, Targets
from adadps.estimators.tables.schema import Label, Schema, schema_of
from adadps.estimators.text import BagOfWords, Negation, counted, directions_of, negation_of
from adadps.methods.side import Embeddings, embeddings_described
from adadps.methods.side.fitted import describe_fitted, load_fitted, save_fitted
from adadps.report.html import report_of_run
from adadps.report.result import RESULT_FILE, WEIGHTS_FILE, Result
from adadps.report.saved_result import RESTORE, load_result, of_another_format, read_json

FORMAT, EARLIER_FORMATS, FIRST_FORMAT = 6, (5, 4, 3, 2), 1
"""5 treats short texts like long ones, 4 has no negated words, 3 no fitted vectors, 2 no
embeddings, the first texts alone."""
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
    short_below: int | None = SHORT

    def __post_init__(self) -> None:
        checked_short(self.short_below)
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
            self.schema,
            self.vocabulary,
            self.embeddings,
            self.fitted,
            self.negation,
            self.short_below,
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
    def favours_short(self) -> bool:
        """Return whether embeddings have more of short texts than of others."""
        both = bool(self.vocabulary and self.features.vectors)
        return both and not self.features.has_constant and self.short_below is not None

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
        if self.favours_short:
            text += f", which have more of texts below {self.short_below} known words"
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
            "short_below": self.short_below,
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
    done: Callable[[int], None] | None = None,
) -> Examples:
    """Return the rows of a table as examples that stay on disk; ``done`` is told of each chunk.

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
        if done is not None:
            done(len(chunk))
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
    except (DataError, KeyError, TypeError) as error:
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
    short = held["short_below"] if held["format"] == FORMAT else None
    return TableModel(schema_of(schema), tuple(vocabulary), vectors, fitted, negation, short)


def _first_model_of(held: dict[str, Any]) -> TableModel:
    """Read a model of texts alone, in the first format."""
    classes: Any = held.get("classes")
    vocabulary: Any = held.get("vocabulary")
    column: Any = held.get("text_column")
    lists = isinstance(classes, list) and isinstance(vocabulary, list)
    if not lists or not isinstance(column, str) or held.get("dampened") is not True:
        raise DataError("Expected classes, words and a column of texts, found something else.")
    label = Label("" if column else "label", tuple(classes))  # the label's column was not saved
    return TableModel(Schema((column,), (), (), label), tuple(vocabulary), short_below=None)


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
