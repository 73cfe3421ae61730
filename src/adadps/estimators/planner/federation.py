"""What changes in a plan where users train locally and a server sums their updates.

The learning rate by the rule becomes that of the devices, and a user's update is clipped where one
step at that rate would be. With a server learning rate of 1, a federation whose users take one
local step is then the user-level method itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from adadps.accounting.samplers import Sampler, fixed_size, poisson, shuffled
from adadps.errors import SettingError, require, require_positive
from adadps.estimators.planner.methods import Method, PreparedMethod
from adadps.estimators.planner.settings import Settings
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
    """Who adds the noise."""

    SERVER = "server"
    SHARES = "shares"
    DEVICE = "device"


class DrawnBy(StrEnum):
    """How the users of a round are drawn."""

    POISSON = "poisson"
    FIXED = "fixed"
    SHUFFLED = "shuffled"


@dataclass(frozen=True)
class UserColumn:
    """The column that tells users apart; at most ``most`` rows of a user count in one step."""

    name: str
    most: int


@dataclass(frozen=True, kw_only=True)
class FederatedSettings:
    """Settings that only a federation has; the planner chooses those that are None.

    ``minimum`` is the smallest number of answers with which a round counts. ``sampling`` is by
    default Poisson where the server adds the noise, and shuffled elsewhere.
    """

    local_epochs: int = 1
    local_batch_size: int = 100
    local_lr: float | None = None
    server_momentum: float = 0.0
    noise: NoiseBy = NoiseBy.SERVER
    minimum: int | None = None
    sampling: DrawnBy | None = None
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
                "Expected --minimum COUNT with --noise shares, found none. It is the smallest "
                "number of answers with which a round counts: their shares make up all of the "
                "noise."
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
        """Return how users are drawn."""
        usual = DrawnBy.POISSON if self.noise is NoiseBy.SERVER else DrawnBy.SHUFFLED
        return self.sampling or usual

    @property
    def noise_place(self) -> NoisePlace:
        """Return where the noise is added."""
        if self.noise is NoiseBy.SHARES:
            assert self.minimum is not None  # required above
            return in_shares(minimum=self.minimum)
        return by_server() if self.noise is NoiseBy.SERVER else by_each_device()

    @property
    def accountants(self) -> tuple[Accountant, ...]:
        """Return the accountants that can price the cohorts, the default first."""
        if self.drawn_by is DrawnBy.FIXED:
            return (Accountant.RDP,)
        return (Accountant.PLD, Accountant.RDP)

    def sampler(self, users: int, cohort: float) -> Sampler:
        """Return a sampler of cohorts of this size, on average, among the declared users."""
        if self.drawn_by is DrawnBy.POISSON:
            return poisson(users=users, expected_size=cohort)
        draw = fixed_size if self.drawn_by is DrawnBy.FIXED else shuffled
        return draw(users=users, expected_size=round(cohort))

    def noise_factor(self, cohort: float) -> float:
        """Return how many times the noise of the server alone a cohort's sum has."""
        return deviation(self.noise_place, 1.0, round(cohort))

    def adapted(self, by_rule: Settings, method: Method, clip_norm: float | None) -> Settings:
        """Return the rule's settings for devices and server; ``clip_norm`` is that of an update."""
        adaptive = method is Method.DP_ADAM
        local_lr = self.local_lr or (1.0 if adaptive else by_rule.lr)
        return replace(
            by_rule,
            clip_norm=clip_norm or local_lr * by_rule.clip_norm,
            lr=by_rule.lr if adaptive else 1.0,
            local_lr=local_lr,
        )

    def chain(self, prepared: PreparedMethod, settings: Settings, users: UserColumn) -> Chain:
        """Return the chain: local training, the release at the server, the server's update."""
        method, side = prepared.method, prepared.side
        groups = by_user(most=users.most, column=users.name, noise=self.noise_place)
        groups.units_of(settings.sampler).accountants(groups.grouping)  # refuses what cannot be
        release = privatize(
            clip_norm=settings.clip_norm, noise_multiplier=settings.noise_multiplier, groups=groups
        )
        on_device = method in (Method.ADADPS, Method.ADADPS_TWO_SIDED)
        assert settings.local_lr is not None  # made by `adapted`
        local = train_locally(
            lr=settings.local_lr,
            batch_size=self.local_batch_size,
            epochs=self.local_epochs,
            side=side if on_device else None,
        )
        first = [reparametrise(side)] if side is not None and not on_device else []
        after = [precondition(side)] if side and method is Method.ADADPS_TWO_SIDED else []
        slow = [momentum(self.server_momentum)] if self.server_momentum else []
        last = adam(settings.lr) if method is Method.DP_ADAM else sgd(settings.lr)
        return chain(*first, local, release, *after, *slow, last)
