"""Chunks of a table into a row store, with the names by which their rows are recognised."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from adadps.data.declared_reads import DeclaredRead, declared_read
from adadps.data.examples import Examples
from adadps.data.identity import (
    Identities,
    identities_of_cells,
    identities_of_texts,
    joined,
    normalised,
)
from adadps.data.row_store import RowStore
from adadps.data.tables import ROWS_AT_ONCE, Table, read_chunks
from adadps.data.users import user_key
from adadps.errors import DataError
from adadps.estimators.tables.cells import joined_texts
from adadps.estimators.tables.saved import TableModel


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
    """The rows of a table as examples that stay on disk.

    ``named`` keeps 16 bytes a row by which rows that are public are found. ``user`` is the column
    that tells users apart: they are numbered as they come.
    """
    names: list[Identities] = []
    numbers: dict[str, int] = {}
    for chunk in read_chunks(path, rows_at_once):
        users = None
        if user is not None:
            users = np.array(
                [numbers.setdefault(name, len(numbers)) for name in users_in(chunk, user)]
            )
        store.append(model.features(chunk), model.targets(chunk), users)
        if named:
            names.append(identities_of_texts(joined_texts(chunk, model.schema)))
    return store.examples(joined(names) if named else None)


def row_names(path: Path, texts: Sequence[str], others: Sequence[str]) -> Identities:
    """Names of the rows of a table by what these columns say, however it is written.

    Texts are compared by their letters and digits, and numbers as numbers: 1 and 1.0 are the same.
    """
    found = []
    for chunk in read_chunks(path):
        cells = zip(
            *([normalised(text) for text in chunk.texts(name)] for name in texts),
            *([_as_number(cell) for cell in chunk.texts(name)] for name in others),
            strict=True,
        )
        found.append(identities_of_cells(list(cells)))
    return joined(found)


def user_names(path: Path, column: str) -> Identities:
    """Whose the rows of a table are, told apart as in training."""
    chunks = read_chunks(path)
    return joined([identities_of_cells([(u,) for u in users_in(one, column)]) for one in chunks])


def shared_columns(one: Path, other: Path) -> list[str]:
    """The columns that both tables have."""
    first, second = (next(iter(read_chunks(path))).header for path in (one, other))
    return sorted(set(first) & set(second))


def _as_number(cell: str) -> str:
    """A number in one spelling; anything else without case and blanks around it.

    >>> _as_number("7.0"), _as_number("7"), _as_number(" Ann ")
    ('7.0', '7.0', 'ann')
    """
    try:
        return repr(float(cell))
    except ValueError:
        return cell.strip().casefold()


def users_in(chunk: Table, column: str) -> list[str]:
    """Who each row is from: rows without a user would all be protected as one, and none alone."""
    keys = []
    for row, cell in enumerate(chunk.column(column)):
        key = user_key(cell)
        if key is None:
            raise DataError(
                f"Expected a user in column '{column}' of {chunk.source} on every line, found a "
                f"missing value on {chunk.where(row)}. Leave the line out, or give it a user of "
                "its own: several people under one name would be protected as one."
            )
        keys.append(key)
    return keys
