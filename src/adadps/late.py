"""Noise that is drawn when a row of weights is read.

Step t of plain SGD does w_t = k_t w_{t-1} + Δ_t + c_t z_t to every row, with a public share k_t
that is kept (1 - α_t λ), a public c_t = α_t σ C / b, and a change Δ_t that is zero for rows which
the batch does not touch. A row that nothing reads between steps s and t is therefore

    w_t = K_st w_s + N(0, G_st),   K_st = k_t K_{s,t-1},   G_st = k_t² G_{s,t-1} + c_t²,

and one draw just before the next read has the same law as t - s draws. So all that a row needs to
remember is s. The cost of a step is that of the rows it touches, not of the whole table. (G_st is
kept for every s, as a sum of positive terms: a difference of sums would lose small late steps.)

*What is not noised yet stays outside.* Changes wait for their noise in `adadps.waiting`; the
model's parameter holds nothing but released values, rounded to a public grid,

    g = 2^(⌊log2 min_j c_j⌋ - 10),

which is the same for all rows. A row that is read, or leaves, was noised at every step.

*Rounding must not tell rows apart.* A multiple of g is kept exactly by a float of m bits as long as
it is below 2^m g. Larger weights would be rounded each time they are read, and how often depends on
the batches. So a table with such weights, compared with its noise, does not keep noise for later.
"""

from __future__ import annotations

import math
import threading

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from adadps.errors import ContractError
from adadps.kernels.rows import release_rows
from adadps.noise import grid
from adadps.row_sparse import RowSparse, in_main_memory
from adadps.threads import process
from adadps.types import SMALLEST_DEVIATION, Noise, require
from adadps.waiting import Waiting

Integers = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]

FLUSHED_AT_ONCE = 2**20
"""How many weights are noised at once when all of them are read."""

LONGEST_PAST = 2**16
"""After so many steps every row gets its noise, and the history begins anew."""

LOOKED_AT_EVERY = 256
"""How many steps may pass until the largest weight is looked at again."""


class LateRows:
    """One table of weights whose rows are noised when they are read."""

    def __init__(self, parameter: Tensor, axis: int, noise: Noise) -> None:
        self._weights = parameter.movedim(axis, 0)
        self._noise = noise
        self._process = process()
        self._lock = threading.RLock()  # another thread may read the model
        self._past = _Past()
        self._looked_at: tuple[int, float | None] = (0, None)
        self.keeps_multiples = True
        of_rows = np.zeros((len(self._weights), 3), np.int32)  # together: one trip to memory a row
        self._since = of_rows[:, 0]
        self._waiting = Waiting(self._weights, axis, of_rows[:, 1:])

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
            if self._past.now == LONGEST_PAST:
                self.settle()
                self._since.fill(0)
                self._past.begin_anew()
            factors = change.factors()
            for rows in self._waiting.in_the_way(factors):
                if len(rows):
                    self._release(rows)
            self._past.step(deviation, keep)
            # What is kept of it is taken when it is read.
            self._waiting.put(change.rows.cpu().numpy(), factors, factor / keep)
            self._look_at_largest()

    def _look_at_largest(self) -> None:
        """Now and then: are all weights, which are released ones, small enough to be exact?"""
        moment = (self._past.now // LOOKED_AT_EVERY, self._past.grid_width)
        if self._past.grid_width is None or moment == self._looked_at:
            return
        self._looked_at = moment
        low, high = self._weights.aminmax() if self._weights.numel() else (0.0, 0.0)
        limit = self._past.grid_width * 2 / torch.finfo(self._weights.dtype).eps
        self.keeps_multiples = max(-float(low), float(high)) <= limit

    def _release(self, rows: Integers) -> None:
        """Add the changes of these rows, and the noise of all steps since, to the weights."""
        now = self._past.now
        kept, deviation = self._past.gathered(self._since[rows])
        direct = in_main_memory(self._weights)
        chosen = torch.from_numpy(rows).to(self._weights.device)
        held = self._weights if direct else self._weights.index_select(0, chosen).cpu().double()
        width = self._past.grid_width
        places = rows if direct else np.arange(len(rows))
        needed, in_memory = self._waiting.take(rows)

        def release(start: int, z: Numbers) -> object:
            release_rows(held.numpy(), places, kept, deviation, width or 1.0, *needed, z, start)
            return in_memory

        if width is None:  # not a single step had noise
            release(0, np.zeros(held.shape[1] * len(rows)))
        else:
            self._noise.draw(held.shape[1] * len(rows), release)
        if direct:
            increment_version(self._weights)  # a graph that holds the old weights must notice
        else:
            self._weights.index_copy_(0, chosen, held.to(self._weights))
        self._since[rows] = now

    def _require_own_process(self) -> None:
        if process() != self._process:
            raise ContractError(
                "Expected weights that wait for noise to be read in the process that trains them, "
                "found a fork of it, where they would be noised a second time. Read them, or end "
                "the run, before the fork."
            )


class _Past:
    """The public history of steps: for every s, what is kept since s and the noise since s."""

    def __init__(self) -> None:
        self.grid_width: float | None = None
        self._smallest = math.inf
        self._variance = np.zeros(1024)
        self._kept = np.ones(1024)
        self.now = 0

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
            if deviation < self._smallest:
                self._smallest, self.grid_width = deviation, grid(deviation)
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
