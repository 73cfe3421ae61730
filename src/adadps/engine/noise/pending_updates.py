"""Updates of rows that wait for their noise, stored as the factors of which they are sums.

A step's change of a table is D ∘ Σ_i w_i a_i b_iᵀ. Multiplied out it is as large as the rows that
the batch touches; as a, w and b it is as small as the batch, and a row is multiplied out in float64
when it gets its noise. D is stored once: before another D is stored, all rows that wait with the
old one are released.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from adadps.errors import ContractError
from adadps.tensors.sums import Factors, in_main_memory

Integers = npt.NDArray[np.int64]

PENDING_BYTES = 48 * 2**20
"""Memory for pending updates, unless twice the weights is less."""

STEPS = 1024
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
        self._addresses = np.zeros((STEPS, 5), np.int64)
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
        slot, self._next = self._next, (self._next + 1) % STEPS
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

        Return what `adadps.tensors.kernels.release.release_rows` needs, and what must stay in
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
