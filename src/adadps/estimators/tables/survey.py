"""The cells of a table, and what is read off them where classes, levels or bounds are undeclared.

An error names the row and never shows its content: more people read a message than a private table.

What is read off is assumed public from then on. Values of only one or two people become neither
classes nor levels. Bounds are another matter: a smallest and a largest value *are* values of single
people, so the result states which bounds were read off.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from adadps.data.provenance import RARE, DeclaredRead, declared_read
from adadps.data.tables import Table
from adadps.data.users import MISSING, user_key
from adadps.errors import DataError
from adadps.estimators.tables.schema import Categorical, Label, Numeric, Schema

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


class RareError(DataError):
    """A level or class of one or two rows, which `--rare other` would not release."""


MOST_NAMES = 1000
"""A column with more distinct values than this probably holds names or texts."""


@declared_read(DeclaredRead.ASSUMED_PUBLIC)
def complete(schema: Schema, chunks: Iterable[Table]) -> Schema:
    """Return the schema, with what was not declared read off the data."""
    ranges = {column.name: _Range() for column in schema.numeric if not column.is_known}
    names = {column.name: _Names() for column in schema.categorical if not column.levels}
    target = schema.label
    target_range, target_names = _Range(), _Names()
    source = ""
    for chunk in chunks:
        source = str(chunk.source)
        for column in schema.numeric:
            if column.name in ranges:
                filled = column.missing if schema.fill_missing else None
                missing = math.nan if schema.fill_missing and filled is None else filled
                ranges[column.name].add(_given_numbers(chunk, column.name, missing))
        for name, found in names.items():
            cells = texts(chunk, name, fill_missing=schema.fill_missing)
            found.add(chunk, name, [[cell] if cell.strip() else [] for cell in cells])
        if not target.is_known and target.regression:
            target_range.add(numbers(chunk, target.column))
        elif not target.is_known:
            target_names.add(chunk, target.column, labels(chunk, target))
    if not target.is_known and target.regression:
        low, high = target_range.bounds(target.column, source)
        target = replace(target, low=low, high=high)
    elif not target.is_known:
        target = replace(target, classes=target_names.checked(target.column, source, 2))
    return replace(
        schema,
        numeric=tuple(_with_bounds(column, ranges, source) for column in schema.numeric),
        categorical=tuple(_with_levels(column, names, source) for column in schema.categorical),
        label=target,
    )


def _given_numbers(chunk: Table, name: str, missing: float | None) -> Numbers:
    """Return the numbers of a column, without missing ones where these are filled later."""
    if missing is None or math.isfinite(missing):
        return numbers(chunk, name, missing)
    found = numbers(chunk, name, 0.0)  # zeros for missing cells are dropped below
    present = [not is_missing(value) for value in chunk.values(name)]
    return found[present]


def _with_bounds(column: Numeric, found: dict[str, _Range], source: str) -> Numeric:
    if column.name not in found:
        return column
    low, high = found[column.name].bounds(column.name, source)
    return replace(column, low=low, high=high)


def _with_levels(column: Categorical, found: dict[str, _Names], source: str) -> Categorical:
    if column.name not in found:
        return column
    return replace(column, levels=found[column.name].checked(column.name, source, 1))


@dataclass
class _Range:
    """The smallest and the largest number seen."""

    low: float = math.inf
    high: float = -math.inf

    def add(self, found: Numbers) -> None:
        if len(found):
            self.low, self.high = min(self.low, found.min()), max(self.high, found.max())

    def bounds(self, name: str, source: str) -> tuple[float, float]:
        if self.low > self.high:
            raise DataError(
                f"Expected numbers in column '{name}' of {source}, found that all its cells are "
                "missing. Leave the column out, or check its name."
            )
        if self.low == self.high:
            raise DataError(
                f"Expected different numbers in column '{name}' of {source}, found the same one "
                "everywhere. Declare its bounds, or leave the column out."
            )
        return float(self.low), float(self.high)


@dataclass
class _Names:
    """How often each name occurs, and where it occurs first."""

    seen: dict[str, int] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)

    def add(self, chunk: Table, name: str, found: Sequence[Sequence[str]]) -> None:
        for row, some in enumerate(found):
            for one in some:
                if one not in self.seen:
                    self.first[one] = chunk.where(row)
                    self._require_few(name, chunk)
                self.seen[one] = self.seen.get(one, 0) + 1

    def _require_few(self, name: str, chunk: Table) -> None:
        if len(self.first) > MOST_NAMES:
            raise DataError(
                f"Expected at most {MOST_NAMES} different values in column '{name}' of "
                f"{chunk.source}, found more. Check which column holds the labels or levels, or "
                "declare them."
            )

    def checked(self, name: str, source: str, least: int) -> tuple[str, ...]:
        if len(self.seen) < least:
            raise DataError(
                f"Expected between {least} and {MOST_NAMES} different values in column '{name}' of "
                f"{source}, found {len(self.seen)}. Check which column holds the labels or levels, "
                "or declare them."
            )
        for one, count in self.seen.items():
            if count < RARE or one.strip().lower() in MISSING:
                raise RareError(
                    f"Expected values that occur at least {RARE} times in column '{name}' of "
                    f"{source}, found a rarer one, or a missing value, on {self.first[one]}. "
                    "Classes and levels are stored in the model for everyone to read: correct the "
                    "line, declare them (--classes a,b,c, --categorical NAME=a,b,other, or a "
                    "schema), or pay for those that are common and map the rest to 'other': --rare "
                    "other."
                )
        return tuple(sorted(self.seen))


READ_OFF = "read off the data"


def facts(
    declared: Schema, known: Schema, how: str = READ_OFF, *, only_found: bool | None = None
) -> list[str]:
    """Return what is public about the columns: declared, or found in the private data.

    ``how`` says how it was found. ``only_found`` restricts the facts to what was found, or (False)
    to what was declared.
    """
    found: list[tuple[bool, str]] = []
    for before, after in zip(declared.numeric, known.numeric, strict=True):
        words = _bounds_in_words(f"'{after.name}'", after.bounds, before.is_known, how)
        found.append((before.is_known, words))
        if known.fill_missing:
            filled = f"that missing values of '{after.name}' count as {after.filling:g}"
            found.append((before.is_known, filled))
    for given, category in zip(declared.categorical, known.categorical, strict=True):
        listed, origin = ", ".join(category.known_levels), "declared" if given.levels else how
        found.append((bool(given.levels), f"the levels of '{category.name}', {origin}: {listed}"))
    label, is_known = known.label, declared.label.is_known
    if label.regression:
        found.append((is_known, _bounds_in_words("the label", label.bounds, is_known, how)))
    else:
        listed, origin = ", ".join(label.known_classes), "declared" if is_known else how
        found.append((is_known, f"the classes, {origin}: {listed}"))
    return [words for was_declared, words in found if was_declared is not only_found]


def _bounds_in_words(what: str, bounds: tuple[float, float], is_declared: bool, how: str) -> str:
    extremes = " as its smallest and largest value" if how == READ_OFF else ""
    origin = "declared" if is_declared else f"{how}{extremes}"
    return f"the bounds of {what}, {origin}: {bounds[0]:g} to {bounds[1]:g}"
