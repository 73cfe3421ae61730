"""The privacy contract: one table owns every factor of two.

`privatize` clips each unit to C and adds noise of standard deviation σC, so a sum that one unit can
move by C is a Gaussian event with noise multiplier σ. How far the sum can move between
*neighbouring* data sets depends on sampler, relation and grouping. The divisor of the noise
multiplier that accounts for this is defined here and nowhere else. Combinations that are not in the
table are refused.

docs/privacy-contract.md explains every row.
"""

from __future__ import annotations

import math
from enum import Enum

from adadps.errors import ContractError
from adadps.types import Accountant, Relation, Unit

_ADD, _ZERO, _REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.ZERO_OUT, Relation.REPLACE_ONE
_PLD, _RDP = Accountant.PLD, Accountant.RDP


class Sampling(Enum):
    """How a batch is drawn."""

    POISSON = "poisson"
    FIXED = "fixed"
    SHUFFLED = "shuffled"


class Grouping(Enum):
    """What is clipped: one example, a group of examples, or the contribution of a user."""

    NONE = "each example alone"
    LABELLED = "groups by independent label"
    IN_ADVANCE = "groups fixed in advance"
    USERS = "each user as one"
    USERS_IN_SHARES = "each user as one, with noise in shares"
    USERS_ALONE = "each user as one, with noise by each device"

    @property
    def by_user(self) -> bool:
        """Whether the contribution of a user is clipped as one."""
        return self in (Grouping.USERS, Grouping.USERS_IN_SHARES, Grouping.USERS_ALONE)


# (sampling, relation, grouping): {accountant: divisor of the noise multiplier}
# dp-accounting's PLD doubles the sensitivity for replace-one by itself, its RDP does not.
TABLE: dict[tuple[Sampling, Relation, Grouping], dict[Accountant, int]] = {
    (Sampling.POISSON, _ADD, Grouping.NONE): {_PLD: 1, _RDP: 1},
    (Sampling.POISSON, _ZERO, Grouping.NONE): {_PLD: 1, _RDP: 1},
    (Sampling.POISSON, _REPLACE, Grouping.NONE): {_PLD: 1},
    (Sampling.POISSON, _ADD, Grouping.LABELLED): {_PLD: 2, _RDP: 2},
    (Sampling.POISSON, _ZERO, Grouping.LABELLED): {_PLD: 2, _RDP: 2},
    (Sampling.POISSON, _REPLACE, Grouping.IN_ADVANCE): {_PLD: 1},
    (Sampling.FIXED, _REPLACE, Grouping.NONE): {_RDP: 2},
    (Sampling.FIXED, _REPLACE, Grouping.LABELLED): {_RDP: 2},
    (Sampling.SHUFFLED, _ZERO, Grouping.NONE): {_PLD: 1, _RDP: 1},
    (Sampling.SHUFFLED, _ZERO, Grouping.LABELLED): {_PLD: 2, _RDP: 2},
    (Sampling.SHUFFLED, _REPLACE, Grouping.NONE): {_PLD: 1, _RDP: 2},
    (Sampling.SHUFFLED, _REPLACE, Grouping.LABELLED): {_PLD: 1, _RDP: 2},
    # users are drawn, and their contribution depends on that user alone: as single examples
    (Sampling.POISSON, _ADD, Grouping.USERS): {_PLD: 1, _RDP: 1},
    (Sampling.POISSON, _ZERO, Grouping.USERS): {_PLD: 1, _RDP: 1},
    (Sampling.POISSON, _REPLACE, Grouping.USERS): {_PLD: 1},
    (Sampling.FIXED, _REPLACE, Grouping.USERS): {_RDP: 2},
    (Sampling.SHUFFLED, _ZERO, Grouping.USERS): {_PLD: 1, _RDP: 1},
    (Sampling.SHUFFLED, _REPLACE, Grouping.USERS): {_PLD: 1, _RDP: 2},
    # noise in shares: its amount depends on which members of a cohort answer, so two cohorts are
    # not two sums with the same noise, and sampling amplifies nothing: paid per participation
    (Sampling.SHUFFLED, _ZERO, Grouping.USERS_IN_SHARES): {_PLD: 1, _RDP: 1},
    (Sampling.SHUFFLED, _REPLACE, Grouping.USERS_IN_SHARES): {_PLD: 1, _RDP: 2},
    # noise by each device: the server sees who answers, so every participation is paid for
    (Sampling.SHUFFLED, _ZERO, Grouping.USERS_ALONE): {_PLD: 1, _RDP: 1},
    (Sampling.SHUFFLED, _REPLACE, Grouping.USERS_ALONE): {_PLD: 1, _RDP: 2},
}

# relation: {accountant: divisor of the noise multiplier} of one sum over all examples, each clipped
# alone and none sampled, so that nothing is amplified: this prices measured side information.
ALL_EXAMPLES: dict[Relation, dict[Accountant, int]] = {
    _ADD: {_PLD: 1, _RDP: 1},
    _ZERO: {_PLD: 1, _RDP: 1},
    _REPLACE: {_PLD: 1, _RDP: 2},
}

# relation: {accountant: divisor} of a histogram to which every unit adds 1 in one bin of each of k
# tables: it moves by √k if a unit is added or removed, and by √(2k) if one is replaced. That is not
# 2√k, because the old and the new bin differ. PLD doubles the sensitivity by itself.
HISTOGRAM: dict[Relation, dict[Accountant, float]] = {
    _ADD: {_PLD: 1.0, _RDP: 1.0},
    _ZERO: {_PLD: 1.0, _RDP: 1.0},
    _REPLACE: {_PLD: math.sqrt(0.5), _RDP: math.sqrt(2.0)},
}


def accountants(
    sampling: Sampling, relation: Relation, grouping: Grouping
) -> dict[Accountant, int]:
    """Return the accountants that apply, each with its divisor of the noise multiplier.

    >>> accountants(Sampling.FIXED, Relation.REPLACE_ONE, Grouping.NONE)
    {<Accountant.RDP: 'rdp'>: 2}
    """
    if (sampling, relation, grouping) not in TABLE:
        fits = ", ".join(
            f"'{known_relation.value}' with {known_grouping.value}"
            for known, known_relation, known_grouping in TABLE
            if known is sampling
        )
        raise ContractError(
            f"Expected a combination with a known guarantee for {sampling.value} sampling "
            f"({fits}), found '{relation.value}' with {grouping.value}. Choose one of those."
        )
    return TABLE[sampling, relation, grouping]


def noise_divisor(
    sampling: Sampling, relation: Relation, grouping: Grouping, accountant: Accountant
) -> int:
    """Return the number by which the noise multiplier is divided before accounting."""
    fits = accountants(sampling, relation, grouping)
    if accountant not in fits:
        names = " or ".join(known.value for known in fits)
        raise ContractError(
            f"Expected the accountant {names} for {sampling.value} sampling under "
            f"'{relation.value}' with {grouping.value}, found {accountant.value}. Use {names}."
        )
    return fits[accountant]


def require_unit(unit: Unit, grouping: Grouping) -> None:
    """Refuse to sample one kind of unit and clip another: epsilon would hold for neither.

    >>> require_unit(Unit.USER, Grouping.NONE)
    Traceback (most recent call last):
    adadps.errors.ContractError: Expected each user as one under a sampler of users, found each ...
    """
    if unit is Unit.USER and not grouping.by_user:
        raise ContractError(
            f"Expected {Grouping.USERS.value} under a sampler of users, found {grouping.value}. "
            "Use `privatize(..., groups=by_user(...))`, or a sampler with `examples=`."
        )
    if unit is Unit.EXAMPLE and grouping.by_user:
        raise ContractError(
            f"Expected a sampler of users with {grouping.value}, found one of examples. Use "
            "`poisson(users=..., expected_size=...)`: both numbers count users then."
        )


def measurement_divisor(relation: Relation, accountant: Accountant) -> int:
    """Return the divisor of the noise multiplier of one sum over all examples.

    >>> measurement_divisor(Relation.REPLACE_ONE, Accountant.RDP)
    2
    """
    return ALL_EXAMPLES[relation][accountant]


def histogram_divisor(relation: Relation, accountant: Accountant) -> float:
    """Return the divisor of the noise multiplier of a histogram, which is its noise over √k.

    >>> histogram_divisor(Relation.ADD_OR_REMOVE_ONE, Accountant.PLD)
    1.0
    """
    return HISTOGRAM[relation][accountant]


def require_relation(sampling: Sampling, relation: Relation) -> None:
    """Refuse a relation under which ``sampling`` has no guarantee."""
    known = {row_relation.value for row, row_relation, _ in TABLE if row is sampling}
    if relation.value not in known:
        names = " or ".join(f"'{name}'" for name in sorted(known))
        raise ContractError(
            f"Expected {names} as the relation of {sampling.value} sampling, found "
            f"'{relation.value}'. Use that relation, or another sampler."
        )
