"""What a federation adds to a table with a column of users: they train locally, on cohorts.

Settings follow from those of `adadps.estimators.planner.defaults`: the learning rate by rule
becomes that of the devices, and a user's update is clipped where one step at that rate would be.
With the server's rate of 1, a federation whose users take one local step is then the user-level
method itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from adadps.accounting.samplers import Sampler, fixed_size, poisson, shuffled
from adadps.errors import SettingError, require, require_positive
from adadps.estimators.planner.defaults import Choice
from adadps.estimators.planner.named_methods import Method
from adadps.estimators.tables.users import OfUsers
from adadps.methods.side.source import Fixed
from adadps.methods.stages import (
    Chain,
    adam,
    by_each_device,
    by_server,
    by_user,
    chain,
    in_shares,
    momentum,
    precondition,
    privatize,
    reparametrise,
    sgd,
    train_locally,
)
from adadps.methods.stages.noise_place import NoisePlace, deviation
from adadps.types import Accountant


class NoiseBy(StrEnum):
    """Who adds it."""

    SERVER = "server"
    SHARES = "shares"
    DEVICE = "device"


class DrawnBy(StrEnum):
    """How the users of a round are drawn."""

    POISSON = "poisson"
    FIXED = "fixed"
    SHUFFLED = "shuffled"


@dataclass(frozen=True, kw_only=True)
class Federation:
    """Wishes of a person who federates; None is "choose for me"."""

    local_epochs: int = 1
    local_batch_size: int = 100
    local_lr: float | None = None
    server_momentum: float = 0.0
    noise: NoiseBy = NoiseBy.SERVER
    minimum: int | None = None
    sampling: DrawnBy | None = None
    """None: Poisson where the server adds the noise, else shuffled."""
    rounds: int | None = None

    def __post_init__(self) -> None:
        if self.local_lr is not None:
            require_positive("local_lr", self.local_lr)
        require(
            0 <= self.server_momentum < 1,
            "0 <= server momentum < 1",
            self.server_momentum,
            "0.9 is common, 0 is none.",
        )
        if self.noise is NoiseBy.SHARES and self.minimum is None:
            raise SettingError(
                "Expected --minimum COUNT with --noise shares, found none. It is the least number "
                "of answers that a round counts with: their shares make up all of the noise."
            )
        if self.noise is not NoiseBy.SHARES and self.minimum is not None:
            raise SettingError(
                f"Expected --minimum only with --noise shares, found it with --noise "
                f"{self.noise.value}. Leave it out."
            )
        if self.noise is not NoiseBy.SERVER and self.drawn_by is not DrawnBy.SHUFFLED:
            raise SettingError(
                f"Expected --sampling shuffled with --noise {self.noise.value}, found "
                f"{self.drawn_by.value}. Sampling protects nobody where the noise depends on who "
                "answers, so that every participation is paid for: leave --sampling out."
            )

    @property
    def drawn_by(self) -> DrawnBy:
        """As wished, or what suits the place of the noise."""
        usual = DrawnBy.POISSON if self.noise is NoiseBy.SERVER else DrawnBy.SHUFFLED
        return self.sampling or usual

    @property
    def place(self) -> NoisePlace:
        """Where the noise is added."""
        if self.noise is NoiseBy.SHARES:
            assert self.minimum is not None  # required above
            return in_shares(minimum=self.minimum)
        return by_server() if self.noise is NoiseBy.SERVER else by_each_device()

    def accountants(self) -> tuple[Accountant, ...]:
        """Who can price its cohorts, the default first."""
        if self.drawn_by is DrawnBy.FIXED:
            return (Accountant.RDP,)
        return (Accountant.PLD, Accountant.RDP)

    def sampler(self, users: int, cohort: float) -> Sampler:
        """Cohorts of a declared number of users."""
        if self.drawn_by is DrawnBy.POISSON:
            return poisson(users=users, expected_size=cohort)
        draw = fixed_size if self.drawn_by is DrawnBy.FIXED else shuffled
        return draw(users=users, expected_size=round(cohort))

    def more_noise(self, cohort: float) -> float:
        """How much more noise a sum has than the server alone would add."""
        return deviation(self.place, 1.0, round(cohort))

    def planned(
        self,
        method: Method,
        side: Fixed | None,
        choice: Choice,
        of_users: OfUsers,
        clip_norm: float | None,
    ) -> tuple[Choice, Chain]:
        """The chain, and the choice with the clip norm and the rate of the server."""
        adaptive = method is Method.DP_ADAM
        local_lr = self.local_lr or (1.0 if adaptive else choice.lr)
        chosen = replace(
            choice,
            clip_norm=clip_norm or local_lr * choice.clip_norm,
            lr=choice.lr if adaptive else 1.0,
        )
        groups = by_user(most=of_users.most, column=of_users.column, noise=self.place)
        groups.units_of(choice.sampler).accountants(groups.grouping)  # or it is refused now
        release = privatize(
            clip_norm=chosen.clip_norm, noise_multiplier=chosen.noise_multiplier, groups=groups
        )
        on_device = method in (Method.ADADPS, Method.ADADPS_TWO_SIDED)
        local = train_locally(
            lr=local_lr,
            batch_size=self.local_batch_size,
            epochs=self.local_epochs,
            side=side if on_device else None,
        )
        first = [reparametrise(side)] if side is not None and not on_device else []
        after = [precondition(side)] if side and method is Method.ADADPS_TWO_SIDED else []
        slow = [momentum(self.server_momentum)] if self.server_momentum else []
        last = adam(chosen.lr) if adaptive else sgd(chosen.lr)
        return chosen, chain(*first, local, release, *after, *slow, last)
