"""Tables from CSV, TSV, JSON lines and Parquet files, checked row by row, whole or in chunks.

UTF-8, with or without a byte order mark, plain or gzip. Errors name the line: they speak to the
person who runs the training, and must not be stored where others read them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from adadps.data.delimited import LONGEST_FIELD, delimited_rows
from adadps.data.json_lines import json_rows
from adadps.data.parquet import parquet_rows
from adadps.data.table_files import (
    Format,
    as_text,
    explained,
    format_of,
    looks_like_parquet,
    text_in,
)
from adadps.data.table_writing import table_writer, write_table
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
