"""Rows of JSON lines: one object a line, with the columns of the first."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from adadps.data.table_files import empty_line, lines_of, require_no_nul
from adadps.errors import DataError
from adadps.files.strict_json import parse_json


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
