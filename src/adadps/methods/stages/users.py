"""User-level privacy: the rows of a user are clipped as one, however many there are.

The sampler draws users. A drawn user contributes at most k of their rows, chosen uniformly and
afresh each time, and their gradient is the *mean* over these rows, clipped at C:

    (1/b) (Σ_u clip(mean_{i in S_u} g_i, C) + N(0, σ²C²)).

The contribution of a user depends on that user's rows and on chance alone, so adding or removing a
user moves the sum by at most C. Without clipping and noise this is the gradient of

    (1/U) Σ_u (1/n_u) Σ_{i of u} loss_i,

the mean over users of each user's mean loss, whatever k is: every user has the same weight.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from adadps.accounting.contract import Grouping
from adadps.accounting.samplers import Rows, Sampler
from adadps.data.users import UserRows
from adadps.engine.waist import Units
from adadps.errors import require
from adadps.methods.stages.noise_place import NoisePlace, by_server, deviation
from adadps.types import Unit


@dataclass(frozen=True)
class Users:
    """Users who contribute at most ``most`` rows each per batch. Build it with `by_user`."""

    most: int
    column: str | None = None
    noise: NoisePlace = field(default_factory=by_server)

    def __post_init__(self) -> None:
        whole = isinstance(self.most, int) and not isinstance(self.most, bool) and self.most >= 1
        require(
            whole,
            "a whole number of rows per user, at least 1",
            self.most,
            "Choose it without looking at the data: users with more rows contribute a random part.",
        )
        require(
            self.column is None or bool(self.column.strip()),
            "the name of the column that identifies users",
            repr(self.column),
            "Leave it out if the column has no name.",
        )

    def __str__(self) -> str:
        named = f" ({self.column})" if self.column else ""
        return f"users{named}, at most {self.most} rows each{self.noise}"

    @property
    def grouping(self) -> Grouping:
        """The row of the contract: what is clipped, and where the noise is added."""
        return self.noise.grouping

    def deviation(
        self, noise_multiplier: float, expected_size: float, answers: int | None = None
    ) -> float:
        """Return the standard deviation of the noise that is added here, in units of C.

        It is for a sum over a cohort and includes the noise of devices, unless ``answers`` says how
        many updates arrived with their noise already added.
        """
        if answers is not None:
            return self.noise.topped_up(noise_multiplier, answers)
        return deviation(self.noise, noise_multiplier, round(expected_size))

    @property
    def unit(self) -> str:
        """The unit of privacy: whose data epsilon protects."""
        return f"{Unit.USER.value} ({self.column})" if self.column else Unit.USER.value

    def expected_units(self, expected_size: float) -> float:
        """Return the normaliser: the sampler already counts users."""
        return expected_size

    def units_of(self, sampler: Sampler) -> Sampler:
        """Return the sampler, or refuse cohorts that are too small for the noise."""
        least, asked = self.noise.least_answers(), sampler.smallest_batch
        require(
            least <= asked,
            f"a minimum of at most {asked:g} answers, the size of the smallest cohort",
            least,
            "Lower the minimum, or choose a cohort size that divides the number of users.",
        )
        return sampler

    def expand(
        self, drawn: Rows, rows: UserRows, rng: np.random.Generator
    ) -> tuple[Rows, Units | None]:
        """Draw rows of the drawn users, and say whose they are; one row each needs no units."""
        chosen, owners = rows.of(drawn, self.most, rng)
        if self.most == 1:
            return chosen, None
        return chosen, Units(torch.from_numpy(owners), len(drawn), None)


def by_user(*, most: int, column: str | None = None, noise: NoisePlace | None = None) -> Users:
    """Clip the rows that a user contributes to a batch as one, at most ``most`` of them.

    Use it with data that names its users, ``examples(features, targets, users=...)``, and a sampler
    of users, ``poisson(users=..., expected_size=...)``. Epsilon then protects a user with all their
    rows and does not depend on ``most``. ``column`` is the public name of the column that
    identifies users: it appears in the privacy statement, and a run or a ledger cannot be continued
    with another one. ``noise`` says who adds the noise: `by_server` (the default), `in_shares` or
    `by_each_device`.

    >>> from adadps.methods.stages import privatize
    >>> print(privatize(clip_norm=1.0, noise_multiplier=2.0, groups=by_user(most=5)))
    privatize(C=1, σ=2, users, at most 5 rows each)
    """
    return Users(most, column, noise or by_server())
