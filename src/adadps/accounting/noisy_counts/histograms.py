"""Noisy histograms: the names that occur in a column, and the range of the numbers in one.

Names: a name is released if its noisy count is above a threshold (`Price.threshold`).

Numbers: bounds come from noisy counts on a public dyadic grid, which is the same for all data:
octaves ±[2^e, 2^(e+1)) for e from -20 to 40, one bin for everything closer to zero, and every
octave cut into sixteen parts. A number is counted in its octave and in its sixteenth. The bounds
are the outermost octaves whose noisy count stands out from the noise, and within these the
outermost sixteenths that do. They are quantiles: beyond a bound, each octave holds fewer numbers
than the noise hides, and those numbers are clipped to the bound, row by row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from adadps.accounting.noisy_counts.price import OCCUPIED, Price
from adadps.engine.noise.randomness import Randomness

Name = TypeVar("Name", bound=Hashable)


@dataclass
class NameCounts(Generic[Name]):
    """The number of units with each name in one column; a unit has at most one name."""

    counts: Counter[Name] = field(default_factory=Counter)

    def add(self, names: Iterable[Name]) -> None:
        """Count the given names, each of a different unit."""
        self.counts.update(names)

    def release(self, price: Price, randomness: Randomness) -> list[Name]:
        """Return the names whose noisy count is above τ.

        Names that do not occur get no noise. A name that a single unit has differs from those only
        if it passes τ, and δ_τ was paid for that.
        """
        if not self.counts:
            return []
        held = torch.tensor(list(self.counts.values()), dtype=torch.float64)
        noisy = randomness.release(held, standard_deviation=price.deviation)
        above = (noisy > price.threshold).tolist()
        return [name for name, passes in zip(self.counts, above, strict=True) if passes]


Numbers = npt.NDArray[np.float64]
LOWEST, HIGHEST, PARTS = -20, 40, 16
OCTAVES = HIGHEST - LOWEST + 1
PLACES = 2 * OCTAVES + 1
"""All bins, from the most negative octave through zero to the most positive one."""
OCCUPIED_PART = 3.0
"""A sixteenth counts as occupied this many standard deviations of the noise above 0. One of 32
empty sixteenths looks occupied with probability 4 %, which only widens the bounds up to the whole
octave."""
NEAR_ZERO = 2.0**LOWEST
NEAR = 1 / 8
"""A bound closer to zero than this share of the other one becomes zero: smaller numbers are spread
over ever more octaves, with ever fewer in each."""


@dataclass
class OctaveCounts:
    """The number of values of a column in each octave, and in each sixteenth of an octave.

    >>> counts = OctaveCounts()
    >>> counts.add(np.array([0.0, 1.0, 1.99, -3.0]))
    >>> [int(one) for one in (counts.octaves[OCTAVES], counts.octaves.sum(), counts.parts.sum())]
    [1, 4, 3]
    """

    octaves: Numbers = field(default_factory=lambda: np.zeros(PLACES))
    parts: Numbers = field(default_factory=lambda: np.zeros((PLACES, PARTS)))

    def add(self, values: Numbers) -> None:
        """Count the given numbers; NaN is not counted."""
        given = values[~np.isnan(values)]
        places, parts = places_of(given)
        np.add.at(self.octaves, places, 1.0)
        apart = places != OCTAVES
        np.add.at(self.parts, (places[apart], parts[apart]), 1.0)

    def release(self, deviation: float, randomness: Randomness) -> tuple[float, float] | None:
        """Return bounds from noisy counts, or None if no count stands out from the noise."""
        counts = torch.from_numpy(np.concatenate([self.octaves, self.parts.ravel()]))
        noisy = randomness.release(counts, standard_deviation=deviation).numpy()
        return bounds_of(noisy[:PLACES], noisy[PLACES:].reshape(PLACES, PARTS), deviation)


def places_of(
    values: Numbers,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the octave of each number and its sixteenth within it, both counted from zero.

    >>> [place.tolist() for place in places_of(np.array([0.0, 1.0, -1.5, 1e30]))]
    [[61, 82, 40, 122], [0, 0, 8, 15]]
    """
    mantissas, exponents = np.frexp(np.abs(values))
    octave = exponents.astype(np.int64) - 1 - LOWEST
    part = np.floor((2 * mantissas - 1) * PARTS).astype(np.int64)
    part = np.where(octave >= OCTAVES, PARTS - 1, part)  # larger numbers go into the last one
    octave = np.minimum(octave, OCTAVES - 1)
    away = (octave >= 0) & (values != 0)
    place = np.where(values > 0, OCTAVES + 1 + octave, OCTAVES - 1 - octave)
    return np.where(away, place, OCTAVES), np.where(away, part, 0)


def bounds_of(octaves: Numbers, parts: Numbers, deviation: float) -> tuple[float, float] | None:
    """Return the outermost edges of the bins that stand out from noise of this deviation.

    >>> octaves, parts = np.zeros(PLACES), np.zeros((PLACES, PARTS))
    >>> octaves[[OCTAVES, OCTAVES + 1 - LOWEST + 3]] = 100.0  # zero, and 8 to 16
    >>> parts[OCTAVES + 1 - LOWEST + 3, 7] = 90.0  # 8 + 7/16 of 8, to 8 + 8/16 of 8
    >>> bounds_of(octaves, parts, deviation=1.0)
    (0.0, 12.0)
    """
    there = np.flatnonzero(octaves > OCCUPIED * deviation)
    if not len(there):
        return None
    low = _edges(int(there[0]), parts, deviation)[0]
    high = _edges(int(there[-1]), parts, deviation)[1]
    if low == high:
        return -NEAR_ZERO, NEAR_ZERO
    low = 0.0 if 0 < low <= high * NEAR else low
    high = 0.0 if low * NEAR <= high < 0 else high
    return low, high


def _edges(place: int, parts: Numbers, deviation: float) -> tuple[float, float]:
    """Return the range of the occupied sixteenths of an octave, or all of it if none is."""
    if place == OCTAVES:
        return 0.0, 0.0
    there = np.flatnonzero(parts[place] > OCCUPIED_PART * deviation)
    first, last = (int(there[0]), int(there[-1]) + 1) if len(there) else (0, PARTS)
    start = 2.0 ** (LOWEST + abs(place - OCTAVES) - 1)
    near, far = start * (1 + first / PARTS), start * (1 + last / PARTS)
    return (near, far) if place > OCTAVES else (-far, -near)
