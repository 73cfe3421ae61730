"""What accounting asks of a method: what is released, with how much noise, and at what cost."""

from __future__ import annotations

from typing import Protocol

from dp_accounting import DpEvent

from adadps.accounting.contract import Grouping
from adadps.accounting.samplers import Sampler
from adadps.types import Accountant, Relation


class ClippedAsOne(Protocol):
    """Examples that are clipped as one: groups, or the rows of a user."""

    @property
    def grouping(self) -> Grouping:
        """The row of the contract that prices them."""

    @property
    def unit(self) -> str:
        """Whose data epsilon protects."""

    def units_of(self, sampler: Sampler) -> Sampler:
        """The sampler as it draws these units."""


class ReleasedSum(Protocol):
    """The noisy sum of clipped gradients."""

    @property
    def noise_multiplier(self) -> float:
        """σ: the standard deviation of the noise divided by the clip norm."""

    @property
    def groups(self) -> ClippedAsOne | None:
        """Examples that are clipped as one; None if each is clipped alone."""


class Accounted(Protocol):
    """A method, as far as its price goes; every `Chain` is one."""

    @property
    def release(self) -> ReleasedSum:
        """What is released at every step."""

    @property
    def exposures(self) -> tuple[str, ...]:
        """Why it is not private; empty if it is."""

    def side_events(self, relation: Relation, accountant: Accountant) -> tuple[DpEvent, ...]:
        """What its side information costs."""
