"""Predictions for a table, chunk by chunk: memory does not grow with its rows."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

from adadps.data.tables import Table, Writer, nearest, read_chunks, table_writer
from adadps.errors import DataError, SettingError
from adadps.estimators.tables.saved_model import TrainedModel
from adadps.estimators.tables.schema import Schema

Columns = dict[str, Sequence[str] | Sequence[float]]


def predict_table(
    trained: TrainedModel,
    data: Path,
    stream: BinaryIO,
    out: Path,
    *,
    probabilities: bool = False,
) -> dict[str, Any]:
    """Write the rows of ``data`` with new columns into ``stream``, in the format of ``out``.

    Return the names of the new columns and the number of rows.
    """
    if probabilities and trained.model.schema.label.regression:
        raise SettingError(
            "Expected a model of classes for probabilities, found one that predicts a number. "
            "Leave --probabilities out."
        )
    writer: Writer | None = None
    rows, names = 0, []
    with ExitStack() as opened:
        for chunk in read_chunks(data):
            _require_columns(trained.model.schema, chunk)
            columns = trained.predictions(chunk, probabilities=probabilities)
            names = list(columns)
            if writer is None:
                writer = opened.enter_context(_writer(stream, out, chunk, columns))
            new = zip(*columns.values(), strict=True)
            writer.write([[*row, *more] for row, more in zip(chunk.rows, new, strict=True)])
            rows += len(chunk)
    return {"columns": names, "rows": rows}


def _require_columns(schema: Schema, chunk: Table) -> None:
    absent = [name for name in schema.inputs if name not in chunk.header]
    if not absent:
        return
    meant = nearest(absent[0], [name for name in chunk.header if name not in schema.inputs])
    text = "give --text NAME" if schema.texts == (absent[0],) else "rename the column of the table"
    raise DataError(
        f"Expected a column '{absent[0]}' in {chunk.source}, found none: the model reads "
        f"{', '.join(schema.inputs)}. {f'{meant} Then ' if meant else 'If it has another name, '}"
        f"{text}."
    )


def _writer(stream: BinaryIO, out: Path, chunk: Table, columns: Columns) -> Any:
    there = [name for name in columns if name in chunk.header]
    if there:
        raise DataError(
            f"Expected a table without a column '{there[0]}' in {chunk.source}, found one. Rename "
            "it."
        )
    numbers = [name for name, values in columns.items() if not isinstance(values[0], str)]
    return table_writer(stream, out, [*chunk.header, *columns], chunk.column_types, numbers)
