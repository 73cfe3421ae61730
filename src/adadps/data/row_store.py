"""Rows on disk while a model is trained, so that memory does not grow with them.

They are written chunk by chunk and then memory-mapped. No text is written, but features reveal
nearly as much: the files are as private as the table. So they have no name: they are created in a
folder of your choice, cannot be opened by anyone else, and disappear with the process, however it
ends.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from torch import Tensor

from adadps.data.examples import Examples
from adadps.data.identity import Identities
from adadps.data.sparse_rows import SparseRows
from adadps.errors import DataError


class RowStore:
    """Sparse rows of one width, their targets, and the numbers of their users, if given.

    >>> with RowStore(None, width=2) as store:
    ...     store.append(sparse.csr_matrix([[0.5, 0.0]]), np.array([1]))
    ...     store.append(sparse.csr_matrix([[0.0, 0.25]]), np.array([0]))
    ...     held = store.examples()
    >>> held.features.to_dense(), held.targets
    (tensor([[0.5000, 0.0000],
            [0.0000, 0.2500]]), tensor([1, 0]))
    """

    def __init__(self, folder: Path | None, *, width: int) -> None:
        self._folder, self._width = folder, width
        self._files: dict[str, _Column] = {}
        self._entries = 0

    def __enter__(self) -> Self:
        self._add("offsets", np.zeros(1, np.int64))
        return self

    def __exit__(self, *_error: object) -> None:
        for column in self._files.values():
            column.file.close()

    def __len__(self) -> int:
        return self._files["offsets"].length - 1

    def append(
        self,
        features: sparse.csr_matrix,
        targets: npt.NDArray[Any],
        users: npt.NDArray[np.int64] | None = None,
    ) -> None:
        """Write a chunk; ``users`` has one integer per row, in all chunks or in none."""
        rows = features.shape[0]
        fits = features.shape[1] == self._width and len(targets) == rows
        fits = fits and (users is None or len(users) == rows)
        if not fits or ((users is None) == ("users" in self._files) and len(self) > 0):
            raise DataError(
                f"Expected {rows} rows of {self._width} features with a target each, and users in "
                "all chunks or in none, found others. Make all chunks in the same way."
            )
        self._add("offsets", features.indptr[1:].astype(np.int64) + self._entries)
        self._add("columns", features.indices.astype(np.int64))
        self._add("values", features.data.astype(np.float32))
        self._add("targets", targets)
        if users is not None:
            self._add("users", users.astype(np.int64))
        self._entries += features.nnz

    def examples(self, texts: Identities | None = None) -> Examples:
        """Return all rows, mapped into memory as they are read."""
        rows = SparseRows(
            self._mapped("offsets"), self._mapped("columns"), self._mapped("values"), self._width
        )
        rows.require_consistent()
        return Examples(rows, self._mapped("targets"), texts, self._users)

    @property
    def _users(self) -> Tensor | None:
        """One number per row, if users were given."""
        return self._mapped("users") if "users" in self._files else None

    def _add(self, name: str, values: npt.NDArray[Any]) -> None:
        with self._explained():
            if name not in self._files:
                self._files[name] = _Column(self._folder, values.dtype, values.shape[1:])
            self._files[name].append(values)

    def _mapped(self, name: str) -> Tensor:
        with self._explained():
            return self._files[name].mapped()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            place = self._folder or tempfile.gettempdir()
            raise DataError(
                f"Expected room for the rows of the table in {place}, found: {error}. Choose "
                "another folder by --store."
            ) from error


class _Column:
    """One array in a file without a name."""

    def __init__(self, folder: Path | None, dtype: Any, shape: tuple[int, ...]) -> None:
        self.file: IO[bytes] = tempfile.TemporaryFile(dir=folder, prefix=".adadps-rows-")  # noqa: SIM115
        self._dtype, self._shape, self.length = dtype, shape, 0

    def append(self, values: npt.NDArray[Any]) -> None:
        self.file.write(np.ascontiguousarray(values, self._dtype).data)
        self.length += len(values)

    def mapped(self) -> Tensor:
        self.file.flush()
        shape = (self.length, *self._shape)
        if 0 in shape:  # an empty array cannot be mapped
            return torch.from_numpy(np.zeros(shape, self._dtype))
        held = np.memmap(self.file, dtype=self._dtype, mode="c", shape=shape)
        return torch.from_numpy(np.asarray(held))
