"""Undeclared levels, classes and bounds, counted on the private data with noise.

Each unit of privacy adds at most one level to each column of categories, one class, and one number
to each column of numbers. A user with several rows adds one of them, drawn at random, and a row
with several labels one label.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from adadps.accounting.noisy_counts.histograms import NameCounts, OctaveCounts
from adadps.accounting.noisy_counts.price import CountedColumns, Price
from adadps.data.provenance import DeclaredRead, declared_read
from adadps.data.tables import Table, is_missing, labels, numbers, texts, users
from adadps.data.users import MISSING
from adadps.engine.noise.randomness import Randomness
from adadps.errors import DataError
from adadps.estimators.tables.schema import OTHER, Label, Schema

Cell = str | float | None
"""A level or class, a number, or nothing."""
Row = tuple[Cell, ...]


def columns_of(schema: Schema) -> CountedColumns:
    """Return how many columns are to be counted."""
    categories, numeric, label = schema.undeclared
    of_numbers = label and schema.label.regression
    return CountedColumns(
        names=len(categories) + (label and not of_numbers), numbers=len(numeric) + of_numbers
    )


@declared_read(DeclaredRead.PAID_MEASUREMENT)
def measure(
    schema: Schema,
    chunks: Iterable[Table],
    price: Price,
    randomness: Randomness,
    *,
    user: str | None = None,
) -> Schema:
    """Return the schema with what was not declared. Call this once, after the price is paid."""
    counts = ColumnCounts.of(schema)
    if user is None:
        for chunk in chunks:
            counts.add(cells_of(chunk, schema, randomness))
    else:
        counts.add(one_row_per_user(chunks, schema, user, randomness))
    return counts.release(schema, price, randomness)


@dataclass
class ColumnCounts:
    """Counts of every column without levels, classes or bounds, in the order of `cells_of`."""

    names: dict[str, NameCounts[str]] = field(default_factory=dict)
    numbers: dict[str, OctaveCounts] = field(default_factory=dict)

    @classmethod
    def of(cls, schema: Schema) -> ColumnCounts:
        """Return empty counts for a schema."""
        categories, numeric, label = schema.undeclared
        held = cls({column.name: NameCounts() for column in categories}, {})
        held.numbers = {column.name: OctaveCounts() for column in numeric}
        if label and schema.label.regression:
            held.numbers[schema.label.column] = OctaveCounts()
        elif label:
            held.names[schema.label.column] = NameCounts()
        return held

    def add(self, rows: Iterable[Row]) -> None:
        """Count rows, each of another unit of privacy."""
        columns = list(zip(*rows, strict=True))
        if not columns:
            return
        names, found = columns[: len(self.names)], columns[len(self.names) :]
        for counts, cells in zip(self.names.values(), names, strict=True):
            counts.add(str(cell) for cell in cells if cell is not None)
        for octaves, cells in zip(self.numbers.values(), found, strict=True):
            octaves.add(np.array([math.nan if cell is None else cell for cell in cells], float))

    def release(self, schema: Schema, price: Price, randomness: Randomness) -> Schema:
        """Return a schema with the noisy counts filled in."""
        released = {name: tuple(sorted(held.release(price, randomness)))
                for name, held in self.names.items()}  # fmt: skip
        bounds = {
            name: _required(held.release(price.deviation, randomness), name)
            for name, held in self.numbers.items()
        }
        return replace(
            schema,
            numeric=tuple(
                replace(column, low=bounds[column.name][0], high=bounds[column.name][1])
                if column.name in bounds
                else column
                for column in schema.numeric
            ),
            categorical=tuple(
                replace(column, levels=(*released[column.name], OTHER))
                if column.name in released
                else column
                for column in schema.categorical
            ),
            label=_label(schema.label, released, bounds),
        )


def cells_of(chunk: Table, schema: Schema, randomness: Randomness) -> Iterator[Row]:
    """Return what each row adds: names, then numbers, at most one per column."""
    categories, numeric, label = schema.undeclared
    columns: list[list[Cell]] = [
        [_name(cell) for cell in texts(chunk, column.name, fill_missing=schema.fill_missing)]
        for column in categories
    ]
    if label and not schema.label.regression:
        draw = randomness.generator.integers
        columns.append(
            [_name(found[draw(len(found)) if len(found) > 1 else 0])
             for found in labels(chunk, schema.label.column, schema.label.separator)]
        )  # fmt: skip
    for column in numeric:
        given = numbers(chunk, column.name, 0.0 if schema.fill_missing else None).tolist()
        absent = [is_missing(value) for value in chunk.values(column.name)]
        columns.append([None if gone else v for v, gone in zip(given, absent, strict=True)])
    if label and schema.label.regression:
        columns.append(numbers(chunk, schema.label.column).tolist())
    return zip(*columns, strict=True)


def one_row_per_user(
    chunks: Iterable[Table], schema: Schema, user: str, randomness: Randomness
) -> list[Row]:
    """Return one row of each user, each of their rows with the same probability."""
    chosen: dict[str, Row] = {}
    seen: dict[str, int] = {}
    for chunk in chunks:
        chances = randomness.generator.random(len(chunk))
        rows = cells_of(chunk, schema, randomness)
        for name, row, chance in zip(users(chunk, user), rows, chances, strict=True):
            seen[name] = seen.get(name, 0) + 1
            if chance * seen[name] < 1:
                chosen[name] = row
    return list(chosen.values())


def _name(cell: str) -> str | None:
    """Return a name to count; missing cells, and those that say "other", become other anyway."""
    plain = cell.strip()
    return None if not plain or plain == OTHER or plain.lower() in MISSING else cell


def _label(
    label: Label, released: dict[str, tuple[str, ...]], bounds: dict[str, tuple[float, float]]
) -> Label:
    if label.is_known:
        return label
    if label.regression:
        low, high = bounds[label.column]
        return replace(label, low=low, high=high)
    if not released[label.column]:
        raise DataError(
            f"Expected at least one class in column '{label.column}' that is common enough to be "
            "released, found none above the noise; the privacy cost has already been charged. "
            "Declare them: --classes a,b,c."
        )
    return replace(label, classes=(*released[label.column], OTHER))


def _required(bounds: tuple[float, float] | None, name: str) -> tuple[float, float]:
    if bounds is None:
        raise DataError(
            f"Expected numbers in column '{name}' that stand above the noise, found none; the "
            "privacy cost has already been charged. Declare its bounds, or leave the column out."
        )
    return bounds
