"""The weights of a run: whoever reads them gets them with all their noise.

A table of words that each batch reads only in part keeps its noise for later
(`adadps.engine.noise.late`); all other parameters are noised at every step. Reads are: the run's
own forward passes (of the rows they need), public gradients, evaluations, `state_dict`, a copy, a
raw ``model.weight``. Each of them draws in place what is due, so that nothing is drawn twice and
nobody sees weights without noise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import partial

from torch import Tensor, nn

from adadps.engine.noise.late import DIGITS, LateRows
from adadps.engine.noise.late_parameter import can_watch, closed, shown, unwatch, watch
from adadps.engine.waist import Leaf, Noise, Unrealised, Update
from adadps.tensors.sums import OuterSum, Params, RowSparse


class Weights:
    """A model's trainable parameters, changed in place."""

    def __init__(self, model: nn.Module, params: Params, noise: Noise) -> None:
        self._model, self._params, self._noise = model, params, noise
        self._late: dict[str, LateRows] = {}
        self._now: set[str] = set()  # tables that get all their noise at every step

    def read(self, rows: Mapping[str, Tensor] | None = None) -> Params:
        """All parameters, noised; of a table in ``rows``, only those rows are sure to be."""
        wanted = rows or {}
        for name, table in self._late.items():
            with closed(self._model.get_parameter(name)):
                table.settle(wanted.get(name))
        return self._params

    def shown(self) -> Params:
        """All parameters, noised, in the memory of the model: whatever follows does not show there.

        The tensors that `read` returns move row by row, and which row does depends on the data.
        """
        late = {name: shown(self._model.get_parameter(name)) for name in self._late}
        return {**self._params, **late}

    def apply(self, update: Update, partly_read: Iterable[str]) -> None:
        """Change all weights; tables that are ``partly_read`` may keep their noise for later."""
        with ExitStack() as hidden:
            for name in self._late:
                hidden.enter_context(closed(self._model.get_parameter(name)))
            self._apply(update, set(partly_read))

    def _apply(self, update: Update, late: set[str]) -> None:
        now: dict[tuple[float, float], list[tuple[Tensor, Tensor | OuterSum]]] = {}
        for name, leaf in update.items():
            if name in late and self._apply_late(name, leaf, update.keep):
                continue
            weights = self._all_of(name)
            if update.keep != 1:
                weights.mul_(update.keep)
            if isinstance(leaf, Unrealised):
                total = leaf.total.to_dense() if isinstance(leaf.total, RowSparse) else leaf.total
                now.setdefault((leaf.deviation, leaf.factor), []).append((weights, total))
            elif isinstance(leaf, RowSparse):
                rows_first = weights.movedim(leaf.axis, 0)
                rows_first.index_add_(0, leaf.rows, leaf.values.to(weights.dtype))
            else:
                weights.add_(leaf.to(weights.dtype))
        for (deviation, factor), changes in now.items():
            self._noise.release_into(changes, standard_deviation=deviation, factor=factor)

    def hand_over(self) -> None:
        """Settle everything and give the model its plain parameters back."""
        for name in self._late:
            self._params[name] = unwatch(self._model.get_parameter(name))
        self._late.clear()

    def _all_of(self, name: str) -> Tensor:
        if name in self._late:
            self._late[name].settle()
        return self._params[name]

    def _apply_late(self, name: str, leaf: Leaf, keep: float) -> bool:
        """Keep the noise of a change for later, if change and table allow it."""
        noised = leaf if isinstance(leaf, Unrealised) else None
        change = noised.total if noised else leaf
        if not isinstance(change, RowSparse):
            return False
        factor, deviation = (noised.factor, noised.deviation) if noised else (1.0, 0.0)
        deviation *= abs(factor)
        table = self._waiting_table(name, change.axis, deviation)
        if table is None:
            return False
        with closed(self._model.get_parameter(name)):
            table.add(change, factor=factor, deviation=deviation, keep=keep)
        return True

    def _waiting_table(self, name: str, axis: int, deviation: float) -> LateRows | None:
        """The table, if it may keep noise of this deviation for later.

        Not if its weights are of another class than torch's own, or of a type with few bits, or so
        large beside the noise that reading would round them (`LateRows.can_hold`).
        """
        parameter = self._model.get_parameter(name)
        exact = self._params[name].dtype in DIGITS
        if name in self._now or not (exact and can_watch(parameter)):
            return None
        if name not in self._late:
            self._params[name] = watch(parameter, partial(_settle, self._late, name))
            self._late[name] = LateRows(self._params[name], axis, self._noise)
        with closed(parameter):
            if self._late[name].can_hold(deviation):
                return self._late[name]
        self._params[name] = unwatch(parameter)
        del self._late[name]
        self._now.add(name)
        return None


def _settle(late: Mapping[str, LateRows], name: str) -> None:
    if name in late:
        late[name].settle()
