"""Chunks of a table into a row store, with the names by which their rows are recognised."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from adadps.data.examples import Examples
from adadps.data.identity import Identities, identities_of_texts, joined
from adadps.data.table_files import as_text
from adadps.data.tables import ROWS_AT_ONCE, Table, read_chunks
from adadps.table_model.cells import texts
from adadps.table_model.row_store import RowStore
from adadps.table_model.saved import TableModel
from adadps.table_model.schema import Schema


def load_rows(
    path: Path,
    model: TableModel,
    store: RowStore,
    *,
    named: bool,
    user: str | None = None,
    rows_at_once: int = ROWS_AT_ONCE,
) -> Examples:
    """The rows of a table as examples that stay on disk.

    ``named`` keeps 16 bytes a row by which rows that are public, or tested on, are found. ``user``
    is the column that tells users apart: they are numbered as they come.
    """
    names: list[Identities] = []
    numbers: dict[str, int] = {}
    for chunk in read_chunks(path, rows_at_once):
        users = None
        if user is not None:
            cells = chunk.column(user)
            users = np.array([numbers.setdefault(cell, len(numbers)) for cell in cells])
        store.append(model.features(chunk), model.targets(chunk), users)
        if named:
            names.append(identities_of_texts(_joined_cells(chunk, model.schema)))
    return store.examples(joined(names) if named else None)


def _joined_cells(chunk: Table, schema: Schema) -> list[str]:
    """The texts of each row as one; of a table without texts, all that the row has."""
    if not schema.texts:
        return ["\n".join(map(as_text, row)) for row in chunk.rows]
    columns = [texts(chunk, name, fill_missing=True) for name in schema.texts]
    return ["\n".join(parts) for parts in zip(*columns, strict=True)]
