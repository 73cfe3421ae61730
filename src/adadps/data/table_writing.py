"""Tables into files, in the form that their names promise."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from adadps.data.parquet import ParquetWriter
from adadps.data.table_files import Format, as_text, format_of, is_packed


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
