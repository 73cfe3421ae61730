"""Which rows a step sees: drawn by the sampler, put into groups, without those that are public."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from adadps.data.examples import Examples
from adadps.data.overlap import private_rows
from adadps.errors import DataError
from adadps.gradients.waist import Units
from adadps.noise import Randomness
from adadps.sampling import Rows, Sampler
from adadps.stages.chain import Chain


@dataclass(frozen=True)
class Batch:
    """A drawn batch. Its content stays inside the run that drew it."""

    run: str
    index: int


@dataclass(frozen=True)
class Drawn:
    """The rows of a batch, and the groups they belong to, if there are any."""

    batch: Batch
    rows: Tensor
    units: Units | None


class Drawing:
    """Draws one batch after the other."""

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
        self._batches = self._begin(len(data), units)
        self._is_private = private_rows(data, method.public_rows)
        self._all_private = bool(self._is_private.all())

    def next(self, batch: Batch) -> Drawn:
        """The rows of a batch; they may be none."""
        drawn: Rows = next(self._batches)
        units = None
        if self._groups:
            rng, size = self._randomness.generator, self._sampler.expected_size
            drawn, units = self._groups.expand(drawn, size, rng)
        rows = torch.from_numpy(drawn)
        if self._all_private:
            return Drawn(batch, rows, units)
        kept = self._is_private[rows]
        return Drawn(batch, rows[kept], units.take(kept) if units else None)

    def _begin(self, size: int, units: Sampler) -> Iterator[Rows]:
        """Check the number of units against the declared one, and begin."""
        if self._groups is not None and units is not self._sampler:
            if size != self._sampler.examples:
                raise DataError(
                    f"Expected the {self._sampler.examples} declared examples for groups fixed in "
                    f"advance, found {size}. Declare the true number."
                )
            size //= self._groups.size
        units.require_declared(size)
        return units.batches(size, self._randomness.generator)
