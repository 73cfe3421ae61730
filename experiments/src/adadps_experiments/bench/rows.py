"""Rows of measurements in a file that is complete after each of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adadps.errors import DataError, SettingError
from adadps.files.writing import write_json

Row = dict[str, Any]

DISTURBED = 0.1
"""Share of its cores that other work may take from a measurement."""


def save(path: Path, rows: Sequence[Row]) -> None:
    """Replace the file in one move: a process that is killed meanwhile loses nothing."""
    write_json(path, list(rows))


def load(path: Path) -> list[Row]:
    """Rows that `save` has written."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(
            f"Expected rows of `adadps bench --json` in {path}, found: {error}. Give such a file."
        ) from error
    if not isinstance(rows, list) or not all(_is_row(row) for row in rows):
        raise DataError(
            f"Expected rows of `adadps bench --json` in {path}, found other JSON. Each row has "
            "workload, contender, ms_per_step and peak_mb: measure again."
        )
    return rows


def find(rows: Sequence[Row], workload: str, contender: str) -> Row | None:
    """The row of a workload and a contender."""
    for row in rows:
        if (row["workload"], row["contender"]) == (workload, contender):
            return row
    return None


def measured(row: Row) -> bool:
    """Is there a number, and not a reason why there is none?"""
    return row["ms_per_step"] is not None


def disturbed(row: Row) -> bool:
    """Did other work take so much of the machine that the time says little?"""
    return float(row.get("other_work", 0.0)) > DISTURBED


def _is_row(row: object) -> bool:
    return isinstance(row, dict) and {"workload", "contender", "ms_per_step", "peak_mb"} <= set(row)


class RowFile:
    """Rows that are written to a file, if there is one, after each change."""

    def __init__(self, path: Path | None, *, resume: bool) -> None:
        if resume and path is None:
            raise SettingError("Expected a file to resume, found none. Add --json FILE.")
        self.path = path
        known = resume and path is not None and path.exists()
        self.rows: list[Row] = load(path) if known and path is not None else []

    def has(self, workload: str, contender: str, threads: int) -> bool:
        """Was this measured before, on as many threads? What failed or was disturbed was not."""
        row = find(self.rows, workload, contender)
        if row is None or not measured(row) or disturbed(row):
            return False
        return row.get("threads") == threads

    def put(self, row: Row) -> None:
        """Add a row in place of an earlier one of the same name."""
        old = find(self.rows, row["workload"], row["contender"])
        if old is None:
            self.rows.append(row)
        else:
            self.rows[self.rows.index(old)] = row
        if self.path is not None:
            save(self.path, self.rows)


def line(row: Row) -> str:
    """A row in one line, for those who wait."""
    found = row.get("error") or f"{number(row['ms_per_step'])} ms, {row['peak_mb']:.0f} MB"
    return f"{row['workload']}, {row['contender']}: {found}"


def number(value: float | None) -> str:
    """Three digits that can be read.

    >>> number(12345.6), number(0.01234), number(None)
    ('12,346', '0.0123', '–')
    """
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
