"""Which kind of table a file holds, and how it is opened: what all readers share."""

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
from adadps.files.strict_json import parse_json

_NOT_UTF_8 = re.compile("[\udc80-\udcff]")
GZIP, PARQUET = b"\x1f\x8b", b"PAR1"


class Format(StrEnum):
    """How rows are written."""

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
ENDINGS = ".csv, .tsv, .jsonl (each also .gz) or .parquet"


def format_of(path: Path) -> Format:
    """The format that a name promises; CSV if it promises nothing.

    >>> format_of(Path("mail.JSONL.gz")).value, format_of(Path("2024.tsv.csv")).value
    ('JSON lines', 'CSV')
    """
    endings = [ending.lower() for ending in path.suffixes[-2:]]
    packed = endings[-1:] == [".gz"]
    held = _BY_ENDING.get((endings[:-1] if packed else endings[-1:] or [""])[-1:][0], Format.CSV)
    if packed and held is Format.PARQUET:
        raise DataError(
            f"Expected a Parquet file without gzip, found the name {path}. Parquet is packed "
            "inside: leave the .gz out."
        )
    return held


def is_packed(path: Path) -> bool:
    """Does the name promise gzip?"""
    return path.suffix.lower() == ".gz"


def looks_like_parquet(source: Path) -> bool:
    """Does the file begin like Parquet, whatever its name?"""
    if not source.is_file():  # what was read from a pipe is gone
        return False
    with source.open("rb") as raw:
        return raw.read(4) == PARQUET


def as_text(value: Any) -> str:
    """A value of any table as a cell of text; missing is ''.

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
    """The text of a file in UTF-8, with or without a byte order mark, plain or gzip.

    Bytes that are no UTF-8 pass here as halves of characters: `lines_of` finds them, with their
    line, which a decoder that reads ahead does not know.
    """
    with source.open("rb") as raw:
        packed = raw.peek(2)[:2] == GZIP if isinstance(raw, io.BufferedReader) else False
        content: BinaryIO = gzip.GzipFile(fileobj=raw) if packed else raw  # type: ignore[assignment]
        with io.TextIOWrapper(
            content, encoding="utf-8-sig", errors="surrogateescape", newline=""
        ) as text:
            yield text


def checked_header(source: Path, names: Sequence[str]) -> tuple[str, ...]:
    """The names of the columns, each once."""
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
    """A NUL byte in a text is the sign of a file that is not text."""
    if any("\0" in value for value in cells if isinstance(value, str)):
        raise DataError(
            f"Expected text in {source}, found a NUL byte on {where}. Save the file as UTF-8 "
            "text, or leave the line out."
        )


def lines_of(source: Path, text: io.TextIOWrapper) -> Iterator[str]:
    """The lines of a text; the first that is not UTF-8 is refused."""
    for number, line in enumerate(text, 1):
        if not line.isascii() and _NOT_UTF_8.search(line):
            raise DataError(
                f"Expected text in UTF-8 in {source}, found other bytes on line {number}. Save the "
                "file as UTF-8."
            )
        yield line


def empty_line(source: Path, line: int) -> DataError:
    """What is said about a line without a row, between rows."""
    return DataError(
        f"Expected a row on every line of {source}, found line {line} empty. Leave it out, or "
        "write the missing row: what follows would no longer line up with the file."
    )


@contextmanager
def explained(source: Path) -> Iterator[None]:
    """Say in our words why a file cannot be read."""
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


def json_rows(
    source: Path, text: io.TextIOWrapper
) -> tuple[tuple[str, ...], Iterator[tuple[int, list[Any]]]]:
    """The columns of the first object, and rows with their line; a name left out is missing."""
    objects = _objects(source, text)
    first = next(objects, None)
    if first is None:
        raise DataError(
            f"Expected one JSON object a line in {source}, found an empty file. Check the path."
        )
    header = tuple(first[1])
    return header, _rows(source, header, first, objects)


def _rows(
    source: Path,
    header: tuple[str, ...],
    first: tuple[int, dict[str, Any]],
    others: Iterator[tuple[int, dict[str, Any]]],
) -> Iterator[tuple[int, list[Any]]]:
    known = set(header)
    yield first[0], list(first[1].values())
    for line, held in others:
        unknown = held.keys() - known
        if unknown:
            raise DataError(
                f"Expected the names of the first line on every line of {source}, found "
                f"'{min(unknown)}' on line {line} as well. Name it on the first line, with null."
            )
        yield line, [held.get(name) for name in header]


def _objects(source: Path, text: io.TextIOWrapper) -> Iterator[tuple[int, dict[str, Any]]]:
    """One a line; lines may be empty before the first and after the last, but not between."""
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
            f"Expected one JSON object a line in {source}, found line {line} that is none "
            f"({error}) Mend the line, or leave it out."
        ) from error
    if not isinstance(held, dict):
        raise DataError(
            f"Expected one JSON object a line in {source}, found something else on line {line}. "
            'Write each row as {"column": value, ...} on a line of its own.'
        )
    require_no_nul(source, [*held, *held.values()], f"line {line}")
    return held
