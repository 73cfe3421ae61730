"""Rows of a table that each unit has changed, side by side: large tables, few rows a unit."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from adadps.gradients.affine import LeafMap
from adadps.gradients.rounding import DOUBLE
from adadps.gradients.sparse import shifted_rows
from adadps.row_sparse import RowSparse, rows_of


@dataclass(frozen=True)
class OwnedRows:
    """Unit ``owners[r]`` has ``values[r]`` at row ``words[r]`` of a table, and zero elsewhere.

    A unit has a word at most once; words lie along ``axis`` of the table of this ``shape``.
    """

    owners: Tensor
    words: Tensor
    values: Tensor
    count: int
    shape: tuple[int, ...]
    axis: int

    def squares(self, leaf_map: LeafMap) -> Tensor:
        """‖D ∘ g_u + M‖² for every unit."""
        rows = self.values.double()
        for factor in leaf_map.factors:
            rows = rows * rows_of(factor, self.words, self.axis)
        squares = rows.new_zeros(self.count)
        if leaf_map.offset is not None:
            offset = leaf_map.offset.movedim(self.axis, 0)
            return shifted_rows(squares, self.owners, rows, offset, self.words)
        squares.index_add_(0, self.owners, rows.square().flatten(1).sum(1))
        return squares * (1 + DOUBLE * (len(rows) + rows.shape[1:].numel() + 16))

    def weighted(self, weights: Tensor) -> RowSparse:
        """Σ_u w_u g_u on the rows that any unit has."""
        found, place = torch.unique(self.words, return_inverse=True)
        shares = weights.double()[self.owners].view(-1, *[1] * (self.values.ndim - 1))
        total = shares.new_zeros(len(found), *self.values.shape[1:])
        total.index_add_(0, place, self.values.double() * shares)
        return RowSparse(found, total, self.shape, self.axis)

    def take(self, rows: Tensor) -> OwnedRows:
        """Some of the units."""
        place = torch.full((self.count,), -1, device=self.owners.device)
        place[rows] = torch.arange(len(rows), device=self.owners.device)
        owners = place[self.owners]
        kept = owners >= 0
        return OwnedRows(
            owners[kept], self.words[kept], self.values[kept], len(rows), self.shape, self.axis
        )
