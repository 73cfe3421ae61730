"""Tables from and to CSV, TSV, JSON lines and Parquet files, whole or in chunks.

Text is UTF-8, with or without a byte order mark, plain or gzip. Every row is checked. Errors name
the line: they address the person who runs the training, and must not be stored where others read
them. They never show what is in a row: more people read a message than a private table.
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
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import numpy.typing as npt

from adadps.data.parquet import ParquetWriter, parquet_rows
from adadps.data.table_formats import (
    LONGEST_FIELD,
    SEPARATORS,
    Format,
    as_text,
    delimited_rows,
    explained,
    format_of,
    is_gzipped,
    json_rows,
    looks_like_parquet,
    separator_hint,
    text_in,
)
from adadps.data.users import MISSING, user_key
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
"""A chunk ends early if its rows are long."""
_LISTED = 20
_NAME_ONE, _CORRECT = "Name one of them.", "Fill it in, or remove the line."
_FILL = "Fill it in, remove the line, or take it as empty: --missing fill."


@dataclass(frozen=True)
class Table:
    """Rows of a file under its header, all or a chunk of them. Its ``repr`` shows no content.

    ``lines`` has the line of the file at which each row begins (for Parquet, the number of the
    row), and ``column_types`` the types of the columns if the file has them.
    """

    source: Path
    header: tuple[str, ...]
    rows: list[list[Any]] = field(repr=False)
    lines: list[int] = field(repr=False)
    counted_in: str = "line"
    column_types: Any = field(default=None, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.rows)

    def where(self, row: int) -> str:
        """Return the place of a row in the file, for messages."""
        return f"{self.counted_in} {self.lines[row]}"

    def place(self, name: str) -> int:
        """Return the number of a column; if it does not exist, suggest the nearest name."""
        if name in self.header:
            return self.header.index(name)
        names = ", ".join(self.header[:_LISTED])
        more = ", ..." if len(self.header) > _LISTED else ""
        raise DataError(
            f"Expected a column '{name}' in {self.source}, found the columns {names}{more}. "
            f"{separator_hint(self.header).strip() or nearest(name, self.header) or _NAME_ONE}"
        )

    def values(self, name: str) -> list[Any]:
        """Return all values of one column as they are in the file."""
        place = self.place(name)
        return [row[place] for row in self.rows]

    def texts(self, name: str) -> list[str]:
        """Return all values of one column as texts; a missing one is ''."""
        found = self.values(name)
        for row, value in enumerate(found):
            if isinstance(value, list | dict | tuple):
                raise DataError(
                    f"Expected single values in column '{name}' of {self.source}, found a list or "
                    f"an object on {self.where(row)}. Write it as text."
                )
        return [as_text(value) for value in found]

    def column(self, name: str, *, cure: str = _CORRECT) -> list[str]:
        """Return all values of one column as texts; none may be missing."""
        values = self.texts(name)
        for row, value in enumerate(values):
            if not value.strip():
                raise DataError(
                    f"Expected a value in column '{name}' of {self.source} on every line, found "
                    f"none on {self.where(row)}. {cure}"
                )
        return values


def is_missing(value: Any) -> bool:
    """Return whether a cell holds no number. Training and prediction share this rule.

    >>> [is_missing(value) for value in (None, " ", "NA", float("nan"), 0, "inf", "x")]
    [True, True, True, True, False, False, False]
    """
    if isinstance(value, str):
        return not value.strip() or value.strip().lower() in MISSING
    return value is None or (isinstance(value, float) and math.isnan(value))


def numbers(table: Table, name: str, filling: float | None = None) -> npt.NDArray[np.float64]:
    """Return a column of finite numbers; missing ones become ``filling`` or are refused."""
    found = np.empty(len(table))
    for row, value in enumerate(table.values(name)):
        number = _number(value, filling)
        if not math.isfinite(number):
            fill = ", or fill what is missing: --missing fill" if filling is None else ""
            cure = f"Correct it or leave the line out{fill if is_missing(value) else ''}."
            raise DataError(
                f"Expected a finite number in column '{name}' of {table.source}, found "
                f"{'none' if is_missing(value) else 'something else'} on {table.where(row)}. {cure}"
            )
        found[row] = number
    return found


def _number(value: Any, filling: float | None) -> float:
    if is_missing(value):
        return math.nan if filling is None else filling
    if not isinstance(value, str | int | float | Decimal):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan


def texts(table: Table, name: str, *, fill_missing: bool) -> list[str]:
    """Return a column of texts or levels; empty cells become '' or are refused."""
    return table.texts(name) if fill_missing else table.column(name, cure=_FILL)


def joined_texts(table: Table, names: Sequence[str]) -> list[str]:
    """Return the texts of each row as one, by which a text is recognised in another table."""
    columns = [texts(table, name, fill_missing=True) for name in names]
    return ["\n".join(parts) for parts in zip(*columns, strict=True)]


def labels(table: Table, column: str, separator: str | None) -> list[list[str]]:
    """Return the labels of each row: one, or several between separators."""
    cells = table.column(column)
    if separator is None:
        return [[cell] for cell in cells]
    split = [
        list(dict.fromkeys(part.strip() for part in cell.split(separator) if part.strip()))
        for cell in cells
    ]
    for row, found in enumerate(split):
        if not found:
            raise DataError(
                f"Expected at least one label in column '{column}' of {table.source}, found "
                f"only separators on {table.where(row)}. Correct it, or leave the line out."
            )
    return split


def users(table: Table, column: str) -> list[str]:
    """Return the user of each row; rows without one would all be protected as a single user."""
    keys = []
    for row, cell in enumerate(table.column(column)):
        key = user_key(cell)
        if key is None:
            raise DataError(
                f"Expected a user in column '{column}' of {table.source} on every line, found a "
                f"missing value on {table.where(row)}. Leave the line out, or give it a user of "
                "its own: several people under one name would be protected as one."
            )
        keys.append(key)
    return keys


def read_table(path: str | Path) -> Table:
    """Read a whole table; the format follows from the name, CSV by default.

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
    """Read a table in chunks of at most ``rows_at_once`` rows; refuse a table without rows.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "fruit.jsonl"
    >>> _ = file.write_text('{"name": "apple"}\\n{"name": "pear"}\\n{"name": "fig"}\\n')
    >>> [chunk.column("name") for chunk in read_chunks(file, rows_at_once=2)]
    [['apple', 'pear'], ['fig']]
    """
    source, some = Path(path), False
    with (
        explained(source),
        _opened(source, rows_at_once) as (header, rows, counted_in, column_types),
    ):
        while taken := list(islice(_up_to_a_size(rows), rows_at_once)):
            some = True
            lines = [line for line, _ in taken]
            yield Table(source, header, [row for _, row in taken], lines, counted_in, column_types)
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
        with parquet_rows(source, rows_at_once) as (header, rows, column_types):
            yield header, rows, "row", column_types
        return
    with text_in(source) as text:
        if kind is Format.JSON_LINES:
            yield *json_rows(source, text), "line", None
        else:
            yield *delimited_rows(source, text, SEPARATORS[kind]), "line", None


def _up_to_a_size(rows: Iterator[tuple[int, list[Any]]]) -> Iterator[tuple[int, list[Any]]]:
    """Yield rows until their texts together are long enough for a chunk."""
    size = 0
    for row in rows:
        yield row
        size += sum(len(value) for value in row[1] if isinstance(value, str))
        if size >= CHARACTERS_AT_ONCE:
            return


def nearest(name: str, names: Sequence[str]) -> str:
    """Return "Did you mean ...?" for the most similar of ``names``; empty if none is similar.

    >>> nearest("Strs", ["title", "stars"]), nearest("x", ["title"])
    ("Did you mean 'stars'?", '')
    """
    by_lower = {one.lower().strip(): one for one in names}
    found = difflib.get_close_matches(name.lower().strip(), by_lower, n=1)
    return f"Did you mean '{by_lower[found[0]]}'?" if found else ""


class Writer(Protocol):
    """Writes rows, batch by batch."""

    def write(self, rows: Sequence[Sequence[Any]]) -> None:
        """Write these rows."""


@contextmanager
def table_writer(
    stream: BinaryIO,
    path: Path,
    header: Sequence[str],
    column_types: Any = None,
    numbers: Collection[str] = (),
) -> Iterator[Writer]:
    """Give a writer of rows under ``header``, in the format that the name ``path`` implies.

    Parquet needs the types of columns: ``column_types`` has those of a table that was read,
    ``numbers`` names columns of numbers, and all others are texts.

    >>> stream = io.BytesIO()
    >>> with table_writer(stream, Path("fruit.jsonl"), ["name", "count"]) as writer:
    ...     writer.write([["apple", 3]])
    >>> stream.getvalue()
    b'{"name": "apple", "count": 3}\\n'
    """
    kind = format_of(path)
    if kind is Format.PARQUET:
        held = ParquetWriter(stream, header, column_types, numbers)
        try:
            yield held
        finally:
            held.close()
        return
    packed = is_gzipped(path)
    content: BinaryIO = gzip.GzipFile(fileobj=stream, mode="wb") if packed else stream  # type: ignore[assignment]
    text = io.TextIOWrapper(content, encoding="utf-8", newline="")
    try:
        yield (
            _JsonLines(text, header)
            if kind is Format.JSON_LINES
            else _Delimited(text, header, SEPARATORS[kind])
        )
        text.flush()
    finally:
        text.detach()
    if packed:
        content.close()


def write_table(stream: BinaryIO, path: Path, rows: Iterable[Sequence[Any]]) -> None:
    """Write rows, the header first, in the format that the name ``path`` implies.

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
    """JSON has no NaN: it becomes null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
