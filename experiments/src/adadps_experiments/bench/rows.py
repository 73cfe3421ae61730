"""Rows of measurements, and the JSON file that holds them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adadps.errors import DataError, SettingError
from adadps.files import write_json

Row = dict[str, Any]

DISTURBED = 0.1
"""The share of a measurement's cores that other processes may take."""


def save(path: Path, rows: Sequence[Row]) -> None:
    """Replace the file atomically, so that a killed process loses no row."""
    write_json(path, list(rows))


def load(path: Path) -> list[Row]:
    """Read the rows that `save` has written."""
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


def find(
    rows: Sequence[Row], workload: str, contender: str, processes: int | None = None
) -> Row | None:
    """Return the row of a workload and a contender, if there is one; of so many processes."""
    for row in rows:
        found = (row["workload"], row["contender"], row.get("processes"))
        if found == (workload, contender, processes):
            return row
    return None


def measured(row: Row) -> bool:
    """Tell whether a row has numbers rather than a reason for having none."""
    return row["ms_per_step"] is not None


def disturbed(row: Row) -> bool:
    """Tell whether other processes took too much of the machine for the time to be valid."""
    return float(row.get("other_work", 0.0)) > DISTURBED


def _is_row(row: object) -> bool:
    return isinstance(row, dict) and {"workload", "contender", "ms_per_step", "peak_mb"} <= set(row)


class RowFile:
    """A list of rows that is written to its file, if it has one, after each change."""

    def __init__(self, path: Path | None, *, resume: bool) -> None:
        if resume and path is None:
            raise SettingError("Expected a file to resume, found none. Add --json FILE.")
        self.path = path
        known = resume and path is not None and path.exists()
        self.rows: list[Row] = load(path) if known and path is not None else []

    def has(
        self, workload: str, contender: str, threads: int, processes: int | None = None
    ) -> bool:
        """Tell whether a pair was measured on this many threads, undisturbed and with success."""
        row = find(self.rows, workload, contender, processes)
        if row is None or not measured(row) or disturbed(row):
            return False
        return row.get("threads") == threads

    def put(self, row: Row) -> None:
        """Add a row, or replace the one of the same workload, contender and processes."""
        old = find(self.rows, row["workload"], row["contender"], row.get("processes"))
        if old is None:
            self.rows.append(row)
        else:
            self.rows[self.rows.index(old)] = row
        if self.path is not None:
            save(self.path, self.rows)


def one_line(row: Row) -> str:
    """Return a row in one line, to show progress."""
    found = row.get("error") or f"{readable(row['ms_per_step'])} ms, {row['peak_mb']:.0f} MB"
    together = f", processes: {row['processes']}" if "processes" in row else ""
    return f"{row['workload']}, {row['contender']}{together}: {found}"


def readable(value: float | None) -> str:
    """Return a number with three significant digits, or a dash.

    >>> readable(12345.6), readable(0.01234), readable(None)
    ('12,346', '0.0123', '–')
    """
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
