"""Noise that is drawn when a row of weights is read.

Step t of plain SGD does w_t = k_t w_{t-1} + Δ_t + c_t z_t to every row, with a public share k_t
that is kept (1 - α_t λ), a public c_t = α_t σ C / b, and a change Δ_t that is zero for rows which
the batch does not touch. A row that nothing reads between steps s and t is therefore

    w_t = (Π_t / Π_s) w_s + N(0, V_t - (Π_t / Π_s)² V_s),
    V_t = k_t² V_{t-1} + c_t²,   Π_t = k_t Π_{t-1},

and one draw just before the next read has the same law as t - s draws. So all that a row needs to
remember is s. The cost of a step is that of the rows it touches, not of the whole table.

*What is not noised yet stays here.* Changes wait in float64, in this room, for their noise; the
model's parameter holds nothing but released values, rounded to a public grid,

    g = 2^(⌊log2 min_j c_j⌋ - 10),

which is the same for all rows. A row that is read, or leaves, was noised at every step.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from adadps.noise import grid
from adadps.row_sparse import RowSparse
from adadps.types import Noise

WAITING_BYTES = 48 * 2**20
"""Memory for changes that wait for their noise, where an eighth of the weights is less."""

FLUSHED_AT_ONCE = 2**22
"""How many weights are noised at once when all of them are read."""


class LateRows:
    """One table of weights whose rows are noised when they are read."""

    def __init__(self, parameter: Tensor, axis: int, noise: Noise) -> None:
        self._weights = parameter.movedim(axis, 0)
        self._noise = noise
        self._past = _Past(parameter.device)
        self._since = torch.zeros(
            len(self._weights), dtype=torch.int32, device=parameter.device
        )  # the step up to which a row has its noise
        self._waiting = _Waiting(self._weights)
        self._fresh: tuple[Tensor, Tensor] | None = None

    def settle(self, rows: Tensor | None = None) -> None:
        """Draw what the given rows (or all of them) have gathered, in place, once."""
        if rows is None:
            rows = torch.nonzero(self._since != self._past.now).squeeze(1)
        due = self._due(rows)
        at_once = max(1, FLUSHED_AT_ONCE // max(1, self._weights[0].numel()))
        for part in torch.split(due, at_once) if len(due) > at_once else [due]:
            if len(part):
                self._fresh = (part, self._release(part, self._waiting.take(part)))

    def add(self, change: RowSparse, *, deviation: float, keep: float, factor: float = 1.0) -> None:
        """One step: ``factor`` · ``change``, and noise of this deviation when it is read."""
        self.settle(change.rows)
        values = self._values(change.rows).add_(change.values, alpha=factor / keep)
        fits = len(change.rows) <= self._waiting.capacity
        if fits:
            evicted = self._waiting.in_the_way(len(change.rows))
            if len(evicted):
                self._release(evicted, self._waiting.take(evicted))
            self._waiting.put(change.rows, values)
        self._past.step(deviation, keep)
        if not fits:
            self._release(change.rows, values)

    def _due(self, rows: Tensor) -> Tensor:
        due = self._since[rows] != self._past.now
        return rows if bool(due.all()) else rows[due]

    def _values(self, rows: Tensor) -> Tensor:
        """Settled rows in float64, in a tensor of its own."""
        fresh, self._fresh = self._fresh, None
        if fresh is not None and fresh[0] is rows:
            return fresh[1]
        return self._weights[rows].double()

    def _release(self, rows: Tensor, values: Tensor) -> Tensor:
        """Add the noise of all steps since; ``values`` is overwritten."""
        kept, deviation = self._past.gathered(self._since[rows])
        if kept is not None:
            values.mul_(kept.view(-1, *[1] * (values.ndim - 1)))
        released = self._noise.release(
            values, standard_deviation=deviation, grid_width=self._past.grid_width, out=values
        )
        self._weights.index_copy_(0, rows, released.to(self._weights.dtype))
        self._since[rows] = self._past.now
        return released


class _Past:
    """The public history of steps: V_t and log Π_t."""

    def __init__(self, device: torch.device) -> None:
        self.now = 0
        self.grid_width = 1.0
        self._decayed = False
        self._smallest = math.inf
        self._history = torch.zeros(2, 1024, dtype=torch.float64, device=device)
        self._last = (0.0, 0.0)

    def step(self, deviation: float, keep: float) -> None:
        variance, log_kept = self._last
        self._last = (keep**2 * variance + deviation**2, log_kept + math.log(keep))
        self._decayed |= keep != 1
        if 0 < deviation < self._smallest:
            self._smallest, self.grid_width = deviation, grid(deviation)
        self.now += 1
        if self.now == self._history.shape[1]:
            self._history = torch.cat([self._history, torch.zeros_like(self._history)], 1)
        self._history[:, self.now] = torch.tensor(self._last, dtype=torch.float64)

    def gathered(self, since: Tensor) -> tuple[Tensor | None, Tensor]:
        """What is left of a row, and the deviation of its noise, for rows settled at ``since``."""
        variance, log_kept = self._history[:, since.long()]
        if not self._decayed:
            return None, (self._last[0] - variance).clamp_min(0).sqrt()
        kept = (self._last[1] - log_kept).exp()
        return kept, (self._last[0] - kept.square() * variance).clamp_min(0).sqrt()


class _Waiting:
    """Rows in float64 that wait for their noise: all rows, or the latest that fit in memory."""

    def __init__(self, weights: Tensor) -> None:
        rows, width = len(weights), max(1, weights[0].numel())
        allowed = max(WAITING_BYTES, weights.numel() * weights.element_size() // 8)
        self.capacity = min(rows, allowed // (8 * width))
        self._everywhere = self.capacity == rows
        self._weights = weights
        self._values = weights.new_empty((self.capacity, *weights.shape[1:]), dtype=torch.float64)
        self._place = torch.full((rows,), -1, dtype=torch.int32, device=weights.device)
        self._owner = torch.full((self.capacity,), -1, dtype=torch.int32, device=weights.device)
        self._next = 0

    def take(self, rows: Tensor) -> Tensor:
        """The rows in float64, from here or from the weights; they do not wait any longer."""
        place = self._place[rows].long()
        here = place >= 0
        self._place[rows] = -1
        if bool(here.all()):
            return self._values[place]
        values = self._weights[rows].double()
        values[here] = self._values[place[here]]
        return values

    def in_the_way(self, count: int) -> Tensor:
        """Rows that must be taken before ``count`` others can be put."""
        if self._everywhere:
            return self._owner[:0].long()
        places = self._places(count)
        owners = self._owner[places].long()
        waiting = (owners >= 0) & (self._place[owners.clamp_min(0)] == places)
        return owners[waiting]

    def put(self, rows: Tensor, values: Tensor) -> None:
        """Let rows wait that do not wait yet."""
        places = rows if self._everywhere else self._places(len(rows))
        self._values.index_copy_(0, places, values)
        self._place[rows] = places.to(torch.int32)
        if not self._everywhere:
            self._owner[places] = rows.to(torch.int32)
            self._next = (self._next + len(rows)) % self.capacity

    def _places(self, count: int) -> Tensor:
        return (self._next + torch.arange(count, device=self._place.device)) % self.capacity
