"""Noise that is drawn when a row of weights is read.

Step t of plain SGD does w_t = k_t w_{t-1} + Δ_t + c_t z_t to every row, with a public share k_t
that is kept (1 - α_t λ), a public c_t = α_t σ C / b, and a change Δ_t that is zero for rows which
the batch does not touch. A row that nothing reads between steps s and t is therefore

    w_t = K_st w_s + N(0, G_st),   K_st = k_t K_{s,t-1},   G_st = k_t² G_{s,t-1} + c_t²,

and one draw just before the next read has the same law as t - s draws. So all that a row needs to
remember is s. The cost of a step is that of the rows it touches, not of the whole table. (G_st is
kept for every s, as a sum of positive terms: a difference of sums would lose small late steps.)

*What is not noised yet stays here.* Changes wait in float64, in this room, for their noise; the
model's parameter holds nothing but released values, rounded to a public grid,

    g = 2^(⌊log2 min_j c_j⌋ - 10),

which is the same for all rows. A row that is read, or leaves, was noised at every step.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from adadps.errors import ContractError
from adadps.noise import grid
from adadps.normals import process
from adadps.row_sparse import RowSparse
from adadps.types import Noise, require

WAITING_BYTES = 48 * 2**20
"""Memory for changes that wait for their noise, where an eighth of the weights is less."""

FLUSHED_AT_ONCE = 2**20
"""How many weights are noised at once when all of them are read."""

LONGEST_PAST = 2**16
"""After so many steps every row gets its noise, and the history begins anew."""

SMALLEST_DEVIATION = 1e-150
"""The square of less than this is no number any more."""


class LateRows:
    """One table of weights whose rows are noised when they are read."""

    def __init__(self, parameter: Tensor, axis: int, noise: Noise) -> None:
        self._weights = parameter.movedim(axis, 0)
        self._noise = noise
        self._process = process()
        self._past = _Past(parameter.device)
        rows = len(self._weights)
        self._since = torch.zeros(rows, dtype=torch.int32, device=parameter.device)
        self._waiting = _Waiting(self._weights)

    def settle(self, rows: Tensor | None = None) -> None:
        """Draw what the given rows (or all of them) have gathered, in place, once."""
        if rows is None:
            due = torch.nonzero(self._since != self._past.now).squeeze(1)
        else:
            late = self._since[rows] != self._past.now
            due = rows if bool(late.all()) else rows[late]
        at_once = max(1, FLUSHED_AT_ONCE // max(1, self._weights[0].numel()))
        for part in torch.split(due, at_once):
            if len(part):
                self._release(part, self._waiting.take(part))

    def add(self, change: RowSparse, *, deviation: float, keep: float, factor: float = 1.0) -> None:
        """One step: ``factor`` · ``change``, and noise of this deviation when it is read."""
        self.settle(change.rows)
        if self._past.now == LONGEST_PAST:
            self.settle()
            self._since.zero_()
            self._past.begin_anew()
        factor /= keep  # what is kept of it is taken when it is read
        fits = len(change.rows) <= self._waiting.capacity
        if fits:
            evicted = self._waiting.in_the_way(len(change.rows))
            if len(evicted):
                self._release(evicted, self._waiting.take(evicted))
            self._waiting.put(change.rows, change.values, factor)
        self._past.step(deviation, keep)
        if not fits:
            self._release(change.rows, change.values * factor)

    def _release(self, rows: Tensor, change: Tensor | _Held) -> None:
        """Add the changes of these rows, and the noise of all steps since, to the weights."""
        self._require_own_process()
        kept, deviation = self._past.gathered(self._since[rows])

        def values(part: slice) -> Tensor:
            held = self._weights.index_select(0, rows[part]).double()
            if isinstance(change, Tensor):
                held.add_(change[part])
            else:
                change.add_to(held, part)
            return held if kept is None else held.mul_(_column(kept[part], held))

        if self._past.grid_width is None:
            self._weights.index_copy_(0, rows, values(slice(None)).to(self._weights.dtype))
        else:
            self._noise.release_rows(
                self._weights,
                rows,
                values,
                standard_deviation=deviation,
                grid_width=self._past.grid_width,
            )
        self._since[rows] = self._past.now

    def _require_own_process(self) -> None:
        if process() != self._process:
            raise ContractError(
                "Expected weights that wait for noise to be read in the process that trains them, "
                "found a fork of it, where they would be noised a second time. Read them, or end "
                "the run, before the fork."
            )


class _Past:
    """The public history of steps: for every s, what is kept since s and the noise since s."""

    def __init__(self, device: torch.device) -> None:
        self.grid_width: float | None = None
        self._smallest = math.inf
        self._decayed = False
        self._variance = torch.zeros(1024, dtype=torch.float64, device=device)
        self._kept = torch.ones_like(self._variance)
        self.now = 0

    def begin_anew(self) -> None:
        """Forget all steps."""
        self.now = 0
        self._variance.zero_()
        self._kept.fill_(1)

    def step(self, deviation: float, keep: float) -> None:
        """One more step for everything before it."""
        if deviation > 0:
            require(
                deviation >= SMALLEST_DEVIATION,
                f"noise in the weights of at least {SMALLEST_DEVIATION:g}",
                deviation,
                "Raise the learning rate.",
            )
            if deviation < self._smallest:
                self._smallest, self.grid_width = deviation, grid(deviation)
        if self.now + 1 == len(self._variance):
            self._variance = torch.cat([self._variance, torch.zeros_like(self._variance)])
            self._kept = torch.cat([self._kept, torch.ones_like(self._kept)])
        before = slice(0, self.now + 1)
        if keep != 1:
            self._decayed = True
            self._variance[before].mul_(keep**2)
            self._kept[before].mul_(keep)
        self._variance[before].add_(deviation**2)
        self.now += 1

    def gathered(self, since: Tensor) -> tuple[Tensor | None, Tensor]:
        """What is kept of rows that were settled at ``since``, and the deviation of their noise."""
        at = since.long()
        return self._kept[at] if self._decayed else None, self._variance[at].sqrt()


class _Held:
    """The changes of some rows, zero for those that have none waiting."""

    def __init__(self, values: Tensor, place: Tensor, factor: Tensor) -> None:
        self._values, self._place, self._factor = values, place, factor

    def add_to(self, values: Tensor, part: slice) -> None:
        """Add the changes of a part of the rows to their values."""
        found = self._values.index_select(0, self._place[part])
        values.addcmul_(found, _column(self._factor[part], found))


class _Waiting:
    """Changes in float64 that wait for their noise: of all rows, or the latest that fit."""

    def __init__(self, weights: Tensor) -> None:
        rows, width = len(weights), max(1, weights[0].numel())
        allowed = max(WAITING_BYTES, weights.numel() * weights.element_size() // 8)
        self.capacity = min(rows, max(1, allowed // (8 * width)))
        self._everywhere = self.capacity == rows
        self._values = weights.new_zeros((self.capacity, *weights.shape[1:]), dtype=torch.float64)
        self._factor = torch.zeros(self.capacity, dtype=torch.float64, device=weights.device)
        self._place = torch.full((rows,), -1, dtype=torch.int32, device=weights.device)
        self._owner = torch.full((self.capacity,), -1, dtype=torch.int32, device=weights.device)
        self._next = 0

    def take(self, rows: Tensor) -> _Held:
        """What waits for these rows; it does not wait any longer."""
        place = self._place[rows].long()
        somewhere = place.clamp_min(0)
        factor = torch.where(place >= 0, self._factor[somewhere], 0)
        self._place[rows] = -1
        return _Held(self._values, somewhere, factor)

    def in_the_way(self, count: int) -> Tensor:
        """Rows that must be taken before ``count`` others can be put."""
        if self._everywhere:
            return self._owner[:0].long()
        places = self._places(count)
        owners = self._owner[places].long()
        waiting = (owners >= 0) & (self._place[owners.clamp_min(0)] == places)
        return owners[waiting]

    def put(self, rows: Tensor, values: Tensor, factor: float) -> None:
        """Let ``factor`` · ``values`` wait for rows of which nothing waits yet."""
        places = rows if self._everywhere else self._places(len(rows))
        self._values.index_copy_(0, places, values)
        self._factor[places] = factor
        self._place[rows] = places.to(torch.int32)
        if not self._everywhere:
            self._owner[places] = rows.to(torch.int32)
            self._next = (self._next + len(rows)) % self.capacity

    def _places(self, count: int) -> Tensor:
        return (self._next + torch.arange(count, device=self._place.device)) % self.capacity


def _column(of_rows: Tensor, values: Tensor) -> Tensor:
    return of_rows.view(-1, *[1] * (values.ndim - 1))
