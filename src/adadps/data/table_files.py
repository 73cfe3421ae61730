"""Which kind of table a file holds, and how it is opened: what all readers share."""

from __future__ import annotations

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
