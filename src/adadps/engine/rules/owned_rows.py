"""Rows of a table that each unit has changed, side by side: large tables, few rows a unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from adadps.engine.rules.affine import LeafMap
from adadps.engine.rules.rounding import DOUBLE
from adadps.engine.rules.sparse import shifted_rows
from adadps.tensors.row_sparse import RowSparse, rows_of


@dataclass(frozen=True)
class OwnedRows:
    """One `RowSparse` a unit, of the same table; a unit has a row at most once."""

    parts: Sequence[RowSparse]

    def squares(self, leaf_map: LeafMap) -> Tensor:
        """‖D ∘ g_u + M‖² for every unit."""
        return torch.stack([_square(part, leaf_map) for part in self.parts])

    def weighted(self, weights: Tensor) -> RowSparse:
        """Σ_u w_u g_u on the rows that any unit has."""
        first = self.parts[0]
        rows, place = torch.unique(
            torch.cat([part.rows for part in self.parts]), return_inverse=True
        )
        total = first.values.new_zeros(len(rows), *first.values.shape[1:], dtype=torch.float64)
        places = torch.split(place, [len(part.rows) for part in self.parts])
        for part, where, weight in zip(self.parts, places, weights.tolist(), strict=True):
            total.index_add_(0, where, part.values.double(), alpha=weight)
        return RowSparse(rows, total, first.shape, first.axis)

    def take(self, rows: Tensor) -> OwnedRows:
        """Some of the units."""
        return OwnedRows([self.parts[unit] for unit in rows.tolist()])


def _square(part: RowSparse, leaf_map: LeafMap) -> Tensor:
    values = part.values
    if leaf_map.factors or leaf_map.offset is not None:
        values = values.double()
    for factor in leaf_map.factors:
        values = values * rows_of(factor, part.rows, part.axis)
    if leaf_map.offset is not None:
        nobody = torch.zeros_like(part.rows)
        offset = leaf_map.offset.movedim(part.axis, 0)
        return shifted_rows(values.new_zeros(1), nobody, values, offset, part.rows)[0]
    size: Tensor = torch.linalg.vector_norm(values, dtype=torch.float64)
    return size.square() * (1 + DOUBLE * (values.numel() + 16))
