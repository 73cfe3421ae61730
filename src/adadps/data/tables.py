"""Tables from CSV, TSV, JSON lines and Parquet files, checked row by row, whole or in chunks.

UTF-8, with or without a byte order mark, plain or gzip. Errors name the line: they speak to the
person who runs the training, and must not be stored where others read them.
"""

from __future__ import annotations

import csv
import difflib
import gzip
import io
import json
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from adadps.data.parquet import ParquetWriter, parquet_rows
from adadps.data.table_formats import (
    LONGEST_FIELD,
    Format,
    as_text,
    delimited_rows,
    explained,
    format_of,
    is_packed,
    json_rows,
    looks_like_parquet,
    text_in,
)
from adadps.errors import DataError

__all__ = [
    "LONGEST_FIELD",
    "Table",
    "nearest",
    "read_chunks",
    "read_table",
    "table_writer",
    "write_table",
]

ROWS_AT_ONCE = 4096
CHARACTERS_AT_ONCE = 2**24
"""A chunk ends earlier where its rows are long."""
_LISTED = 20


@dataclass(frozen=True)
class Table:
    """Rows of a file under its header, all or a chunk of them. Its text shows no content.

    ``lines`` has the line of the file at which each row begins (of Parquet: the number of the
    row), and ``kinds`` the types of the columns where the file has them.
    """

    source: Path
    header: tuple[str, ...]
    rows: list[list[Any]] = field(repr=False)
    lines: list[int] = field(repr=False)
    counted_in: str = "line"
    kinds: Any = field(default=None, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.rows)

    def where(self, row: int) -> str:
        """Where a row stands, for messages."""
        return f"{self.counted_in} {self.lines[row]}"

    def place(self, name: str) -> int:
        """The number of a column; if there is none of that name, the nearest is suggested."""
        if name in self.header:
            return self.header.index(name)
        known = ", ".join(self.header[:_LISTED])
        more = ", ..." if len(self.header) > _LISTED else ""
        raise DataError(
            f"Expected a column '{name}' in {self.source}, found the columns {known}{more}. "
            f"{nearest(name, self.header) or 'Name one of them.'}"
        )

    def values(self, name: str) -> list[Any]:
        """All values of one column as they are in the file."""
        place = self.place(name)
        return [row[place] for row in self.rows]

    def texts(self, name: str) -> list[str]:
        """All values of one column as texts; a missing one is ''."""
        found = self.values(name)
        for row, value in enumerate(found):
            if isinstance(value, list | dict | tuple):
                raise DataError(
                    f"Expected single values in column '{name}' of {self.source}, found a list or "
                    f"an object on {self.where(row)}. Write it as text."
                )
        return [as_text(value) for value in found]

    def column(self, name: str) -> list[str]:
        """All values of one column as texts; none may be missing."""
        values = self.texts(name)
        for row, value in enumerate(values):
            if not value.strip():
                raise DataError(
                    f"Expected a value in column '{name}' of {self.source} on every line, found "
                    f"none on {self.where(row)}. Fill it, or leave the line out."
                )
        return values


def read_table(path: str | Path) -> Table:
    """Read a table whole; the format follows from the name, CSV if it says nothing.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "fruit.csv"
    >>> _ = file.write_text('name,colour\\n"apple, pear",green\\n', encoding="utf-8")
    >>> read_table(file).column("name")
    ['apple, pear']
    """
    chunks = read_chunks(path)
    whole = next(chunks)
    with explained(whole.source):
        for chunk in chunks:
            whole.rows.extend(chunk.rows)
            whole.lines.extend(chunk.lines)
    return whole


def read_chunks(path: str | Path, rows_at_once: int = ROWS_AT_ONCE) -> Iterator[Table]:
    """Read a table in chunks of at most so many rows; there is at least one chunk, and one row.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "fruit.jsonl"
    >>> _ = file.write_text('{"name": "apple"}\\n{"name": "pear"}\\n{"name": "fig"}\\n')
    >>> [chunk.column("name") for chunk in read_chunks(file, rows_at_once=2)]
    [['apple', 'pear'], ['fig']]
    """
    source, some = Path(path), False
    with explained(source), _opened(source, rows_at_once) as (header, rows, counted_in, kinds):
        while taken := list(islice(_up_to_a_size(rows), rows_at_once)):
            some = True
            lines = [line for line, _ in taken]
            yield Table(source, header, [row for _, row in taken], lines, counted_in, kinds)
    if not some:
        raise DataError(
            f"Expected at least one row in {source}, found only a header. Check the file."
        )


@contextmanager
def _opened(
    source: Path, rows_at_once: int
) -> Iterator[tuple[tuple[str, ...], Iterator[tuple[int, list[Any]]], str, Any]]:
    kind = format_of(source)
    if looks_like_parquet(source) or kind is Format.PARQUET:
        with parquet_rows(source, rows_at_once) as (header, rows, kinds):
            yield header, rows, "row", kinds
        return
    with text_in(source) as text:
        if kind is Format.JSON_LINES:
            yield *json_rows(source, text), "line", None
        else:
            separator = "\t" if kind is Format.TSV else ","
            yield *delimited_rows(source, text, separator), "line", None


def _up_to_a_size(rows: Iterator[tuple[int, list[Any]]]) -> Iterator[tuple[int, list[Any]]]:
    """Rows until their texts are long enough together."""
    size = 0
    for row in rows:
        yield row
        size += sum(len(value) for value in row[1] if isinstance(value, str))
        if size >= CHARACTERS_AT_ONCE:
            return


def nearest(name: str, known: Sequence[str]) -> str:
    """A question after the name that was meant; empty if none is like it.

    >>> nearest("Strs", ["title", "stars"]), nearest("x", ["title"])
    ("Did you mean 'stars'?", '')
    """
    by_lower = {one.lower().strip(): one for one in known}
    found = difflib.get_close_matches(name.lower().strip(), by_lower, n=1)
    return f"Did you mean '{by_lower[found[0]]}'?" if found else ""


class Writer(Protocol):
    """Takes rows, one batch after the other."""

    def write(self, rows: Sequence[Sequence[Any]]) -> None:
        """Write these rows."""


@contextmanager
def table_writer(
    stream: BinaryIO,
    path: Path,
    header: Sequence[str],
    kinds: Any = None,
    numbers: Collection[str] = (),
) -> Iterator[Writer]:
    """A writer of rows under ``header``.

    Parquet needs the types of columns: ``kinds`` has those of a table that was read, ``numbers``
    names columns of numbers, all others are texts.

    >>> stream = io.BytesIO()
    >>> with table_writer(stream, Path("fruit.jsonl"), ["name", "count"]) as writer:
    ...     writer.write([["apple", 3]])
    >>> stream.getvalue()
    b'{"name": "apple", "count": 3}\\n'
    """
    kind = format_of(path)
    if kind is Format.PARQUET:
        held = ParquetWriter(stream, header, kinds, numbers)
        try:
            yield held
        finally:
            held.close()
        return
    packed = is_packed(path)
    content: BinaryIO = gzip.GzipFile(fileobj=stream, mode="wb") if packed else stream  # type: ignore[assignment]
    text = io.TextIOWrapper(content, encoding="utf-8", newline="")
    try:
        yield (
            _JsonLines(text, header)
            if kind is Format.JSON_LINES
            else _Delimited(text, header, "\t" if kind is Format.TSV else ",")
        )
        text.flush()
    finally:
        text.detach()
    if packed:
        content.close()


def write_table(stream: BinaryIO, path: Path, rows: Iterable[Sequence[Any]]) -> None:
    """Write rows, the header first, in the form that the name ``path`` promises.

    >>> stream = io.BytesIO()
    >>> write_table(stream, Path("fruit.tsv"), [["name", "colour"], ["apple", "green"]])
    >>> stream.getvalue()
    b'name\\tcolour\\napple\\tgreen\\n'
    """
    first, *others = rows
    with table_writer(stream, path, [str(name) for name in first]) as writer:
        writer.write(others)


class _Delimited:
    def __init__(self, text: io.TextIOWrapper, header: Sequence[str], separator: str) -> None:
        self._writer = csv.writer(text, delimiter=separator, lineterminator="\n")
        self._writer.writerow(header)

    def write(self, rows: Sequence[Sequence[Any]]) -> None:
        self._writer.writerows([as_text(value) for value in row] for row in rows)


class _JsonLines:
    def __init__(self, text: io.TextIOWrapper, header: Sequence[str]) -> None:
        self._text, self._header = text, header

    def write(self, rows: Sequence[Sequence[Any]]) -> None:
        for row in rows:
            held = dict(zip(self._header, map(_finite, row), strict=True))
            self._text.write(json.dumps(held, ensure_ascii=False, default=as_text) + "\n")


def _finite(value: Any) -> Any:
    """JSON has no NaN: it is missing."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
