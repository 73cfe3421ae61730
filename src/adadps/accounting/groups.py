"""Groups of examples that are clipped as one (microbatches).

A group's gradient is the sum of its examples' gradients divided by the public group size k, so that
without clipping nothing changes. How groups are charged: `adadps.accounting.contract`.
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
        require(self.size >= 1, "a group size of at least 1", self.size, "Leave groups out for 1.")
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
        """Whose data epsilon protects: groups are a way to clip, not a way to protect."""
        return Unit.EXAMPLE.value

    def expected_units(self, expected_size: float) -> float:
        """The normaliser: how many units a batch of the sampler has."""
        return expected_size / self.size

    def units_of(self, sampler: Sampler) -> Sampler:
        """What the sampler draws: examples, or groups that were fixed in advance."""
        return sampler.grouped(self.size) if self.grouping is Grouping.IN_ADVANCE else sampler

    def labels(
        self, drawn: Rows, expected_size: float, rng: np.random.Generator
    ) -> tuple[Rows, Rows, int]:
        """Rows of the batch, the group of each, and how many groups there are."""
        if self.grouping is Grouping.IN_ADVANCE:
            rows = (drawn[:, None] * self.size + np.arange(self.size)).ravel()
            return rows, np.repeat(np.arange(len(drawn)), self.size), len(drawn)
        count = math.ceil(expected_size / self.size)
        return drawn, rng.integers(count, size=len(drawn)), count


def by_label(size: int) -> Groups:
    """Each drawn example gets one of ⌈b/k⌉ labels, independently of all others.

    One example moves one group, whose clipped gradient can turn around: sensitivity 2C.
    """
    return Groups(size, Grouping.LABELLED)


def in_advance(size: int) -> Groups:
    """Rows 0..k-1, k..2k-1, ... are groups before any drawing; the sampler draws whole groups.

    The guarantee is for replacing one group, hence any one example in it.
    """
    return Groups(size, Grouping.IN_ADVANCE)


def by_position(size: int) -> Groups:
    """Refused: groups cut by position in a random batch have no useful guarantee."""
    raise ContractError(
        f"Expected groups that do not depend on the other examples, found groups of {size} by "
        "position in the batch: one added example shifts all later groups, so the sum can move by "
        "many C. Use `by_label` or `in_advance` (--group-by label or advance)."
    )
