"""Noise that is drawn when a row of weights is read.

Step t of plain SGD does w_t = k_t w_{t-1} + Δ_t + c_t z_t to every row, with a public share k_t
that is kept (1 - α_t λ), a public c_t = α_t σ C / b, and a change Δ_t that is zero for rows which
the batch does not touch. A row that nothing reads between steps s and t is therefore

    w_t = K_st w_s + N(0, G_st),   K_st = k_t K_{s,t-1},   G_st = k_t² G_{s,t-1} + c_t²,

and one draw just before the next read has the same law as t - s draws. So all that a row needs to
remember is s. The cost of a step is that of the rows it touches, not of the whole table. (G_st is
kept for every s, as a sum of positive terms: a difference of sums would lose small late steps.)

*What is not noised yet stays outside.* Changes wait for their noise in
`adadps.engine.noise.pending_updates`; the model's parameter holds nothing but released values,
rounded to a public grid,

    g = 2^(⌊log2 min_j c_j⌋ - 10),

which is the same for all rows. A row that is read, or leaves, was noised at every step.

*Rounding must not tell rows apart.* How often a row is read depends on the batches, so nothing but
the grid may round it then. A float32 of 24 bits holds multiples of g up to 2^24 g only. So w is
held as a float32 and the float32 that its rounding leaves over, 48 bits together. The parameter is
the first of them: it follows from w, and is never taken for it. (Unless somebody wrote to it: what
is not the rounding of w any more is w from then on.)
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from adadps.engine.noise.pending_updates import PendingUpdates
from adadps.engine.noise.randomness import SMALLEST_DEVIATION, grid
from adadps.engine.waist import Noise
from adadps.errors import ContractError, require
from adadps.files.processes import process
from adadps.tensors.kernels.release import release_rows
from adadps.tensors.sums import RowSparse, in_main_memory

Integers = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]

FLUSHED_AT_ONCE = 2**20
"""How many weights are noised at once when all of them are read."""

_NO_REST = np.empty((0, 0), np.float32)

LONGEST_PAST = 2**16
"""After so many steps every row gets its noise, and the history begins anew."""

DIGITS = {torch.float32: 2 * 24, torch.float64: 53}
"""Bits of a weight's state by the type of the parameter: two float32, or one float64."""


class LateRows:
    """One table of weights whose rows are noised when they are read."""

    def __init__(self, parameter: Tensor, axis: int, noise: Noise) -> None:
        self._weights = parameter.movedim(axis, 0)
        self._noise = noise
        self._process = process()
        self._lock = threading.RLock()  # another thread may read the model
        self._past = _StepHistory()
        apart = self._weights.dtype is torch.float32
        # What the parameter's rounding leaves over, if it ever does: until then it takes no memory.
        self._rest = np.zeros(tuple(self._weights.shape) if apart else (0, 0), np.float32)
        self._has_rest = np.zeros(1, np.bool_)
        of_rows = np.zeros((len(self._weights), 3), np.int32)  # together: one trip to memory a row
        self._since = of_rows[:, 0]
        self._waiting = PendingUpdates(self._weights, axis, of_rows[:, 1:])

    def can_hold(self, deviation: float) -> bool:
        """Is the state exact in and after a step with noise of this deviation?

        Asked when the grid gets finer, or the history begins anew: public moments. All rows get
        their noise first, so that the answer follows from what is released, whatever was read. Half
        of the range is left for steps until it is asked again.
        """
        width = self._past.grid_with(deviation)
        if width is None or (width == self._past.grid_width and not self._past.is_full):
            return True
        self.settle()
        low, high = self._weights.aminmax() if self._weights.numel() else (0.0, 0.0)
        kind = self._weights.dtype
        is_small = max(-float(low), float(high)) <= math.ldexp(width, DIGITS[kind] - 1)
        return is_small and width >= torch.finfo(kind).tiny

    def settle(self, rows: Tensor | None = None) -> None:
        """Draw what the given rows (or all of them) have gathered, in place, once."""
        self._require_own_process()
        with self._lock:
            if rows is None:
                due = np.flatnonzero(self._since != self._past.now)
            else:
                wanted: Integers = rows.cpu().numpy()
                late = self._since[wanted] != self._past.now
                due = wanted if late.all() else wanted[late]
            at_once = max(1, FLUSHED_AT_ONCE // max(1, self._weights.shape[1]))
            for first in range(0, len(due), at_once):
                self._release(due[first : first + at_once])

    def add(self, change: RowSparse, *, deviation: float, keep: float, factor: float = 1.0) -> None:
        """One step: ``factor`` · ``change``, and noise of this deviation when it is read.

        The noise is counted before the change is there: whatever interrupts this, no change waits
        for less noise than its own.
        """
        with self._lock:
            self.settle(change.rows)
            if self._past.is_full:
                self.settle()
                self._since.fill(0)
                self._past.begin_anew()
            if not len(change.rows):  # an empty batch is noised like any other, and changes nothing
                self._past.step(deviation, keep)
                return
            factors = change.factors()
            for rows in self._waiting.in_the_way(factors):
                if len(rows):
                    self._release(rows)
            self._past.step(deviation, keep)
            # What is kept of it is taken when it is read.
            self._waiting.put(change.rows.cpu().numpy(), factors, factor / keep)

    def _release(self, rows: Integers) -> None:
        """Add the changes of these rows, and the noise of all steps since, to the weights."""
        now = self._past.now
        kept, deviation = self._past.gathered(self._since[rows])
        width = self._past.grid_width
        needed, in_memory = self._waiting.take(rows)
        with self._in_reach(rows) as (held, rest, has_rest, at):

            def release(start: int, z: Numbers) -> object:
                given = (held, rest, has_rest, at, kept, deviation, width or 1.0, *needed)
                release_rows(*given, z, start)
                return in_memory

            if width is None:  # not a single step had noise
                release(0, np.zeros(held.shape[1] * len(rows)))
            else:
                self._noise.draw(held.shape[1] * len(rows), release)
        self._since[rows] = now

    @contextmanager
    def _in_reach(self, rows: Integers) -> Iterator[tuple[Any, Any, Any, Integers]]:
        """A table, what its rounding leaves over, whether it does, and where the rows are."""
        if in_main_memory(self._weights):
            yield self._weights.numpy(), self._rest, self._has_rest, rows
            increment_version(self._weights)  # a graph that holds the old weights must notice
            return
        chosen = torch.from_numpy(rows).to(self._weights.device)
        held = self._weights.index_select(0, chosen).cpu().double()
        if len(self._rest):
            whole = held + torch.from_numpy(self._rest[rows])
            held = torch.where(whole.float() == held, whole, held)  # else it was written to
        yield held.numpy(), _NO_REST, np.zeros(1, np.bool_), np.arange(len(rows))
        rounded = held.to(self._weights.dtype)
        self._weights.index_copy_(0, chosen, rounded.to(self._weights.device))
        if len(self._rest):
            self._rest[rows] = (held - rounded).numpy()

    def _require_own_process(self) -> None:
        if process() != self._process:
            raise ContractError(
                "Expected weights that wait for noise to be read in the process that trains them, "
                "found a fork of it, where they would be noised a second time. Read them, or end "
                "the run, before the fork."
            )


class _StepHistory:
    """The public history of steps: for every s, what is kept since s and the noise since s."""

    def __init__(self) -> None:
        self.grid_width: float | None = None
        self._smallest = math.inf
        self._variance = np.zeros(1024)
        self._kept = np.ones(1024)
        self.now = 0

    @property
    def is_full(self) -> bool:
        """Must every row get its noise before the next step?"""
        return self.now == LONGEST_PAST

    def grid_with(self, deviation: float) -> float | None:
        """The width of the grid after a step of this deviation: it only gets finer."""
        return grid(deviation) if 0 < deviation < self._smallest else self.grid_width

    def begin_anew(self) -> None:
        """Forget all steps."""
        self._variance, self._kept, self.now = np.zeros(1024), np.ones(1024), 0

    def step(self, deviation: float, keep: float) -> None:
        """One more step for everything before it; all of it, or nothing if it is interrupted."""
        if deviation > 0:
            require(
                deviation >= SMALLEST_DEVIATION,
                f"noise in the weights of at least {SMALLEST_DEVIATION:g}",
                deviation,
                "Raise the learning rate.",
            )
            self.grid_width = self.grid_with(deviation)
            self._smallest = min(self._smallest, deviation)
        variance, kept, before = self._variance, self._kept, slice(0, self.now + 1)
        if self.now + 1 == len(variance):
            variance = np.concatenate([variance, np.zeros_like(variance)])
            kept = np.concatenate([kept, np.ones_like(kept)])
        else:
            variance, kept = variance.copy(), kept.copy()
        variance[before] *= keep**2
        kept[before] *= keep
        variance[before] += deviation**2
        self._variance, self._kept, self.now = variance, kept, self.now + 1

    def gathered(self, since: npt.NDArray[np.int32]) -> tuple[Numbers, Numbers]:
        """What is kept of rows that were settled at ``since``, and the deviation of their noise."""
        return self._kept[since], np.sqrt(self._variance[since])
