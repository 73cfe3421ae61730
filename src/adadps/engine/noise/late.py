"""Noise that is drawn when a row of weights is read.

Step t of plain SGD does w_t = k_t w_{t-1} + Δ_t + c_t z_t to every row, with a public factor k_t
(1 - α_t λ, for weight decay), a public c_t = α_t σ C / b, and a change Δ_t that is zero for rows
that the batch does not touch. A row that nothing reads between steps s and t is therefore

    w_t = K_st w_s + N(0, G_st),   K_st = k_t K_{s,t-1},   G_st = k_t² G_{s,t-1} + c_t²,

and one draw just before the next read has the same law as t - s draws. So s is all that a row needs
to remember. The cost of a step is that of the rows it touches, not of the whole table. (G_st is
stored for every s, as a sum of positive terms: a difference of sums would lose small late steps.)

*Changes without noise stay outside.* They wait for their noise in `PendingUpdates`; the model's
parameter holds nothing but released values, rounded to a public grid,

    g = 2^(⌊log2 min_j c_j⌋ - 10),

which is the same for all rows. A row that is read, or leaves, was noised at every step.

*Rounding must not tell rows apart.* How often a row is read depends on the batches, so nothing but
the grid may round it then. A float32 of 24 bits holds multiples of g only up to 2^24 g. So w is
held as a float32 and a second float32, the residual of its rounding: 48 bits together. The
parameter is the first of them: it follows from w, and w is never read back from it. (The exception
is a parameter that somebody wrote to: if it is no longer the rounding of w, it is w from then on.)

*Updates wait as factors.* A step's change of a table is D ∘ Σ_i w_i a_i b_iᵀ. Multiplied out it is
as large as the rows that the batch touches; as a, w and b it is as small as the batch, and a row is
multiplied out in float64 when it gets its noise. D is stored once: before another D is stored, all
rows that wait with the old one are released.

`adadps.engine.noise.late_parameter` keeps anybody from reading weights without their noise.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from adadps.engine.noise.randomness import SMALLEST_DEVIATION, grid
from adadps.errors import ContractError, SettingError
from adadps.files import process
from adadps.tensors.kernels import release_rows
from adadps.tensors.loops import in_main_memory
from adadps.tensors.sums import Factors, RowSparse

if TYPE_CHECKING:
    from adadps.engine.waist import Noise


Integers = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]

FLUSHED_AT_ONCE = 2**20
"""This many weights are noised at once when all of them are read."""

_NO_RESIDUAL = np.empty((0, 0), np.float32)

LONGEST_HISTORY = 2**16
"""After this many steps every row gets its noise, and the history starts again."""

DIGITS = {torch.float32: 2 * 24, torch.float64: 53}
"""Bits of a weight's state, by the type of the parameter: two float32, or one float64."""


class LateRows:
    """One table of weights whose rows are noised when they are read."""

    def __init__(self, parameter: Tensor, axis: int, noise: Noise) -> None:
        self._weights = parameter.movedim(axis, 0)
        self._noise = noise
        self._process = process()
        self._lock = threading.RLock()  # another thread may read the model
        self._history = _StepHistory()
        apart = self._weights.dtype is torch.float32
        # The residual of the parameter's rounding; zeros take no memory until they are written to.
        self._residual = np.zeros(tuple(self._weights.shape) if apart else (0, 0), np.float32)
        self._has_residual = np.zeros(1, np.bool_)
        of_rows = np.zeros((len(self._weights), 3), np.int32)  # side by side: one fetch per row
        self._since = of_rows[:, 0]
        self._pending = PendingUpdates(self._weights, axis, of_rows[:, 1:])

    def can_hold(self, deviation: float) -> bool:
        """Is the state exact in and after a step with noise of this deviation?

        It is asked when the grid gets finer or the history starts again, which are public moments.
        All rows get their noise first, so that the answer follows from released values, whatever
        was read. Half of the range is reserved for the steps until the next question.
        """
        width = self._history.grid_with(deviation)
        if width is None or (width == self._history.grid_width and not self._history.is_full):
            return True
        self.settle()
        low, high = self._weights.aminmax() if self._weights.numel() else (0.0, 0.0)
        kind = self._weights.dtype
        is_small = max(-float(low), float(high)) <= math.ldexp(width, DIGITS[kind] - 1)
        return is_small and width >= torch.finfo(kind).tiny

    def settle(self, rows: Tensor | None = None) -> None:
        """Draw the outstanding noise of the given rows (or of all rows), in place, once."""
        self._require_own_process()
        with self._lock:
            if rows is None:
                late = np.flatnonzero(self._since != self._history.now)
            else:
                wanted: Integers = rows.cpu().numpy()
                is_late = self._since[wanted] != self._history.now
                late = wanted if is_late.all() else wanted[is_late]
            at_once = max(1, FLUSHED_AT_ONCE // max(1, self._weights.shape[1]))
            for first in range(0, len(late), at_once):
                self._release(late[first : first + at_once])

    def add(self, change: RowSparse, *, deviation: float, keep: float, factor: float = 1.0) -> None:
        """Take one step: ``factor`` · ``change``, and noise of this deviation when it is read.

        The noise is recorded before the change: whatever interrupts this, no change waits for less
        noise than its own.
        """
        with self._lock:
            self.settle(change.rows)
            if self._history.is_full:
                self.settle()
                self._since.fill(0)
                self._history.clear()
            if not len(change.rows):  # an empty batch is noised like any other
                self._history.step(deviation, keep)
                return
            factors = change.factors()
            for rows in self._pending.make_room(factors):
                if len(rows):
                    self._release(rows)
            self._history.step(deviation, keep)
            # The weight decay of this step is applied when the row is read, so it is undone here.
            self._pending.put(change.rows.cpu().numpy(), factors, factor / keep)

    def _release(self, rows: Integers) -> None:
        """Add the changes of these rows, and the noise of all steps since, to the weights."""
        now = self._history.now
        decays, deviation = self._history.gathered(self._since[rows])
        width = self._history.grid_width
        needed, in_memory = self._pending.take(rows)
        with self._accessible(rows) as (held, residual, has_residual, at):

            def release(start: int, z: Numbers) -> object:
                given = (held, residual, has_residual, at, decays, deviation, width or 1.0, *needed)
                release_rows(*given, z, start)
                return in_memory

            if width is None:  # no step had noise
                release(0, np.zeros(held.shape[1] * len(rows)))
            else:
                self._noise.draw(held.shape[1] * len(rows), release)
        self._since[rows] = now

    @contextmanager
    def _accessible(self, rows: Integers) -> Iterator[tuple[Any, Any, Any, Integers]]:
        """A table in main memory, its residual, whether it has one, and where the rows are."""
        if in_main_memory(self._weights):
            yield self._weights.numpy(), self._residual, self._has_residual, rows
            increment_version(self._weights)  # a graph that holds the old weights must notice
            return
        chosen = torch.from_numpy(rows).to(self._weights.device)
        held = self._weights.index_select(0, chosen).cpu().double()
        if len(self._residual):
            whole = held + torch.from_numpy(self._residual[rows])
            held = torch.where(whole.float() == held, whole, held)  # else somebody wrote to it
        yield held.numpy(), _NO_RESIDUAL, np.zeros(1, np.bool_), np.arange(len(rows))
        rounded = held.to(self._weights.dtype)
        self._weights.index_copy_(0, chosen, rounded.to(self._weights.device))
        if len(self._residual):
            self._residual[rows] = (held - rounded).numpy()

    def _require_own_process(self) -> None:
        if process() != self._process:
            raise ContractError(
                "Expected weights that wait for noise to be read in the process that trains them, "
                "found a fork of it, where they would be noised a second time. Read them, or end "
                "the run, before the fork."
            )


class _StepHistory:
    """The public history of steps: for every s, the decay since s and the noise since s."""

    def __init__(self) -> None:
        self.grid_width: float | None = None
        self._smallest = math.inf
        self._variance = np.zeros(1024)
        self._decays = np.ones(1024)
        self.now = 0

    @property
    def is_full(self) -> bool:
        """Must every row get its noise before the next step?"""
        return self.now == LONGEST_HISTORY

    def grid_with(self, deviation: float) -> float | None:
        """Return the width of the grid after a step of this deviation: it only gets finer."""
        return grid(deviation) if 0 < deviation < self._smallest else self.grid_width

    def clear(self) -> None:
        """Forget all steps."""
        self._variance, self._decays, self.now = np.zeros(1024), np.ones(1024), 0

    def step(self, deviation: float, keep: float) -> None:
        """Record a step for every s before it; if it is interrupted, nothing is recorded."""
        if deviation > 0:
            if deviation < SMALLEST_DEVIATION:
                raise SettingError(
                    f"Expected noise in the weights of at least {SMALLEST_DEVIATION:g}, found "
                    f"{deviation}. Raise the learning rate."
                )
            self.grid_width = self.grid_with(deviation)
            self._smallest = min(self._smallest, deviation)
        variance, decays, before = self._variance, self._decays, slice(0, self.now + 1)
        if self.now + 1 == len(variance):
            variance = np.concatenate([variance, np.zeros_like(variance)])
            decays = np.concatenate([decays, np.ones_like(decays)])
        else:
            variance, decays = variance.copy(), decays.copy()
        variance[before] *= keep**2
        decays[before] *= keep
        variance[before] += deviation**2
        self._variance, self._decays, self.now = variance, decays, self.now + 1

    def gathered(self, since: npt.NDArray[np.int32]) -> tuple[Numbers, Numbers]:
        """Return the decay since rows were settled, and the deviation of their noise."""
        return self._decays[since], np.sqrt(self._variance[since])


PENDING_BYTES = 48 * 2**20
"""Memory for pending updates, unless twice the weights is less."""

MOST_PENDING_STEPS = 1024
"""At most this many steps are pending."""


@dataclass(frozen=True)
class _PendingStep:
    """The update of one step; its arrays must not move while rows point at them."""

    rows: Integers
    ends: Integers
    lines: Integers
    shares: npt.NDArray[np.float64]
    matrix: Tensor

    @property
    def bytes(self) -> int:
        held = (self.rows, self.ends, self.lines, self.shares, self.matrix)
        return sum(array.nbytes for array in held)

    def addresses(self) -> tuple[int, int, int, int]:
        arrays = (self.ends.ctypes.data, self.lines.ctypes.data, self.shares.ctypes.data)
        return (*arrays, self.matrix.data_ptr())


class PendingUpdates:
    """The step whose update each row waits with, and the updates of those steps."""

    def __init__(self, weights: Tensor, axis: int, of_rows: npt.NDArray[np.int32]) -> None:
        self._width = weights.shape[1]
        self._axis = axis
        self._allowed = min(PENDING_BYTES, 2 * weights.nbytes)
        self._slot, self._place = of_rows.T
        self._slot.fill(-1)
        self._addresses = np.zeros((MOST_PENDING_STEPS, 5), np.int64)
        self._steps: dict[int, _PendingStep] = {}
        self._bytes = 0
        self._next = 0
        self._diagonal = _Diagonal((), axis, self._width)
        self._like = np.empty((0, 0))

    def put(self, rows: Integers, factors: Factors, factor: float) -> None:
        """Store ``factor`` times an update of rows that have no pending update yet."""
        self._diagonal.require_unchanged()
        if not self._diagonal.is_of(factors.diagonals):
            self._diagonal = _Diagonal(factors.diagonals, self._axis, self._width)
        self._like = factors.matrix.numpy()
        step = _PendingStep(
            rows, factors.ends, factors.lines, factors.shares * factor, factors.matrix
        )
        # The slot is counted first: an interrupted put leaves it unused.
        slot, self._next = self._next, (self._next + 1) % MOST_PENDING_STEPS
        self._steps[slot] = step
        self._bytes += step.bytes
        self._addresses[slot] = (*step.addresses(), len(rows))
        self._place[rows] = np.arange(len(rows))
        self._slot[rows] = slot  # only now do rows point at it

    def make_room(self, factors: Factors) -> Iterator[Integers]:
        """Yield rows that must be released before ``factors`` is put, and forget their steps."""
        other = not self._diagonal.is_of(factors.diagonals)
        other = other or factors.matrix.element_size() != self._like.itemsize
        while self._steps and (other or self._bytes > self._allowed or self._next in self._steps):
            oldest = next(iter(self._steps))
            rows = self._steps[oldest].rows
            yield rows[self._slot[rows] == oldest]
            self._bytes -= self._steps.pop(oldest).bytes

    def take(self, rows: Integers) -> tuple[tuple[Any, ...], object]:
        """Take the updates of these rows out of the pending ones.

        Return what `adadps.tensors.kernels.release_rows` needs, and what must stay in
        memory meanwhile.
        """
        self._diagonal.require_unchanged()
        slots, places = self._slot[rows], self._place[rows]
        self._slot[rows] = -1
        needed = (slots, places, rows, self._addresses.copy(), self._like, *self._diagonal.arrays)
        return needed, tuple(self._steps.values())


class _Diagonal:
    """D as a factor by row, a factor by output, and a full factor."""

    def __init__(self, tensors: tuple[Tensor, ...], axis: int, width: int) -> None:
        self._tensors = tensors
        self._versions = tuple(tensor._version for tensor in tensors)
        by_row = by_output = np.empty(0)
        full = np.empty((0, 0))
        for tensor in tensors:
            rows_first = tensor.detach().movedim(axis, 0).cpu()
            if 1 not in rows_first.shape:
                assert not len(full), "maps merge factors of one shape"
                ready = in_main_memory(rows_first)
                full = (rows_first if ready else rows_first.double().contiguous()).numpy()
            elif rows_first.shape[0] == 1:
                by_output = _product(by_output, rows_first[0].expand(width))
            else:
                by_row = _product(by_row, rows_first[:, 0])
        self.arrays = (by_row, by_output, full)

    def is_of(self, tensors: tuple[Tensor, ...]) -> bool:
        """Is it made of these same tensors?"""
        return len(tensors) == len(self._tensors) and all(
            one is other for one, other in zip(tensors, self._tensors, strict=True)
        )

    def require_unchanged(self) -> None:
        """Refuse a D that was written to: an update was clipped with the D of its step."""
        if tuple(tensor._version for tensor in self._tensors) != self._versions:
            raise ContractError(
                "Expected side information that does not change while updates wait for their "
                "noise, found that its tensors were written to. Return new tensors from `observe`."
            )


def _product(factor: Any, other: Tensor) -> Any:
    numbers = other.double().contiguous().numpy()
    return numbers.copy() if not len(factor) else factor * numbers
