"""Which rows a step sees: drawn by the sampler, put into groups, without those that are public.

Where users are drawn, each brings rows that are not public; otherwise public rows are left out
after the draw.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from adadps.accounting.groups import Groups
from adadps.accounting.samplers import Rows, Sampler
from adadps.data.examples import Examples
from adadps.data.overlap import private_rows
from adadps.data.users import UserRows
from adadps.engine.noise.randomness import Randomness
from adadps.engine.waist import Units
from adadps.errors import DataError
from adadps.methods.stages.chain import Chain
from adadps.methods.stages.users import Users


@dataclass(frozen=True)
class Batch:
    """A drawn batch. Its content stays inside the run that drew it."""

    run: str
    index: int
    life: str = ""
    """Identifies the process that drew it: a resumed run draws another batch of the same index."""


@dataclass(frozen=True)
class DrawnRows:
    """The rows of a batch, and the groups or users that are clipped as one, if any."""

    batch: Batch
    rows: Tensor
    units: Units | None


class Batches:
    """Draws one batch after another."""

    def __init__(
        self,
        data: Examples,
        *,
        method: Chain,
        sampler: Sampler,
        units: Sampler,
        randomness: Randomness,
    ) -> None:
        self._groups = method.release.groups
        self._sampler, self._randomness = sampler, randomness
        self._is_private = private_rows(data, method.public_rows)
        self._all_private = bool(self._is_private.all())
        self._users: UserRows | None = None
        if isinstance(self._groups, Users) and data.users is not None:
            self._users = UserRows(data.users, self._is_private)
        self._batches = self._begin(len(data), units)

    def next(self, batch: Batch) -> DrawnRows:
        """Draw the rows of a batch; there may be none."""
        drawn: Rows = next(self._batches)
        units, rng = None, self._randomness.generator
        if isinstance(self._groups, Users):
            assert self._users is not None  # a method by user has asked for them
            drawn, units = self._groups.expand(drawn, self._users, rng)
            return DrawnRows(batch, torch.from_numpy(drawn), units)
        if self._groups:
            size = self._sampler.expected_size
            drawn, labels, count = self._groups.labels(drawn, size, rng)
            units = Units(torch.from_numpy(labels), count, 1 / self._groups.size)
        rows = torch.from_numpy(drawn)
        if self._all_private:
            return DrawnRows(batch, rows, units)
        kept = self._is_private[rows]
        return DrawnRows(batch, rows[kept], units.take(kept) if units else None)

    def _begin(self, size: int, units: Sampler) -> Iterator[Rows]:
        """Check the number of units against the declared one, and start the sampler."""
        if self._users is not None:
            size = self._users.count
        elif isinstance(self._groups, Groups) and units is not self._sampler:
            if size != self._sampler.examples:
                raise DataError(
                    f"Expected the {self._sampler.examples} declared examples for groups fixed in "
                    f"advance, found {size}. Declare the true number."
                )
            size //= self._groups.size
        units.require_declared(size)
        return units.batches(size, self._randomness.generator)
