"""Sparse rows in torch tensors, on any device, and the linear layer that reads them.

`SparseRows` is the counterpart of a scipy CSR matrix. The weights of `sparse_linear` are stored
feature by feature in memory, so that those of a word are one contiguous row.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from torch import Tensor, nn
from torch.nn import functional

from adadps.data.provenance import DeclaredRead, declared_read
from adadps.errors import DataError
from adadps.tensors import kernels as compiled
from adadps.tensors.loops import in_main_memory, run_in_parts


@dataclass(frozen=True)
class SparseColumns:
    """Column ``columns[j]`` holds ``values[offsets[j]:offsets[j+1]]`` at those ``rows``.

    ``places`` has the j of every entry, in the original order of entries.
    """

    columns: Tensor
    offsets: Tensor
    rows: Tensor
    values: Tensor
    height: int
    places: Tensor

    def times(self, matrix: Tensor) -> Tensor:
        """Return Xᵀ matrix, for the columns that occur."""
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

    A column occurs at most once per row: repeated entries were added up, so that squares of entries
    are squares of what the model sees.
    """

    offsets: Tensor
    columns: Tensor
    values: Tensor
    width: int

    @classmethod
    @declared_read(DeclaredRead.FORM)
    def from_scipy(cls, matrix: Any) -> SparseRows:
        """Copy a scipy sparse matrix; repeated entries are added up."""
        with _explained():
            if np.iscomplexobj(matrix):
                raise TypeError("complex numbers")
            _require_sound(matrix)
            csr = sparse.csr_matrix(matrix, dtype=np.float64, copy=True)
            csr.sum_duplicates()
            csr.check_format(full_check=True)  # compiled loops do not check
        return cls(
            torch.from_numpy(csr.indptr.astype(np.int64)),
            torch.from_numpy(csr.indices.astype(np.int64)),
            torch.from_numpy(csr.data).float(),
            int(csr.shape[1]),
        )

    @classmethod
    @declared_read(DeclaredRead.FORM)
    def from_torch(cls, matrix: Tensor) -> SparseRows:
        """Copy a torch sparse tensor of two dimensions."""
        if matrix.ndim != 2:
            raise DataError(
                f"Expected sparse features as a matrix, found shape {tuple(matrix.shape)}. "
                "Give one row per example."
            )
        with _explained():
            coo = matrix.detach().to_sparse(layout=torch.sparse_coo).coalesce().cpu()
            rows, columns = coo.indices().numpy()
            entries = (coo.values().numpy(), (rows, columns))
        return cls.from_scipy(sparse.coo_matrix(entries, shape=tuple(coo.shape)))

    @declared_read(DeclaredRead.FORM)
    def require_consistent(self) -> None:
        """Refuse inconsistent rows: compiled loops do not check."""
        with _explained():
            whole = all(part.dtype == torch.int64 for part in (self.offsets, self.columns))
            if not whole or not isinstance(self.width, int) or self.width < 0:
                raise TypeError("offsets, columns or a width that are not integers")
            if self.values.dtype not in (torch.float32, torch.float64):
                raise TypeError(f"values of {self.values.dtype}")
            require_within(self.columns, self.width)
        held = self.to(torch.device("cpu"))
        lines = all(part.ndim == 1 for part in (held.offsets, held.columns, held.values))
        same = lines and len(held.offsets) > 0 and len(held.columns) == len(held.values)
        if not same or not compiled.is_consistent(*held._arrays()[:2], scratch(self.width)):
            raise DataError(
                "Expected sparse rows with each column at most once per row and offsets that cover "
                "all entries, found others. Build them with `SparseRows.from_scipy`."
            )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def rows(self) -> Tensor:
        """The row number of every stored entry."""
        counts = self.offsets.diff()
        return torch.repeat_interleave(torch.arange(len(self), device=counts.device), counts)

    @cached_property
    def by_column(self) -> SparseColumns:
        """The same entries column by column, without empty columns."""
        if self.columns.device.type == "cpu":
            found = compiled.by_column(*self._arrays(), scratch(self.width))
            columns, offsets, rows, values, places = map(torch.from_numpy, found)
            return SparseColumns(columns, offsets, rows, values, len(self), places)
        columns, places, counts = torch.unique(
            self.columns, return_inverse=True, return_counts=True
        )
        offsets = torch.zeros(len(columns) + 1, dtype=torch.int64, device=columns.device)
        torch.cumsum(counts, 0, out=offsets[1:])
        order = torch.argsort(places, stable=True)
        return SparseColumns(
            columns, offsets, self.rows[order], self.values[order], len(self), places
        )

    def take(self, rows: Tensor) -> SparseRows:
        """Return the given rows, in the given order."""
        require_within(rows, len(self))
        if self.columns.device.type == "cpu":
            taken = compiled.take(*self._arrays(), rows.cpu().numpy())
            offsets, columns, values = map(torch.from_numpy, taken)
            return SparseRows(offsets, columns, values, self.width)
        starts = self.offsets[rows]
        counts = self.offsets[rows + 1] - starts
        offsets = torch.zeros(len(rows) + 1, dtype=torch.int64, device=rows.device)
        torch.cumsum(counts, 0, out=offsets[1:])
        entries = torch.arange(int(offsets[-1]), device=rows.device)
        entries += torch.repeat_interleave(starts - offsets[:-1], counts)
        return SparseRows(offsets, self.columns[entries], self.values[entries], self.width)

    def followed_by_empty(self, count: int) -> SparseRows:
        """Return the same rows, followed by ``count`` rows without entries."""
        offsets = torch.cat([self.offsets, self.offsets[-1:].expand(count)])
        longer = SparseRows(offsets, self.columns, self.values, self.width)
        if "by_column" in vars(self):  # the same entries need no second sort
            vars(longer)["by_column"] = replace(self.by_column, height=len(longer))
        return longer

    def _arrays(self) -> tuple[Any, Any, Any]:
        return self.offsets.numpy(), self.columns.numpy(), self.values.detach().numpy()

    def to(self, device: torch.device) -> SparseRows:
        """Return the same rows on another device."""
        return SparseRows(
            self.offsets.to(device), self.columns.to(device), self.values.to(device), self.width
        )

    def with_values(self, values: Tensor) -> SparseRows:
        """Return the same pattern with other values."""
        return SparseRows(self.offsets, self.columns, values, self.width)

    def map_values(self, function: Callable[[Tensor], Tensor]) -> SparseRows:
        """Return the same pattern with ``function`` of the values."""
        return self.with_values(function(self.values))

    def times(self, table: Tensor) -> Tensor:
        """Return Σ_k x_ik table_k for each row x_i; ``table`` has one contiguous row per column."""
        if len(table) < self.width:
            raise IndexError(f"Expected a table of {self.width} rows, found {len(table)}.")
        if in_main_memory(table):
            return self._compiled_times(table.detach())
        return functional.embedding_bag(
            self.columns,
            table,
            self.offsets,
            per_sample_weights=self.values.to(table.dtype),
            mode="sum",
            include_last_offset=True,
        )

    def _compiled_times(self, table: Tensor) -> Tensor:
        product = torch.empty(len(self), table.shape[1], dtype=table.dtype)
        offsets, columns, values = self._arrays()
        given = (offsets, columns, values.astype(product.numpy().dtype, copy=False), table.numpy())

        def multiply(part: slice) -> None:
            compiled.times((part.start, part.stop), *given, product.numpy())

        run_in_parts(len(self), multiply, work=len(columns) * table.shape[1])
        return product

    def row_sums(self, values: Tensor) -> Tensor:
        """Sum one value per stored entry over each row."""
        return values.new_zeros(len(self)).index_add_(0, self.rows, values)

    def squared_lengths(self, factor: Tensor | None = None) -> Tensor:
        """Return Σ_k (f_k x_ik)² for each row x_i in float64, with one value f_k per column.

        It is never cached: a norm must not be older than its row.
        """
        if self.columns.device.type == "cpu":
            given = torch.empty(0) if factor is None else factor.detach().cpu()
            factors = given.double().flatten().contiguous().numpy()
            found = torch.empty(len(self), dtype=torch.float64)
            compiled.squared_lengths(*self._arrays(), factors, found.numpy())
            return found
        values = self.values.double()
        if factor is not None:
            line = factor.detach().flatten()
            values = values * (line if len(line) == 1 else line[self.columns])
        return self.row_sums(values.square())

    def row_largest(self) -> Tensor:
        """Return the largest absolute value of each row; 0 for a row without entries."""
        largest = self.values.new_zeros(len(self))
        return largest.scatter_reduce_(0, self.rows, self.values.abs(), "amax")

    def to_dense(self) -> Tensor:
        """Return the rows as a dense matrix."""
        dense = self.values.new_zeros(len(self), self.width)
        dense[self.rows, self.columns] = self.values
        return dense


@contextmanager
def _explained() -> Iterator[None]:
    """Raise a `DataError` for whatever is wrong with a sparse matrix."""
    try:
        yield
    except DataError:
        raise
    except (IndexError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise DataError(
            f"Expected a sound sparse matrix of real numbers, found another ({error}). Build it "
            "with scipy.sparse or `SparseRows.from_scipy`."
        ) from error


def _require_sound(matrix: Any) -> None:
    """Refuse a matrix with indices out of range: its conversion would write to them."""
    if matrix.ndim != 2:
        raise ValueError(f"shape {matrix.shape}")
    if hasattr(matrix, "check_format"):
        matrix.check_format(full_check=True)


def require_within(places: Tensor, length: int) -> None:
    """Refuse indices outside of 0, ..., ``length`` - 1, which compiled loops do not check."""
    if places.numel():
        lowest, highest = (int(end) for end in torch.aminmax(places))
        if lowest < 0 or highest >= length:
            raise IndexError(f"Expected 0 to {length - 1}, found {lowest} to {highest}.")


_local = threading.local()


def scratch(width: int) -> npt.NDArray[np.int64]:
    """Return an array of -1, one per column; callers must restore it."""
    if not hasattr(_local, "places") or len(_local.places) < width:
        _local.places = np.full(width, -1, np.int64)
    places: npt.NDArray[np.int64] = _local.places
    return places


def sparse_linear(in_features: int, out_features: int, *, bias: bool = True) -> nn.Linear:
    """Return an `nn.Linear` for sparse rows: the same layer, stored feature by feature.

    Any linear layer works on sparse rows; this one needs no second copy of its weights when
    training begins, which matters for millions of features.

    >>> layer = sparse_linear(5, 2)
    >>> tuple(layer.weight.shape), layer.weight.T.is_contiguous()
    ((2, 5), True)
    """
    layer = nn.Linear(in_features, out_features, bias=bias, device="meta")
    by_feature = torch.empty(in_features, out_features)
    layer.weight = nn.Parameter(by_feature.T)
    bound = 1 / math.sqrt(in_features) if in_features else 0.0
    nn.init.uniform_(layer.weight, -bound, bound)
    if bias:
        layer.bias = nn.Parameter(torch.empty(out_features).uniform_(-bound, bound))
    return layer


def lay_out_by_feature(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """Store these weights feature by feature; return those whose memory was rearranged."""
    changed = []
    for parameter in parameters:
        if not parameter.data.T.is_contiguous():
            parameter.data = parameter.data.T.contiguous().T
            changed.append(parameter)
    return changed


def lay_out_by_output(parameters: Iterable[nn.Parameter]) -> None:
    """Restore the usual memory layout of these weights."""
    for parameter in parameters:
        parameter.data = parameter.data.contiguous()
