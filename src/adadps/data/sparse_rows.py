"""Sparse rows held in torch tensors: the device-agnostic twin of a scipy CSR matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from adadps.errors import DataError


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

    @property
    def rows(self) -> Tensor:
        """The row number of every stored entry."""
        counts = self.offsets.diff()
        return torch.repeat_interleave(torch.arange(len(self), device=counts.device), counts)

    def take(self, rows: Tensor) -> SparseRows:
        """The given rows, in the given order."""
        starts, counts = self.offsets[rows], self.offsets.diff()[rows]
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

    def row_sums(self, values: Tensor) -> Tensor:
        """Sum per row of one number for each stored entry."""
        return values.new_zeros(len(self)).index_add_(0, self.rows, values)

    def to_dense(self) -> Tensor:
        """The rows as a dense matrix."""
        dense = self.values.new_zeros(len(self), self.width)
        dense[self.rows, self.columns] = self.values
        return dense
