"""Tables of texts from CSV and TSV files, checked line by line.

UTF-8, with or without a byte order mark, plain or gzip. Errors name the line: they speak to the
person who runs the training, and must not be stored where others read them.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from adadps.errors import DataError

LONGEST_FIELD = 2**27
"""In characters; csv's own limit is 2**17, which a long document reaches."""
GZIP = b"\x1f\x8b"
_LISTED = 20


@dataclass(frozen=True)
class Table:
    """Rows of a file under its header. Its text shows nothing of its content.

    ``lines`` has the line of the file at which each row begins.
    """

    source: Path
    header: tuple[str, ...]
    rows: list[list[str]] = field(repr=False)
    lines: list[int] = field(repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> list[str]:
        """All values of one column; none may be missing."""
        if name not in self.header:
            known = ", ".join(self.header[:_LISTED])
            more = ", ..." if len(self.header) > _LISTED else ""
            raise DataError(
                f"Expected a column '{name}' in {self.source}, found the columns {known}{more}. "
                "Name one of them."
            )
        place = self.header.index(name)
        values = [row[place] for row in self.rows]
        for value, line in zip(values, self.lines, strict=True):
            if not value.strip():
                raise DataError(
                    f"Expected a value in column '{name}' of {self.source} on every line, found "
                    f"none on line {line}. Fill it, or leave the line out."
                )
        return values


def read_table(path: str | Path) -> Table:
    """Read a table whole; names that end in .tsv or .tsv.gz are separated by tabs.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "fruit.csv"
    >>> _ = file.write_text('name,colour\\n"apple, pear",green\\n', encoding="utf-8")
    >>> read_table(file).column("name")
    ['apple, pear']
    """
    source = Path(path)
    with _explained(source), source.open("rb") as raw:
        packed = raw.peek(2)[:2] == GZIP if isinstance(raw, io.BufferedReader) else False
        content: BinaryIO = gzip.GzipFile(fileobj=raw) if packed else raw  # type: ignore[assignment]
        with io.TextIOWrapper(content, encoding="utf-8-sig", newline="") as text:
            return _parse(source, text)


def write_table(stream: BinaryIO, path: Path, rows: Iterable[Sequence[str]]) -> None:
    """Write rows, the header first, in the form that the name ``path`` promises.

    >>> stream = io.BytesIO()
    >>> write_table(stream, Path("fruit.tsv"), [["name", "colour"], ["apple", "green"]])
    >>> stream.getvalue()
    b'name\\tcolour\\napple\\tgreen\\n'
    """
    packed = path.suffix.lower() == ".gz"
    content: BinaryIO = gzip.GzipFile(fileobj=stream, mode="wb") if packed else stream  # type: ignore[assignment]
    text = io.TextIOWrapper(content, encoding="utf-8", newline="")
    csv.writer(text, delimiter=_separator(path), lineterminator="\n").writerows(rows)
    text.flush()
    text.detach()
    if packed:
        content.close()


def _separator(path: Path) -> str:
    endings = [ending.lower() for ending in path.suffixes[-2:]]
    return "\t" if ".tsv" in (endings[-1:] if endings[-1:] != [".gz"] else endings[:-1]) else ","


def _parse(source: Path, text: io.TextIOWrapper) -> Table:
    with _long_fields():
        reader = csv.reader(text, delimiter=_separator(source), strict=True)
        try:
            return _read_rows(source, reader)
        except csv.Error as error:
            raise DataError(
                f"Expected a table in {source}, found a line {reader.line_num} that is not part of "
                f"one ({error}). Quote fields with a quote, a line break or a separator in them."
            ) from error
        except UnicodeDecodeError as error:
            raise DataError(
                f"Expected text in UTF-8 in {source}, found other bytes after line "
                f"{reader.line_num}. Save the file as UTF-8."
            ) from error


def _read_rows(source: Path, reader: Iterator[list[str]]) -> Table:
    header: tuple[str, ...] | None = None
    rows: list[list[str]] = []
    lines: list[int] = []
    for line, row in _numbered(reader):
        if any("\0" in value for value in row):
            raise DataError(
                f"Expected text in {source}, found a NUL byte on line {line}. Save the file as "
                "UTF-8 text, or leave the line out."
            )
        if header is None:
            header = _checked_header(source, row)
        elif len(row) != len(header):
            raise DataError(
                f"Expected {len(header)} fields on every line of {source}, found {len(row)} on "
                f"line {line}. Quote fields with a separator or a line break in them."
            )
        else:
            rows.append(row)
            lines.append(line)
    if header is None:
        raise DataError(
            f"Expected a table with a header in {source}, found an empty file. Check the path."
        )
    if not rows:
        raise DataError(
            f"Expected at least one row in {source}, found only a header. Check the file."
        )
    return Table(source, header, rows, lines)


def _numbered(reader: Iterator[list[str]]) -> Iterator[tuple[int, list[str]]]:
    """Rows with the line at which they begin; empty lines are skipped."""
    begin = 1
    for row in reader:
        if row:
            yield begin, row
        begin = reader.line_num + 1  # type: ignore[attr-defined]


def _checked_header(source: Path, row: list[str]) -> tuple[str, ...]:
    seen: set[str] = set()
    for name in row:
        if name in seen:
            raise DataError(
                f"Expected different names in the header of {source}, found '{name}' more than "
                "once. Rename the columns."
            )
        seen.add(name)
    return tuple(row)


@contextmanager
def _long_fields() -> Iterator[None]:
    """Raise the limit of the csv module while a table is read; it is one for the whole process."""
    before = csv.field_size_limit(LONGEST_FIELD)
    try:
        yield
    finally:
        csv.field_size_limit(before)


@contextmanager
def _explained(source: Path) -> Iterator[None]:
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
