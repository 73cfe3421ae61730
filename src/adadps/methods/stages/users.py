"""Users whose rows are clipped as one: epsilon protects a user, however many rows they have.

The sampler draws users. A drawn user brings at most k of their rows, chosen afresh and uniformly,
and their gradient is the *mean* over these rows, clipped at C:

    (1/b) (Σ_u clip(mean_{i in S_u} g_i, C) + N(0, σ²C²)).

What a user brings depends on that user's rows and on chance alone, so adding or removing a user
moves the sum by at most C. Without clip and noise this is the gradient of

    (1/U) Σ_u (1/n_u) Σ_{i of u} loss_i,

the mean over users of each user's mean loss, whatever k is: everybody counts the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from adadps.accounting.contract import Grouping
from adadps.accounting.samplers import Rows, Sampler, Shuffled
from adadps.data.users import UserRows
from adadps.engine.waist import Units
from adadps.errors import require
from adadps.methods.stages.noise_place import NoisePlace, by_server, deviation
from adadps.types import Unit


@dataclass(frozen=True)
class Users:
    """Users who bring at most ``most`` rows each. Build it with `by_user`."""

    most: int
    column: str | None = None
    noise: NoisePlace = field(default_factory=by_server)

    def __post_init__(self) -> None:
        whole = isinstance(self.most, int) and not isinstance(self.most, bool) and self.most >= 1
        require(
            whole,
            "a whole number of rows a user, at least 1",
            self.most,
            "Choose it without looking at the data: a user with more rows brings a random part.",
        )
        require(
            self.column is None or bool(self.column.strip()),
            "a name of the column that tells users apart",
            repr(self.column),
            "Leave it out if it has none.",
        )

    def __str__(self) -> str:
        named = f" ({self.column})" if self.column else ""
        return f"users{named}, at most {self.most} rows each{self.noise}"

    @property
    def grouping(self) -> Grouping:
        """What is clipped, and where the noise is added."""
        return self.noise.grouping

    def deviation(
        self, noise_multiplier: float, expected_size: float, answers: int | None = None
    ) -> float:
        """Of the noise that is added here to a sum over a cohort, in units of C.

        That of devices included, unless so many ``answers`` came with it already.
        """
        if answers is not None:
            return self.noise.topped_up(noise_multiplier, answers)
        return deviation(self.noise, noise_multiplier, round(expected_size))

    @property
    def unit(self) -> str:
        """Whose data epsilon protects."""
        return f"{Unit.USER.value} ({self.column})" if self.column else Unit.USER.value

    def expected_units(self, expected_size: float) -> float:
        """The normaliser: the sampler counts users already."""
        return expected_size

    def units_of(self, sampler: Sampler) -> Sampler:
        """What the sampler draws: users, enough of them for the noise."""
        least, asked = self.noise.least_answers(), sampler.expected_size
        if isinstance(sampler, Shuffled):
            asked = sampler.examples % sampler.expected_size or asked
        require(
            least <= asked,
            f"at most {asked:g} answers to be waited for, as many as the smallest cohort has",
            least,
            "Lower the minimum, or let the size of a cohort divide the number of users.",
        )
        return sampler

    def expand(
        self, drawn: Rows, rows: UserRows, rng: np.random.Generator
    ) -> tuple[Rows, Units | None]:
        """Rows that the drawn users bring, and whose they are; one row each needs no units."""
        chosen, owners = rows.of(drawn, self.most, rng)
        if self.most == 1:
            return chosen, None
        return chosen, Units(torch.from_numpy(owners), len(drawn), None)


def by_user(*, most: int, column: str | None = None, noise: NoisePlace | None = None) -> Users:
    """Clip all that a user brings to a batch as one, at most ``most`` of their rows.

    For data with users, ``examples(features, targets, users=...)``, and a sampler of users,
    ``poisson(users=..., expected_size=...)``. Epsilon then protects a user with all their rows; it
    does not depend on ``most``. ``column`` is the public name of what tells users apart: it stands
    in the statement, and a run or a ledger does not go on with another. ``noise`` says who adds it:
    `by_server` (default), `in_shares` or `by_each_device`.

    >>> from adadps.methods.stages import privatize
    >>> print(privatize(clip_norm=1.0, noise_multiplier=2.0, groups=by_user(most=5)))
    privatize(C=1, σ=2, users, at most 5 rows each)
    """
    return Users(most, column, noise or by_server())
