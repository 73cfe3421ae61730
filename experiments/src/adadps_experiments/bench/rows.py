"""Rows of measurements in a file that is complete after each of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from adadps.errors import DataError
from adadps.files.writing import write_json
from adadps_experiments.reproduce.rows import Row

__all__ = ["Row", "disturbed", "find", "load", "measured", "save"]

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
