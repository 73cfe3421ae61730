"""Rows of CSV and TSV files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from adadps.data.table_files import checked_header, empty_line, lines_of, require_no_nul
from adadps.errors import DataError

LONGEST_FIELD = 2**27
"""In characters; csv's own limit is 2**17, which a long document reaches."""


def delimited_rows(
    source: Path, text: io.TextIOWrapper, separator: str
) -> tuple[tuple[str, ...], Iterator[tuple[int, list[Any]]]]:
    """The header, and rows with the line at which each begins.

    Lines may be empty before the header and after the last row, but not between.
    """
    rows = _checked(source, csv.reader(lines_of(source, text), delimiter=separator, strict=True))
    header = next(rows, None)
    if header is None:
        raise DataError(
            f"Expected a table with a header in {source}, found an empty file. Check the path."
        )
    names = checked_header(source, header[1])
    return names, _as_wide(source, rows, len(names))


def _checked(source: Path, reader: Any) -> Iterator[tuple[int, list[Any]]]:
    begin, empty = 1, 0
    some = False
    while True:
        try:
            with _long_fields():
                row = next(reader, None)
        except csv.Error as error:
            raise DataError(
                f"Expected a table in {source}, found a line {reader.line_num} that is not part of "
                f"one ({error}). Quote fields with a quote, a line break or a separator in them."
            ) from error
        if row is None:
            return
        if row:
            if empty:
                raise empty_line(source, empty)
            require_no_nul(source, row, f"line {begin}")
            some = True
            yield begin, row
        elif some:
            empty = empty or begin
        begin = reader.line_num + 1


def _as_wide(
    source: Path, rows: Iterator[tuple[int, list[Any]]], width: int
) -> Iterator[tuple[int, list[Any]]]:
    for line, row in rows:
        if len(row) != width:
            raise DataError(
                f"Expected {width} fields on every line of {source}, found {len(row)} on line "
                f"{line}. Quote fields with a separator or a line break in them."
            )
        yield line, row


@contextmanager
def _long_fields() -> Iterator[None]:
    """Raise the limit of the csv module while a row is read; it is one for the whole process."""
    before = csv.field_size_limit(LONGEST_FIELD)
    try:
        yield
    finally:
        csv.field_size_limit(before)
