"""Formats of table files: recognising them, opening them, and reading rows of CSV, TSV and JSON."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO

from adadps.errors import DataError
from adadps.files import parse_json

_NOT_UTF_8 = re.compile("[\udc80-\udcff]")
GZIP, PARQUET = b"\x1f\x8b", b"PAR1"


class Format(StrEnum):
    """The format in which rows are written."""

    CSV = "CSV"
    TSV = "TSV"
    JSON_LINES = "JSON lines"
    PARQUET = "Parquet"


_BY_ENDING = {
    ".csv": Format.CSV,
    ".tsv": Format.TSV,
    ".jsonl": Format.JSON_LINES,
    ".ndjson": Format.JSON_LINES,
    ".json": Format.JSON_LINES,
    ".parquet": Format.PARQUET,
}
SEPARATORS = {Format.CSV: ",", Format.TSV: "\t"}


def format_of(path: Path) -> Format:
    """Return the format that the name of a file implies; CSV by default.

    >>> format_of(Path("mail.JSONL.gz")).value, format_of(Path("2024.tsv.csv")).value
    ('JSON lines', 'CSV')
    """
    endings = [ending.lower() for ending in path.suffixes[-2:]]
    packed = endings[-1:] == [".gz"]
    held = _BY_ENDING.get((endings[:-1] if packed else endings[-1:] or [""])[-1:][0], Format.CSV)
    if packed and held is Format.PARQUET:
        raise DataError(
            f"Expected a Parquet file without gzip, found the name {path}. Parquet is compressed "
            "inside: remove the .gz."
        )
    return held


def is_gzipped(path: Path) -> bool:
    """Does the name imply gzip?"""
    return path.suffix.lower() == ".gz"


def looks_like_parquet(source: Path) -> bool:
    """Does the file begin like Parquet, whatever its name?"""
    if not source.is_file():  # reading from a pipe would consume it
        return False
    with source.open("rb") as raw:
        return raw.read(4) == PARQUET


def as_text(value: Any) -> str:
    """Return a value of any table as text; a missing one is ''.

    >>> [as_text(value) for value in ("a", None, True, 5, 0.5, [1, "b"])]
    ['a', '', 'true', '5', '0.5', '[1, "b"]']
    """
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


@contextmanager
def text_in(source: Path) -> Iterator[io.TextIOWrapper]:
    """Open a file as text in UTF-8, with or without a byte order mark, plain or gzip.

    Bytes that are not UTF-8 become lone surrogates, which `lines_of` finds together with their line
    number: a decoder that reads ahead does not know it.
    """
    with source.open("rb") as raw:
        packed = raw.peek(2)[:2] == GZIP if isinstance(raw, io.BufferedReader) else False
        content: BinaryIO = gzip.GzipFile(fileobj=raw) if packed else raw  # type: ignore[assignment]
        with io.TextIOWrapper(
            content, encoding="utf-8-sig", errors="surrogateescape", newline=""
        ) as text:
            yield text


def checked_header(source: Path, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the columns; each must occur once."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise DataError(
                f"Expected different names in the header of {source}, found '{name}' more than "
                "once. Rename the columns."
            )
        seen.add(name)
    return tuple(names)


def require_no_nul(source: Path, cells: Sequence[Any], where: str) -> None:
    """Refuse a NUL byte in a text, the sign of a file that is not text."""
    if any("\0" in value for value in cells if isinstance(value, str)):
        raise DataError(
            f"Expected text in {source}, found a NUL byte on {where}. Save the file as UTF-8 "
            "text, or remove the line."
        )


def lines_of(source: Path, text: io.TextIOWrapper) -> Iterator[str]:
    """Yield the lines of a text, and refuse the first that is not UTF-8."""
    for number, line in enumerate(text, 1):
        if not line.isascii() and _NOT_UTF_8.search(line):
            raise DataError(
                f"Expected text in UTF-8 in {source}, found other bytes on line {number}. Save the "
                "file as UTF-8."
            )
        yield line


def empty_line(source: Path, line: int) -> DataError:
    """Return the error for an empty line between rows."""
    return DataError(
        f"Expected a row on every line of {source}, found line {line} empty. Remove it, or write "
        "the missing row: the rows after it would no longer line up with the file."
    )


@contextmanager
def explained(source: Path) -> Iterator[None]:
    """Raise a `DataError` for whatever keeps a file from being read."""
    try:
        yield
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"Expected a file at {source}, found nothing. Check the path.") from error
    except IsADirectoryError as error:
        raise DataError(
            f"Expected a file at {source}, found a folder. Name a file in it."
        ) from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(
            f"Expected a whole gzip file at {source}, found a damaged one ({error}). Pack it again."
        ) from error
    except (OSError, ValueError) as error:  # a name with a NUL byte is a ValueError
        raise DataError(
            f"Expected a file that can be read at {source}, found: {error}. Check the path and its "
            "permissions."
        ) from error
    except MemoryError as error:
        raise DataError(
            f"Expected a table that fits in memory at {source}, found a larger one. Split it."
        ) from error


LONGEST_FIELD = 2**27
"""The longest field in characters; csv's own limit is 2**17, which long documents reach."""


def delimited_rows(
    source: Path, text: io.TextIOWrapper, separator: str
) -> tuple[tuple[str, ...], Iterator[tuple[int, list[Any]]]]:
    """Return the header, and an iterator of rows with the line at which each begins.

    Lines may be empty before the header and after the last row, but not between.
    """
    rows = _rows_of_csv(
        source, csv.reader(lines_of(source, text), delimiter=separator, strict=True)
    )
    header = next(rows, None)
    if header is None:
        raise DataError(
            f"Expected a table with a header in {source}, found an empty file. Check the path."
        )
    names = checked_header(source, header[1])
    return names, _of_one_width(source, rows, names)


def separator_hint(names: Sequence[str]) -> str:
    """Say what is wrong with a header that is one name with other separators in it; else nothing.

    >>> separator_hint(["text;label"])
    " The header is one column with ';' in its name: save the table with commas between columns."
    >>> separator_hint(["text", "a;b"])
    ''
    """
    found = next((mark for mark in (";", "\t", "|", ",") if mark in names[0]), None)
    if len(names) != 1 or found is None:
        return ""
    shown = "a tab" if found == "\t" else f"'{found}'"
    cure = (
        "save the table with commas between columns"
        if found in ";|"
        else f"name the file {'.tsv' if found != ',' else '.csv'}"
    )
    return f" The header is one column with {shown} in its name: {cure}."


def _rows_of_csv(source: Path, reader: Any) -> Iterator[tuple[int, list[Any]]]:
    begin, empty = 1, 0
    some = False
    while True:
        try:
            with _long_fields():
                row = next(reader, None)
        except csv.Error as error:
            raise DataError(
                f"Expected a table in {source}, found that line {reader.line_num} is not part of "
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


_QUOTE = "Quote fields with a separator or a line break in them."


def _of_one_width(
    source: Path, rows: Iterator[tuple[int, list[Any]]], names: Sequence[str]
) -> Iterator[tuple[int, list[Any]]]:
    for line, row in rows:
        if len(row) != len(names):
            cure = separator_hint(names).strip() or _QUOTE
            raise DataError(
                f"Expected as many fields on every line of {source} as in its header, "
                f"{len(names)}, found {len(row)} on line {line}. {cure}"
            )
        yield line, row


@contextmanager
def _long_fields() -> Iterator[None]:
    """Raise the limit of the csv module while a row is read; the whole process shares it."""
    before = csv.field_size_limit(LONGEST_FIELD)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def json_rows(
    source: Path, text: io.TextIOWrapper
) -> tuple[tuple[str, ...], Iterator[tuple[int, list[Any]]]]:
    """Return the names in the first object, and rows with their lines; absent names are missing."""
    objects = _objects(source, text)
    first = next(objects, None)
    if first is None:
        raise DataError(
            f"Expected one JSON object per line in {source}, found an empty file. Check the path."
        )
    header = tuple(first[1])
    return header, _rows_of_objects(source, header, first, objects)


def _rows_of_objects(
    source: Path,
    header: tuple[str, ...],
    first: tuple[int, dict[str, Any]],
    others: Iterator[tuple[int, dict[str, Any]]],
) -> Iterator[tuple[int, list[Any]]]:
    names = set(header)
    yield first[0], list(first[1].values())
    for line, held in others:
        unknown = held.keys() - names
        if unknown:
            raise DataError(
                f"Expected the names of the first line on every line of {source}, found "
                f"'{min(unknown)}' on line {line} as well. Name it on the first line, with null."
            )
        yield line, [held.get(name) for name in header]


def _objects(source: Path, text: io.TextIOWrapper) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield one object per line; lines may be empty before the first and after the last."""
    some, empty = False, 0
    for line, written in enumerate(lines_of(source, text), 1):
        if written.strip():
            if empty:
                raise empty_line(source, empty)
            some = True
            yield line, _object(source, written, line)
        elif some:
            empty = empty or line


def _object(source: Path, written: str, line: int) -> dict[str, Any]:
    try:
        held = parse_json(written)
    except DataError as error:
        raise DataError(
            f"Expected one JSON object per line in {source}, found that line {line} is "
            f"none ({error}) Correct the line, or remove it."
        ) from error
    if not isinstance(held, dict):
        raise DataError(
            f"Expected one JSON object per line in {source}, found something else on line {line}. "
            'Write each row as {"column": value, ...} on its own line.'
        )
    require_no_nul(source, [*held, *held.values()], f"line {line}")
    return held
