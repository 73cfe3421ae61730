"""Rows of Parquet files, read and written by pyarrow, an optional package."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from adadps.data.table_formats import as_text, checked_header, require_no_nul
from adadps.errors import DataError


@contextmanager
def parquet_rows(
    source: Path, rows_at_once: int
) -> Iterator[tuple[tuple[str, ...], Iterator[tuple[int, list[Any]]], Any]]:
    """Give the header, rows with their numbers (from 1), and the column_types of the columns."""
    arrow, parquet = _pyarrow()
    with _explained(source, arrow), parquet.ParquetFile(source, pre_buffer=False) as file:
        column_types = file.schema_arrow
        header = checked_header(source, column_types.names)
        yield header, _rows(source, file, rows_at_once, arrow), column_types


def _rows(
    source: Path, file: Any, rows_at_once: int, arrow: Any
) -> Iterator[tuple[int, list[Any]]]:
    number = 0
    with _explained(source, arrow):
        for batch in file.iter_batches(batch_size=rows_at_once):
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                number += 1
                require_no_nul(source, row, f"row {number}")
                yield number, list(row)


class ParquetWriter:
    """Writes rows as they come; columns without a declared type are texts."""

    def __init__(
        self, stream: Any, header: Sequence[str], column_types: Any, numbers: Collection[str]
    ) -> None:
        self._arrow, parquet = _pyarrow()
        declared = (
            {} if column_types is None else {field.name: field.type for field in column_types}
        )
        declared |= {name: self._arrow.float64() for name in numbers}
        self._texts = [name not in declared for name in header]
        text = self._arrow.string()
        self._schema = self._arrow.schema([(name, declared.get(name, text)) for name in header])
        self._writer = parquet.ParquetWriter(stream, self._schema)

    def write(self, rows: Sequence[Sequence[Any]]) -> None:
        """Write one group of rows."""
        columns = [
            self._arrow.array([_cell(row[place], text) for row in rows], type=field.type)
            for place, (field, text) in enumerate(zip(self._schema, self._texts, strict=True))
        ]
        self._writer.write_table(self._arrow.Table.from_arrays(columns, schema=self._schema))

    def close(self) -> None:
        """Write the end of the file."""
        self._writer.close()


def _cell(value: Any, is_text: bool) -> Any:
    return as_text(value) if is_text and value is not None else value


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise DataError(
            "Expected the package pyarrow for Parquet files, found that it is not installed. "
            "Install it: pip install 'adadps[parquet]'."
        ) from error
    return pyarrow, parquet


@contextmanager
def _explained(source: Path, arrow: Any) -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except UnicodeDecodeError as error:
        raise DataError(
            f"Expected text in UTF-8 in {source}, found other bytes. Write the file again."
        ) from error
    except (arrow.ArrowException, KeyError, TypeError, OverflowError, OSError) as error:
        if getattr(error, "errno", None) is not None:  # an error of the system, not of the content
            raise
        reason = " ".join(str(error).split())
        raise DataError(
            f"Expected a whole Parquet file at {source}, found a damaged one, or one that pyarrow "
            f"cannot read ({reason}). Write it again."
        ) from error
