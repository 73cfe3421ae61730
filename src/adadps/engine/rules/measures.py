"""Squares of rows, for compiled loops where the rows lie in main memory and for torch elsewhere."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from adadps.tensors.kernels import dense as compiled
from adadps.tensors.row_sparse import in_main_memory

_NOTHING = np.empty(0)


def sums_of_squares(rows: Tensor, factors: Tensor | None) -> Tensor:
    """Σ_j (f_j x_ij)² in float64 for every row of a matrix; ``factors`` has shape (1, columns)."""
    if not in_main_memory(rows):
        scaled = rows.double() if factors is None else rows.double() * factors
        return scaled.square().sum(1)
    found = torch.empty(len(rows), dtype=torch.float64)
    compiled.sums_of_squares(rows.detach().numpy(), _line(factors, rows), found.numpy())
    return found


def unit_squares(rows: Tensor, factors: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Squares of scaled rows that are divided by their largest entry, and that entry."""
    if in_main_memory(rows):
        squares, sizes = torch.empty(rows.shape, dtype=dtype), torch.empty(len(rows)).double()
        compiled.unit_squares(
            rows.detach().numpy(), _line(factors, rows), sizes.numpy(), squares.numpy()
        )
        return squares, sizes
    scaled = rows.double() if factors is None else rows.double() * factors
    size = scaled.abs().amax(1) if rows.shape[1] else scaled.new_zeros(len(rows))
    scale = size.clamp_min(torch.finfo(torch.float64).tiny).unsqueeze(1)
    return (scaled / scale).square().to(dtype), size


def inner_products(one: Tensor, other: Tensor) -> Tensor:
    """Σ_j one_ij other_ij in float64."""
    if not (in_main_memory(one) and in_main_memory(other)):
        return (one.double() * other).sum(1)
    found = torch.empty(len(one), dtype=torch.float64)
    compiled.inner_products(one.detach().numpy(), other.detach().numpy(), found.numpy())
    return found


def _line(factors: Tensor | None, rows: Tensor) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    if factors is None:
        return _NOTHING
    wide = factors.detach().double().expand(1, rows.shape[1])
    return np.ascontiguousarray(wide.view(-1).numpy() if wide.is_contiguous() else wide[0].numpy())
