"""What is read off a table where classes, levels or bounds are undeclared.

What is read off is assumed public from then on. Values of only one or two people become neither
classes nor levels. Bounds are another matter: a smallest and a largest value *are* values of single
people, so the result states which bounds were read off.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from adadps.data.provenance import RARE, DeclaredRead, declared_read
from adadps.data.tables import Table, is_missing, labels, numbers, texts
from adadps.data.users import MISSING
from adadps.errors import DataError
from adadps.estimators.tables.schema import Categorical, Numeric, Schema

Numbers = npt.NDArray[np.float64]


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
            target_names.add(chunk, target.column, labels(chunk, target.column, target.separator))
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
