"""The weights of a run, which cannot be read without their noise.

A table of words of which each batch reads only some rows draws its noise late
(`adadps.engine.noise.late`); all other parameters are noised at every step. Reads are: the run's
own forward passes (of the rows they need), public gradients, evaluations, `state_dict`, a copy, a
raw ``model.weight``. Each read draws the outstanding noise in place, so that nothing is drawn twice
and nobody sees weights without noise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import partial

from torch import Tensor, nn

from adadps.engine.noise.late import DIGITS, LateRows
from adadps.engine.noise.late_parameter import (
    can_be_late,
    hidden,
    make_late,
    make_plain,
    published,
)
from adadps.engine.waist import Leaf, Noise, NoisySum, Update
from adadps.tensors.sums import OuterSum, Params, RowSparse


class Weights:
    """A model's trainable parameters, changed in place."""

    def __init__(self, model: nn.Module, params: Params, noise: Noise) -> None:
        self._model, self._params, self._noise = model, params, noise
        self._late: dict[str, LateRows] = {}
        self._eager: set[str] = set()  # tables that get all their noise at every step

    def read(self, rows: Mapping[str, Tensor] | None = None) -> Params:
        """Return all parameters, noised; of a table in ``rows``, only those rows surely are."""
        wanted = rows or {}
        for name, table in self._late.items():
            with hidden(self._model.get_parameter(name)):
                table.settle(wanted.get(name))
        return self._params

    def published(self) -> Params:
        """Return all parameters, noised, in memory of the model that no later step changes.

        The tensors that `read` returns move row by row, and which row moves depends on the data.
        """
        late = {name: published(self._model.get_parameter(name)) for name in self._late}
        return {**self._params, **late}

    def apply(self, update: Update, partly_read: Iterable[str]) -> None:
        """Change all weights; tables that are ``partly_read`` may draw their noise later."""
        with ExitStack() as stack:
            for name in self._late:
                stack.enter_context(hidden(self._model.get_parameter(name)))
            self._apply(update, set(partly_read))

    def _apply(self, update: Update, late: set[str]) -> None:
        now: dict[tuple[float, float], list[tuple[Tensor, Tensor | OuterSum]]] = {}
        for name, leaf in update.items():
            if name in late and self._apply_late(name, leaf, update.keep):
                continue
            weights = self._settled(name)
            if update.keep != 1:
                weights.mul_(update.keep)
            if isinstance(leaf, NoisySum):
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
        """Draw all outstanding noise and give the model its plain parameters back."""
        for name in self._late:
            self._params[name] = make_plain(self._model.get_parameter(name))
        self._late.clear()

    def _settled(self, name: str) -> Tensor:
        if name in self._late:
            self._late[name].settle()
        return self._params[name]

    def _apply_late(self, name: str, leaf: Leaf, keep: float) -> bool:
        """Leave the noise of a change for later, if the change and the table allow it."""
        noised = leaf if isinstance(leaf, NoisySum) else None
        change = noised.total if noised else leaf
        if not isinstance(change, RowSparse):
            return False
        factor, deviation = (noised.factor, noised.deviation) if noised else (1.0, 0.0)
        deviation *= abs(factor)
        table = self._late_table(name, change.axis, deviation)
        if table is None:
            return False
        with hidden(self._model.get_parameter(name)):
            table.add(change, factor=factor, deviation=deviation, keep=keep)
        return True

    def _late_table(self, name: str, axis: int, deviation: float) -> LateRows | None:
        """The table, if it may draw noise of this deviation later.

        It may not if its weights are of another class than torch's own, of a type with few bits, or
        so large beside the noise that reading would round them (`LateRows.can_hold`).
        """
        parameter = self._model.get_parameter(name)
        exact = self._params[name].dtype in DIGITS
        if name in self._eager or not (exact and can_be_late(parameter)):
            return None
        if name not in self._late:
            self._params[name] = make_late(parameter, partial(_settle, self._late, name))
            self._late[name] = LateRows(self._params[name], axis, self._noise)
        with hidden(parameter):
            if self._late[name].can_hold(deviation):
                return self._late[name]
        self._params[name] = make_plain(parameter)
        del self._late[name]
        self._eager.add(name)
        return None


def _settle(late: Mapping[str, LateRows], name: str) -> None:
    if name in late:
        late[name].settle()
