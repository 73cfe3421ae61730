"""Cells of a table as numbers, levels, texts, labels and users.

An error names the row and never shows its content: more people read a message than a private table.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from adadps.data.tables import Table
from adadps.data.users import MISSING, user_key
from adadps.errors import DataError
from adadps.estimators.tables.schema import Label, Schema

Numbers = npt.NDArray[np.float64]


def is_missing(value: Any) -> bool:
    """Return whether a cell holds no number. Training and prediction share this rule.

    >>> [is_missing(value) for value in (None, " ", "NA", float("nan"), 0, "inf", "x")]
    [True, True, True, True, False, False, False]
    """
    if isinstance(value, str):
        return not value.strip() or value.strip().lower() in MISSING
    return value is None or (isinstance(value, float) and math.isnan(value))


def numbers(table: Table, name: str, filling: float | None = None) -> Numbers:
    """Return a column of finite numbers; missing ones become ``filling`` or are refused."""
    found = np.empty(len(table))
    for row, value in enumerate(table.values(name)):
        number = _number(value, filling)
        if not math.isfinite(number):
            fill = ", or fill what is missing: --missing fill" if filling is None else ""
            cure = f"Correct it or leave the line out{fill if is_missing(value) else ''}."
            raise DataError(
                f"Expected a finite number in column '{name}' of {table.source}, found "
                f"{'none' if is_missing(value) else 'something else'} on {table.where(row)}. {cure}"
            )
        found[row] = number
    return found


def _number(value: Any, filling: float | None) -> float:
    if is_missing(value):
        return math.nan if filling is None else filling
    if not isinstance(value, str | int | float | Decimal):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan


def texts(table: Table, name: str, *, fill_missing: bool) -> list[str]:
    """Return a column of texts or levels; empty cells become '' or are refused."""
    return table.texts(name) if fill_missing else table.column(name)


def joined_texts(table: Table, schema: Schema) -> list[str]:
    """Return the texts of each row as one, by which a text is recognised in another table."""
    columns = [texts(table, name, fill_missing=True) for name in schema.texts]
    return ["\n".join(parts) for parts in zip(*columns, strict=True)]


def labels(table: Table, label: Label) -> list[list[str]]:
    """Return the labels of each row: one, or several between separators."""
    cells = table.column(label.column)
    if label.separator is None:
        return [[cell] for cell in cells]
    split = [
        list(dict.fromkeys(part.strip() for part in cell.split(label.separator) if part.strip()))
        for cell in cells
    ]
    for row, found in enumerate(split):
        if not found:
            raise DataError(
                f"Expected at least one label in column '{label.column}' of {table.source}, found "
                f"only separators on {table.where(row)}. Correct it, or leave the line out."
            )
    return split


def users(table: Table, column: str) -> list[str]:
    """Return the user of each row; rows without one would all be protected as a single user."""
    keys = []
    for row, cell in enumerate(table.column(column)):
        key = user_key(cell)
        if key is None:
            raise DataError(
                f"Expected a user in column '{column}' of {table.source} on every line, found a "
                f"missing value on {table.where(row)}. Leave the line out, or give it a user of "
                "its own: several people under one name would be protected as one."
            )
        keys.append(key)
    return keys
