"""Samplers: each draws batches *and* states the privacy event of drawing them this way.

=============  ==================  ===========================================================
sampler        relation            event for a sum clipped at C with noise σC
=============  ==================  ===========================================================
`poisson`      add/remove, zero    PoissonSampled(q, Gaussian(σ))
`poisson`      replace one         PoissonSampled(q, Gaussian(σ)), PLD only
`fixed_size`   replace one         SampledWithoutReplacement(n, b, Gaussian(σ/2)), RDP only
`shuffled`     zero out            Gaussian(σ) once per started epoch, no amplification
`shuffled`     replace one         PLD: Gaussian(σ); RDP: Gaussian(σ/2); per started epoch
=============  ==================  ===========================================================

The factors of two are in `adadps.accounting.contract`. The number n of units, examples or users, is
*declared* by the caller and public; q = b/n, the number of steps and the normaliser b follow from
it, never from the data. With ``users=`` instead of ``examples=``, all numbers count users, who are
drawn with all their rows: the table is the same.

A new sampler is a subclass of `Sampler` with `batches` and `amplify`, a member of `Sampling`, and
its rows in the contract. tests/contract/test_contract_table.py and
tests/statistical/test_samplers.py run the shared checks.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from dp_accounting import (
    DpEvent,
    GaussianDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)

from adadps.accounting.contract import (
    Grouping,
    Sampling,
    accountants,
    noise_divisor,
    require_relation,
    require_unit,
)
from adadps.errors import ContractError, DataError, SettingError, require
from adadps.types import Accountant, Relation, Unit

Rows = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True, kw_only=True)
class Sampler(ABC):
    """Draws batches of units and prices them; ``examples`` is the declared number of units."""

    examples: int
    expected_size: float
    relation: Relation
    unit: Unit = Unit.EXAMPLE
    sampling: ClassVar[Sampling]
    usual_relation: ClassVar[Relation]
    size_is_fixed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        units = f"{self.unit.value}s"
        require(self.examples >= 1, f"{units} >= 1", self.examples, "Declare their number.")
        require(
            0 < self.expected_size <= self.examples,
            f"a batch size between 0 and the {self.examples} {units}",
            self.expected_size,
            f"Choose a smaller batch, or check the declared number of {units}.",
        )
        require_relation(self.sampling, self.relation)

    def require_declared(self, size: int) -> None:
        """Refuse data whose size is not the declared one, where the guarantee depends on it."""
        if self.size_is_fixed and size != self.examples:
            units = "users" if self.unit is Unit.USER else "units"  # which may be groups
            raise DataError(
                f"Expected the {self.examples} declared {units}, found {size}. Under "
                f"{self.sampling.value} sampling their number is part of the guarantee: declare "
                "the true number, or use Poisson sampling."
            )

    @abstractmethod
    def batches(self, size: int, rng: np.random.Generator) -> Iterator[Rows]:
        """Yield batches of row numbers below ``size``, without end."""

    @abstractmethod
    def amplify(self, event: DpEvent, index: int) -> DpEvent:
        """Return the price of step ``index`` = 1, 2, ... if its release alone is ``event``."""

    def accountants(self, grouping: Grouping) -> tuple[Accountant, ...]:
        """Return the accountants that apply to this sampler, the default one first."""
        require_unit(self.unit, grouping)
        return tuple(accountants(self.sampling, self.relation, grouping))

    @property
    def alone(self) -> Grouping:
        """The default grouping: each unit is clipped by itself."""
        return Grouping.USERS if self.unit is Unit.USER else Grouping.NONE

    def step_event(
        self, noise_multiplier: float, index: int, accountant: Accountant, grouping: Grouping
    ) -> DpEvent:
        """Return the event that the ledger is charged with for step ``index``."""
        require_unit(self.unit, grouping)
        divisor = noise_divisor(self.sampling, self.relation, grouping, accountant)
        return self.amplify(GaussianDpEvent(noise_multiplier / divisor), index)

    def run_event(
        self, noise_multiplier: float, steps: int, accountant: Accountant, grouping: Grouping
    ) -> DpEvent:
        """Return the event of the steps 1, ..., ``steps`` together."""
        charged = self.charged_steps(steps)
        if charged == 0:
            return NoOpDpEvent()
        return SelfComposedDpEvent(
            self.step_event(noise_multiplier, 1, accountant, grouping), charged
        )

    def charged_steps(self, steps: int) -> int:
        """Return how many of ``steps`` steps are charged."""
        return steps

    @property
    def steps_per_epoch(self) -> int:
        """How many steps share one pass over the units: 1 if every batch is drawn afresh."""
        return 1

    @property
    def smallest_batch(self) -> float:
        """The size of the smallest batch; for Poisson sampling, the expected size."""
        return self.expected_size

    def steps(self, epochs: float) -> int:
        """Return ⌊epochs · n / b⌋, from the declared numbers.

        >>> poisson(examples=25_000, expected_size=64).steps(32)
        12500
        """
        fits = 0 < epochs < math.inf
        require(fits, "a finite number of epochs > 0", epochs, "Train for at least one step.")
        return max(1, math.floor(epochs * self.examples / self.expected_size + 1e-9))

    def grouped(self, group_size: int) -> Sampler:
        """Return the same sampler over groups of ``group_size`` examples."""
        if self.examples % group_size:
            raise ContractError(
                f"Expected a declared number of examples that is a multiple of the group size "
                f"{group_size}, found {self.examples}. Drop the remainder before training, or use "
                "groups by label."
            )
        return replace(
            self,
            examples=self.examples // group_size,
            expected_size=self.expected_size / group_size,
        )

    def describe(self) -> dict[str, object]:
        """Describe the sampler, as on the privacy card."""
        return {
            "sampling": self.sampling.value,
            "relation": self.relation.value,
            f"{self.unit.value}s": self.examples,
            "expected_size": self.expected_size,
        }


class Poisson(Sampler):
    """Every unit joins every batch independently with probability q."""

    sampling = Sampling.POISSON
    usual_relation = Relation.ADD_OR_REMOVE_ONE
    size_is_fixed = False

    @property
    def rate(self) -> float:
        """The sampling probability q = b / n."""
        return self.expected_size / self.examples

    def batches(self, size: int, rng: np.random.Generator) -> Iterator[Rows]:
        """Flip an independent coin for every unit; a batch may be empty.

        The number of heads is drawn first, then a uniform subset of that size: the same law, at a
        cost that depends on the batch and not on the data.
        """
        while True:
            heads = rng.binomial(size, self.rate)
            yield np.sort(rng.choice(size, heads, replace=False, shuffle=False))

    def amplify(self, event: DpEvent, index: int) -> DpEvent:  # noqa: ARG002
        """Return PoissonSampled(q, event)."""
        return PoissonSampledDpEvent(self.rate, event)


class FixedSize(Sampler):
    """Every batch is a fresh uniform subset of b units."""

    sampling = Sampling.FIXED
    usual_relation = Relation.REPLACE_ONE

    def __post_init__(self) -> None:
        _require_whole(self.expected_size)
        super().__post_init__()

    def batches(self, size: int, rng: np.random.Generator) -> Iterator[Rows]:
        """Draw uniform subsets without replacement."""
        self.require_declared(size)
        while True:
            yield rng.choice(size, int(self.expected_size), replace=False, shuffle=False)

    def amplify(self, event: DpEvent, index: int) -> DpEvent:  # noqa: ARG002
        """Return SampledWithoutReplacement(n, b, event)."""
        return SampledWithoutReplacementDpEvent(self.examples, int(self.expected_size), event)


class Shuffled(Sampler):
    """Every epoch passes once through the units in a fresh random order, in batches of b."""

    sampling = Sampling.SHUFFLED
    usual_relation = Relation.ZERO_OUT

    def __post_init__(self) -> None:
        _require_whole(self.expected_size)
        super().__post_init__()

    @property
    def steps_per_epoch(self) -> int:
        """⌈n / b⌉: the last batch of an epoch may be smaller."""
        return math.ceil(self.examples / self.expected_size)

    @property
    def smallest_batch(self) -> float:
        """The size of the last batch of an epoch."""
        return self.examples % self.expected_size or self.expected_size

    def batches(self, size: int, rng: np.random.Generator) -> Iterator[Rows]:
        """Cut a permutation into consecutive slices, with a new permutation each epoch."""
        self.require_declared(size)
        batch = int(self.expected_size)
        while True:
            order = rng.permutation(size)
            for start in range(0, size, batch):
                yield order[start : start + batch]

    def amplify(self, event: DpEvent, index: int) -> DpEvent:
        """Return the event at the first step of an epoch; the other steps compose in parallel."""
        return event if (index - 1) % self.steps_per_epoch == 0 else NoOpDpEvent()

    def charged_steps(self, steps: int) -> int:
        """Return the number of started epochs."""
        return math.ceil(steps / self.steps_per_epoch)


SAMPLERS: dict[Sampling, type[Sampler]] = {
    kind.sampling: kind for kind in (Poisson, FixedSize, Shuffled)
}
"""Every sampler, by the name under which plans and cards record it."""


def poisson(
    *,
    examples: int | None = None,
    users: int | None = None,
    expected_size: float,
    relation: Relation = Poisson.usual_relation,
) -> Poisson:
    """Sample by independent coin flips at rate q = expected_size / examples, the default.

    With ``users``, the sampler draws users, for `privatize(..., groups=by_user(most=...))`, and
    ``expected_size`` is a number of users.

    >>> poisson(examples=1000, expected_size=8).rate, poisson(users=1000, expected_size=8).unit
    (0.008, <Unit.USER: 'user'>)
    """
    count, unit = declared_units(examples, users)
    return Poisson(examples=count, expected_size=expected_size, relation=relation, unit=unit)


def fixed_size(
    *, examples: int | None = None, users: int | None = None, expected_size: int
) -> FixedSize:
    """Sample uniform batches of exactly ``expected_size`` examples (or users).

    >>> fixed_size(examples=1000, expected_size=8).relation
    <Relation.REPLACE_ONE: 'replace one'>
    """
    count, unit = declared_units(examples, users)
    relation = FixedSize.usual_relation
    return FixedSize(examples=count, expected_size=expected_size, relation=relation, unit=unit)


def shuffled(
    *,
    examples: int | None = None,
    users: int | None = None,
    expected_size: int,
    relation: Relation = Shuffled.usual_relation,
) -> Shuffled:
    """Pass through a fresh random order each epoch; charged without amplification.

    >>> shuffled(examples=1000, expected_size=300).steps_per_epoch
    4
    """
    count, unit = declared_units(examples, users)
    return Shuffled(examples=count, expected_size=expected_size, relation=relation, unit=unit)


def declared_units(examples: int | None, users: int | None) -> tuple[int, Unit]:
    """Return the declared number of units, and their kind."""
    if examples is not None and users is None:
        return examples, Unit.EXAMPLE
    if users is not None and examples is None:
        return users, Unit.USER
    raise SettingError(
        "Expected a declared number of either examples or users, found both or none. Give `users=` "
        "if epsilon is to protect users, else `examples=`."
    )


def _require_whole(expected_size: float) -> None:
    require(
        float(expected_size).is_integer(),
        "a whole batch size",
        expected_size,
        "Only Poisson sampling allows fractional expected sizes.",
    )
