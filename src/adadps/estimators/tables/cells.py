"""Cells of a table as numbers, levels and labels.

An error names the row and never shows what stands there: a message is read by more people than a
private table.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from adadps.data.tables import Table
from adadps.data.users import MISSING
from adadps.errors import DataError
from adadps.estimators.tables.schema import Label, Schema

Numbers = npt.NDArray[np.float64]


def is_missing(value: Any) -> bool:
    """Is there no number in a cell? The rule for columns of numbers, in training and prediction.

    >>> [is_missing(value) for value in (None, " ", "NA", float("nan"), 0, "inf", "x")]
    [True, True, True, True, False, False, False]
    """
    if isinstance(value, str):
        return not value.strip() or value.strip().lower() in MISSING
    return value is None or (isinstance(value, float) and math.isnan(value))


def numbers(table: Table, name: str, filling: float | None = None) -> Numbers:
    """A column of finite numbers; ``filling`` stands for missing ones, which else are refused."""
    found = np.empty(len(table))
    for row, value in enumerate(table.values(name)):
        number = _number(value, filling)
        if not math.isfinite(number):
            fill = ", or fill what is missing: --missing fill" if filling is None else ""
            cure = f"Mend it or leave the line out{fill if is_missing(value) else ''}."
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


def levels(table: Table, name: str, *, fill_missing: bool) -> list[str]:
    """A column of levels; an empty one is '' if it may be missing."""
    return table.texts(name) if fill_missing else table.column(name)


def texts(table: Table, name: str, *, fill_missing: bool) -> list[str]:
    """A column of texts; an empty one has no words, if it may be missing."""
    return table.texts(name) if fill_missing else table.column(name)


def joined_texts(table: Table, schema: Schema) -> list[str]:
    """The texts of each row as one, by which a text is recognised in another table."""
    columns = [texts(table, name, fill_missing=True) for name in schema.texts]
    return ["\n".join(parts) for parts in zip(*columns, strict=True)]


def labels(table: Table, label: Label) -> list[list[str]]:
    """The labels of each row: one, or several between separators."""
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
                f"only separators on {table.where(row)}. Mend it, or leave the line out."
            )
    return split
