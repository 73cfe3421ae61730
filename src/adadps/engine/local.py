"""Local training: a user contributes the difference that their own SGD makes to the weights.

From the weights w that all users are given, a user takes mini-batches of their rows in order,

    w_0 = w,   w_{t+1} = w_t - lr · D ∘ ∇ (mean loss of mini-batch t),   t < T,

and contributes w_0 - w_T, which takes the place of a gradient: it is clipped and noised like one.
Of a table of words only the rows of the user's own words are copied.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from adadps.data.examples import Examples
from adadps.data.fields import Features, arguments
from adadps.data.sparse_rows import SparseRows
from adadps.engine.passes.model_state import SameState
from adadps.engine.rules.gradients import (
    LeafMap,
    MaterialisedGradients,
    PerExampleGradients,
)
from adadps.engine.rules.layered import LayeredGradients
from adadps.engine.rules.sparse import shifted_rows
from adadps.engine.waist import Engine, Units
from adadps.tensors.squares import DOUBLE
from adadps.tensors.sums import Params, RowSparse, Sum, dense, rows_of

ROWS_AT_ONCE = 4096
"""Users are trained until they have this many rows together; then their updates are summed."""

WORTH_THREADS = 2**24
"""This many products in a local step are worth more than one thread."""

Part = RowSparse | Tensor
"""One parameter's part of an update."""


@dataclass(frozen=True)
class LocalSteps:
    """How a user trains: the learning rate, mini-batch size, and passes through their rows."""

    lr: float
    batch_size: int
    epochs: int = 1


class LocalEngine:
    """Trains locally where another engine would differentiate; ``scale`` is D."""

    def __init__(self, inner: Engine, steps: LocalSteps, scale: Params) -> None:
        self.model, self.loss = inner.model, inner.loss
        self.inner, self.steps, self.scale = inner, steps, scale
        self._rows_alone = getattr(inner, "sequence", None) is not None
        """Whether all layers treat every row separately, whatever else is in its batch."""
        self._same_state = SameState(inner.model, inner.loss)

    @property
    def stored(self) -> frozenset[str]:
        """Return the names of parameters whose gradients the inner engine stores."""
        return self.inner.stored

    def per_unit(
        self, params: Params, batch: Examples, units: Units | None, synthetic: int = 0
    ) -> LayeredGradients:
        """Return one update per unit, from its rows alone; a unit without rows is absent."""
        units_rows = _rows_of(len(batch) - synthetic, units)
        every = units_rows or [torch.arange(0)]
        found = of_updates([self.update(params, batch.take(rows)) for rows in every])
        filled = torch.tensor([len(rows) > 0 for rows in every], device=found.present.device)
        padding = len(every) - len(units_rows)
        return replace(found, present=found.present & filled, padding=padding)

    def update(self, params: Params, rows: Examples) -> dict[str, Part]:
        """Return w_0 - w_T of one user; row-sparse for a table of which they read few rows."""
        features, tables = self._own_words(rows.features)
        axes = {name: table_axis(self.model, name) for name in tables}
        start = {
            name: rows_of(value, tables[name], axes[name]) if name in tables else value.clone()
            for name, value in params.items()
        }
        scale = {
            name: rows_of(value, tables[name], axes[name]) if name in tables else value
            for name, value in self.scale.items()
        }
        held = {name: value.clone() for name, value in start.items()}
        seen = {name: held[name].movedim(0, axes[name]) if name in axes else held[name]
                for name in held}  # fmt: skip
        size = min(len(rows), self.steps.batch_size) * sum(value.numel() for value in held.values())
        with _threads_for(size if self._rows_alone else math.inf), self._isolated():
            for _ in range(self.steps.epochs):
                for part in _mini_batches(len(rows), self.steps.batch_size):
                    batch = Examples(features, rows.targets).take(part)
                    for name, total in self._mean_gradient(seen, batch).items():
                        _descend(held[name], total, self.steps.lr * scale[name], name in tables)
        return {
            name: RowSparse(tables[name], moved, tuple(params[name].shape), axes[name])
            if name in tables
            else moved
            for name, moved in ((name, start[name] - value) for name, value in held.items())
        }

    def _isolated(self) -> AbstractContextManager[None]:
        """Keep state that the model records about one user from all other users."""
        return nullcontext() if self._rows_alone else self._same_state()

    def _own_words(self, features: Features) -> tuple[Features, Mapping[str, Tensor]]:
        """Sparse rows with columns renumbered among the words that occur, and those words."""
        if not isinstance(features, SparseRows):
            return features, {}
        tables = self.inner.reads(features)
        if not tables:
            return features, {}
        words = features.by_column
        return (
            SparseRows(features.offsets, words.places, features.values, len(words.columns)),
            tables,
        )

    def _mean_gradient(self, params: Params, batch: Examples) -> Mapping[str, Sum]:
        """The mean gradient, by one backward pass if that is the same and every row is finite."""
        found = None
        if self._rows_alone and not isinstance(batch.features, SparseRows):
            found = self._by_one_pass(params, batch)
        return self._by_rows(params, batch) if found is None else found

    def _by_one_pass(self, params: Params, batch: Examples) -> Params | None:
        """Rows need no gradients of their own: the user is clipped, not a row."""
        leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
        given, named = arguments(batch.features, next(iter(params.values())).dtype)
        outputs = functional_call(self.model, leaves, given, named)
        total = self.loss(outputs, batch.targets).mean()
        found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
        if any(part is None for part in found):
            return None
        whole = [part.to_dense() if part.is_sparse else part for part in found]
        finite = all(bool(torch.isfinite(part).all()) for part in whole)
        return dict(zip(leaves, whole, strict=True)) if finite else None

    def _by_rows(self, params: Params, batch: Examples) -> Mapping[str, Sum]:
        gradients = self.inner.per_unit(params, batch, None)
        share = torch.full((len(batch),), 1 / len(batch), dtype=torch.float64)
        return gradients.weighted_sum(share.to(batch.targets.device))

    def mean_gradient(self, params: Params, batch: Examples) -> Params:
        """Return the ordinary mean gradient, for public data."""
        return self.inner.mean_gradient(params, batch)

    def outputs(self, params: Params, features: Features) -> Any:
        """Return the model's outputs, without gradient."""
        return self.inner.outputs(params, features)

    def encoded(self, features: Features) -> Features:
        """Return the features as the inner engine reads them."""
        return self.inner.encoded(features)

    def most_at_once(self, params: Params) -> int:
        """Return fewer rows than the inner engine holds, because updates are stored."""
        return min(ROWS_AT_ONCE, self.inner.most_at_once(params))

    def reads(self, features: Features) -> dict[str, Tensor]:
        """Return the rows of tables that these features read, at every local step."""
        return self.inner.reads(features)


@contextmanager
def _threads_for(products: float) -> Iterator[None]:
    """Use one thread for small steps: waiting for several costs more than they save."""
    usual = torch.get_num_threads()
    if usual == 1 or products > WORTH_THREADS:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


def of_updates(updates: Sequence[Mapping[str, Part]]) -> LayeredGradients:
    """Return updates as gradients, one per unit; one that is not finite counts as absent."""
    finite = [all(_is_finite(part) for part in update.values()) for update in updates]
    kept = [u if ok else _zeros(u) for u, ok in zip(updates, finite, strict=True)]
    leaves = {name: _side_by_side([update[name] for update in kept]) for name in updates[0]}
    return LayeredGradients(leaves, torch.tensor(finite, device=_device(updates[0])))


def _device(update: Mapping[str, Part]) -> torch.device:
    part = next(iter(update.values()))
    return part.values.device if isinstance(part, RowSparse) else part.device


def _rows_of(count: int, units: Units | None) -> list[Tensor]:
    """The rows of each unit, in order."""
    if units is None:
        return list(torch.split(torch.arange(count), 1)) if count else []
    labels = units.labels.cpu()
    sizes = torch.bincount(labels, minlength=units.count)
    return list(torch.split(torch.argsort(labels, stable=True), sizes.tolist()))


def _mini_batches(rows: int, size: int) -> tuple[Tensor, ...]:
    return torch.split(torch.arange(rows), size) if rows else ()


def _descend(held: Tensor, total: Sum, rate: Tensor, rows_first: bool) -> None:
    """``held`` -= rate ∘ total, in place; tables and their rates have their rows first."""
    if isinstance(total, RowSparse) and rows_first:
        chosen = rate if len(rate) == 1 else rate[total.rows]
        held.index_add_(0, total.rows, (total.values * chosen).to(held.dtype), alpha=-1)
        return
    whole = dense(total)
    if rows_first and isinstance(total, RowSparse):
        whole = whole.movedim(total.axis, 0)
    held.sub_((whole * rate).to(held.dtype))


def table_axis(model: nn.Module, name: str) -> int:
    """Return the axis of a table along which its words lie."""
    owner = model.get_submodule(name.rpartition(".")[0])
    return 1 if isinstance(owner, nn.Linear) else 0


def _is_finite(part: Part) -> bool:
    values = part.values if isinstance(part, RowSparse) else part
    return bool(torch.isfinite(values).all())


def _zeros(update: Mapping[str, Part]) -> dict[str, Part]:
    return {
        name: RowSparse(part.rows, torch.zeros_like(part.values), part.shape, part.axis)
        if isinstance(part, RowSparse)
        else torch.zeros_like(part)
        for name, part in update.items()
    }


def _side_by_side(parts: list[Part]) -> PerExampleGradients:
    tables = [part for part in parts if isinstance(part, RowSparse)]
    if tables:
        return OwnedRows(tables)
    return MaterialisedGradients(torch.stack([part for part in parts if isinstance(part, Tensor)]))


@dataclass(frozen=True)
class OwnedRows:
    """The rows of a table that each unit has changed, one `RowSparse` per unit.

    A unit has a row at most once. This is for large tables of which each unit changes few rows.
    """

    parts: Sequence[RowSparse]

    def squares(self, leaf_map: LeafMap) -> Tensor:
        """Return ‖D ∘ g_u + M‖² for every unit."""
        return torch.stack([_square(part, leaf_map) for part in self.parts])

    def weighted(self, weights: Tensor) -> RowSparse:
        """Return Σ_u w_u g_u on the rows that any unit has."""
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
        """Return the updates of some of the units."""
        return OwnedRows([self.parts[unit] for unit in rows.tolist()])


def _square(part: RowSparse, leaf_map: LeafMap) -> Tensor:
    values = part.values
    if leaf_map.factors or leaf_map.offset is not None:
        values = values.double()
    for factor in leaf_map.factors:
        values = values * rows_of(factor, part.rows, part.axis)
    if leaf_map.offset is not None:
        owners = torch.zeros_like(part.rows)
        offset = leaf_map.offset.movedim(part.axis, 0)
        return shifted_rows(values.new_zeros(1), owners, values, offset, part.rows)[0]
    size: Tensor = torch.linalg.vector_norm(values, dtype=torch.float64)
    return size.square() * (1 + DOUBLE * (values.numel() + 16))
