"""The task of every device: it is public, the same for all, and derived from the method."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from adadps.engine.local import LocalSteps
from adadps.engine.noise.randomness import SMALLEST_DEVIATION
from adadps.errors import ContractError, require, require_positive
from adadps.methods.side.source import Fixed, Uniform
from adadps.methods.stages.chain import Chain, Release
from adadps.methods.stages.local import TrainLocally, TrainLocallyInformed
from adadps.methods.stages.users import Users
from adadps.tensors.sums import Params
from adadps.training.calibration import require_price_for
from adadps.types import Unit


@dataclass(frozen=True)
class Task:
    """Train on at most ``most`` rows, clip the update at C, add noise of deviation ``noise`` · C.

    An infinite ``clip_norm`` means that only the server clips, after e.g. `precondition`.
    """

    lr: float
    batch_size: int
    epochs: int
    most: int
    clip_norm: float
    noise: float

    @property
    def steps(self) -> LocalSteps:
        """The local training steps."""
        return LocalSteps(self.lr, self.batch_size, self.epochs)

    def as_settings(self) -> dict[str, float | int]:
        """Return the settings by name, to be sent."""
        return asdict(self)

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> Task:
        """Return the task that was sent, after checks: a device does not trust its server.

        >>> sent = {"lr": 0.1, "batch_size": 8, "epochs": 1, "most": 9, "clip_norm": 1.0}
        >>> Task.from_settings(sent | {"noise": 0.5}).noise
        0.5
        >>> Task.from_settings(sent | {"noise": -0.5})
        Traceback (most recent call last):
        adadps.errors.SettingError: Expected noise >= 0, found -0.5. Check the server's settings.
        """
        names = set(cls.__dataclass_fields__)
        cure = "Check the server's settings."
        found = sorted(settings)
        require(set(found) == names, f"the settings {sorted(names)}", found, cure)
        whole = {name: settings[name] for name in ("batch_size", "epochs", "most")}
        for name, value in whole.items():
            fits = isinstance(value, int) and not isinstance(value, bool) and value >= 1
            require(fits, f"a whole number {name} >= 1", value, cure)
        noise, clip_norm = float(settings["noise"]), float(settings["clip_norm"])
        require(0 <= noise < math.inf, "noise >= 0", noise, cure)
        require_positive("clip_norm", clip_norm, infinite=noise == 0)
        require(
            noise == 0 or noise * clip_norm >= SMALLEST_DEVIATION,
            f"noise of a standard deviation of at least {SMALLEST_DEVIATION:g}",
            noise * clip_norm,
            cure,
        )
        lr = require_positive("lr", float(settings["lr"]))
        return cls(lr=lr, clip_norm=clip_norm, noise=noise, **whole)


def task_of(method: Chain) -> Task:
    """Return the task of devices under this method; refuse a method that they cannot perform.

    >>> from adadps.methods.stages import by_user, chain, privatize, sgd, train_locally
    >>> privacy = privatize(clip_norm=0.5, noise_multiplier=1.0, groups=by_user(most=9))
    >>> task_of(chain(train_locally(lr=0.1, batch_size=8), privacy, sgd(1.0)))
    Task(lr=0.1, batch_size=8, epochs=1, most=9, clip_norm=0.5, noise=0.0)
    """
    local, users = _local_stage(method), _users(method)
    _require_given(method)
    release = method.release
    noise = users.noise.on_device(release.noise_multiplier)
    plain = getattr(release, "clipping", None) is None  # any other clip is the server's alone
    clips_as_it_comes = plain and isinstance(method.steps[0], Release)
    if noise and not clips_as_it_comes:
        raise ContractError(
            f"Expected `privatize` right after `train_locally` where devices add noise, found "
            f"`{method.steps[0]}` between them, which the server would apply to their noise as "
            "well. Move it after `privatize`, give `train_locally` the side information, or let "
            "the server add the noise."
        )
    return Task(
        lr=local.steps.lr,
        batch_size=local.steps.batch_size,
        epochs=local.steps.epochs,
        most=users.most,
        clip_norm=release.clip_norm if clips_as_it_comes else math.inf,
        noise=noise,
    )


def scale_of(method: Chain, params: Params) -> Params | None:
    """Return D = 1/A of every local step; None if there is no side information."""
    local = _local_stage(method)
    return local.scale(params) if isinstance(local, TrainLocallyInformed) else None


def _local_stage(method: Chain) -> TrainLocally:
    first, *others = method.preparations or (None,)
    if not isinstance(first, TrainLocally) or others:
        found = " > ".join(str(stage) for stage in method.preparations) or "none"
        raise ContractError(
            f"Expected `train_locally(...)` as the only stage before gradients, found {found}. "
            "Begin the chain with it, and do any pretraining before the run."
        )
    return first


def _users(method: Chain) -> Users:
    groups = method.release.groups
    if not isinstance(groups, Users):
        raise ContractError(
            f"Expected a method that clips by user, found `{method.release}`. Give "
            "`privatize(..., groups=by_user(most=...))`."
        )
    return groups


def _require_given(method: Chain) -> None:
    """Refuse side information that is not given: the server has no data to compute it from."""
    for stage in method.informed:
        side = getattr(stage, "side", None)
        if type(side) not in (Fixed, Uniform):
            raise ContractError(
                f"Expected side information that is given, found `{stage}`, which changes with "
                "the run or reads data. "
                "Compute it before the run, and give `side.fixed(...)` or `side.frequency(...)`."
            )
        require_price_for(Unit.USER, stage)
