"""Sparse rows held in torch tensors: the device-agnostic twin of a scipy CSR matrix."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from torch.nn import functional

from adadps.errors import DataError


@dataclass(frozen=True)
class Columns:
    """Column ``columns[j]`` holds ``values[offsets[j]:offsets[j+1]]`` at those ``rows``."""

    columns: Tensor
    offsets: Tensor
    rows: Tensor
    values: Tensor
    height: int

    def times(self, matrix: Tensor) -> Tensor:
        """Xᵀ matrix, for the columns that are here."""
        shape = (len(self.columns), self.height)
        values = self.values.to(matrix.dtype)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
            transposed = torch.sparse_csr_tensor(
                self.offsets, self.rows, values, shape, check_invariants=False
            )
        product: Tensor = transposed @ matrix
        return product


@dataclass(frozen=True)
class SparseRows:
    """Row i holds ``values[offsets[i]:offsets[i+1]]`` at ``columns[offsets[i]:offsets[i+1]]``.

    A column occurs at most once in a row: repeated entries were added up, so that squares of
    entries are squares of what the model sees.
    """

    offsets: Tensor
    columns: Tensor
    values: Tensor
    width: int

    @classmethod
    def from_scipy(cls, matrix: Any) -> SparseRows:
        """Copy a scipy sparse matrix; repeated entries are added up."""
        csr = sparse.csr_matrix(matrix, dtype=np.float64, copy=True)
        csr.sum_duplicates()
        return cls(
            torch.from_numpy(csr.indptr.astype(np.int64)),
            torch.from_numpy(csr.indices.astype(np.int64)),
            torch.from_numpy(csr.data).float(),
            int(csr.shape[1]),
        )

    @classmethod
    def from_torch(cls, matrix: Tensor) -> SparseRows:
        """Copy a torch sparse tensor of two dimensions."""
        if matrix.ndim != 2:
            raise DataError(
                f"Expected sparse features as a matrix, found shape {tuple(matrix.shape)}. "
                "Give one row an example."
            )
        coo = matrix.to_sparse(layout=torch.sparse_coo).coalesce().cpu()
        rows, columns = coo.indices().numpy()
        entries = (coo.values().numpy(), (rows, columns))
        return cls.from_scipy(sparse.coo_matrix(entries, shape=tuple(coo.shape)))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def rows(self) -> Tensor:
        """The row number of every stored entry."""
        counts = self.offsets.diff()
        return torch.repeat_interleave(torch.arange(len(self), device=counts.device), counts)

    @cached_property
    def by_column(self) -> Columns:
        """The same entries, column after column, without the columns that have none."""
        order = _stable_order(self.columns)
        columns, counts = torch.unique_consecutive(self.columns[order], return_counts=True)
        offsets = torch.zeros(len(columns) + 1, dtype=torch.int64, device=columns.device)
        torch.cumsum(counts, 0, out=offsets[1:])
        return Columns(columns, offsets, self.rows[order], self.values[order], len(self))

    def take(self, rows: Tensor) -> SparseRows:
        """The given rows, in the given order."""
        starts = self.offsets[rows]
        counts = self.offsets[rows + 1] - starts
        offsets = torch.zeros(len(rows) + 1, dtype=torch.int64, device=rows.device)
        torch.cumsum(counts, 0, out=offsets[1:])
        entries = torch.arange(int(offsets[-1]), device=rows.device)
        entries += torch.repeat_interleave(starts - offsets[:-1], counts)
        return SparseRows(offsets, self.columns[entries], self.values[entries], self.width)

    def to(self, device: torch.device) -> SparseRows:
        """The same rows on another device."""
        return SparseRows(
            self.offsets.to(device), self.columns.to(device), self.values.to(device), self.width
        )

    def with_values(self, values: Tensor) -> SparseRows:
        """The same pattern with other values."""
        return SparseRows(self.offsets, self.columns, values, self.width)

    def map_values(self, function: Callable[[Tensor], Tensor]) -> SparseRows:
        """The same pattern with ``function`` of the values."""
        return self.with_values(function(self.values))

    def times(self, table: Tensor) -> Tensor:
        """Σ_k x_ik table_k for each row x_i; ``table`` has one contiguous row a column."""
        return functional.embedding_bag(
            self.columns,
            table,
            self.offsets,
            per_sample_weights=self.values.to(table.dtype),
            mode="sum",
            include_last_offset=True,
        )

    def row_sums(self, values: Tensor) -> Tensor:
        """Sum per row of one number for each stored entry."""
        return values.new_zeros(len(self)).index_add_(0, self.rows, values)

    def row_largest(self) -> Tensor:
        """Largest absolute value of each row; 0 for a row without entries."""
        largest = self.values.new_zeros(len(self))
        return largest.scatter_reduce_(0, self.rows, self.values.abs(), "amax")

    def to_dense(self) -> Tensor:
        """The rows as a dense matrix."""
        dense = self.values.new_zeros(len(self), self.width)
        dense[self.rows, self.columns] = self.values
        return dense


def _stable_order(keys: Tensor) -> Tensor:
    """The order that sorts ``keys``; NumPy's sort is several times faster where it can be used."""
    if keys.device.type == "cpu":
        return torch.from_numpy(np.argsort(keys.numpy(), kind="stable"))
    return torch.argsort(keys, stable=True)
