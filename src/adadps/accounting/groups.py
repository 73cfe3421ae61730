"""Groups of examples that are clipped as one (microbatches).

The gradient of a group is the sum of its examples' gradients divided by the public group size k, so
that nothing changes without clipping. `adadps.accounting.contract` says how groups are charged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from adadps.accounting.contract import Grouping
from adadps.accounting.samplers import Rows, Sampler
from adadps.errors import ContractError, require
from adadps.types import Unit


@dataclass(frozen=True)
class Groups:
    """Groups of about ``size`` examples. Build it with `by_label` or `in_advance`."""

    size: int
    grouping: Grouping

    def __post_init__(self) -> None:
        require(self.size >= 1, "a group size of at least 1", self.size, "Leave out groups of 1.")
        require(
            self.grouping in (Grouping.LABELLED, Grouping.IN_ADVANCE),
            "groups with a known price",
            self.grouping.value,
            "Build them with `by_label` or `in_advance`; users with `by_user`.",
        )

    def __str__(self) -> str:
        return f"{self.grouping.value} of {self.size}"

    @property
    def unit(self) -> str:
        """The unit of privacy: grouping changes what is clipped, not who is protected."""
        return Unit.EXAMPLE.value

    def expected_units(self, expected_size: float) -> float:
        """Return the normaliser: the expected number of units in a batch of the sampler."""
        return expected_size / self.size

    def units_of(self, sampler: Sampler) -> Sampler:
        """Return the sampler of the units: examples, or groups that were fixed in advance."""
        return sampler.grouped(self.size) if self.grouping is Grouping.IN_ADVANCE else sampler

    def labels(
        self, drawn: Rows, expected_size: float, rng: np.random.Generator
    ) -> tuple[Rows, Rows, int]:
        """Return the rows of the batch, the group of each row, and the number of groups."""
        if self.grouping is Grouping.IN_ADVANCE:
            rows = (drawn[:, None] * self.size + np.arange(self.size)).ravel()
            return rows, np.repeat(np.arange(len(drawn)), self.size), len(drawn)
        count = math.ceil(expected_size / self.size)
        return drawn, rng.integers(count, size=len(drawn)), count


def by_label(size: int) -> Groups:
    """Give each drawn example one of ⌈b/k⌉ labels, independently of all others.

    One example changes one group, whose clipped gradient can be reversed: the sensitivity is 2C.
    """
    return Groups(size, Grouping.LABELLED)


def in_advance(size: int) -> Groups:
    """Group rows 0..k-1, k..2k-1, ... before any sampling; the sampler draws whole groups.

    The guarantee is for replacing one group, and therefore any example in it.
    """
    return Groups(size, Grouping.IN_ADVANCE)


def by_position(size: int) -> Groups:
    """Refuse: groups by position in a random batch have no useful guarantee."""
    raise ContractError(
        f"Expected groups that do not depend on the other examples, found groups of {size} by "
        "position in the batch: one added example shifts all later groups, so the sum can move by "
        "many times C. Use `by_label` or `in_advance` (--group-by label or advance)."
    )
