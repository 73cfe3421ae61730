"""Methods by name, and moderate settings for them.

Clip norm, learning rate and shape of A are the winners that were recorded for the demo
(``reproduce/recorded/demo.json``), with its sampling rate and number of epochs. They were found on
other, public data and cost the user's data nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from adadps.errors import SettingError
from adadps.methods import adadps, adadps_two_sided, dp_adam, dp_sgd, dp_sgd_weighted
from adadps.reproduce.rows import recorded
from adadps.side import Frequencies, frequency
from adadps.side.fixed import Fixed
from adadps.stages import Chain, privatize
from adadps.stages.privatize import Privatize
from adadps.types import require, require_positive

RATE, EPOCHS = 1024 / 23_731, 17.27
"""Of the demo: 400 steps of 1,024 expected examples."""
SMALLEST_BATCH = 64
NOISE_A_STEP = 3.54 / 1024
"""σ/b of the demo at ε = 1, for which the learning rates were found."""


class Method(StrEnum):
    """What can be trained by name."""

    ADADPS = "adadps"
    ADADPS_TWO_SIDED = "adadps-two-sided"
    DP_SGD_WEIGHTED = "dp-sgd-weighted"
    DP_SGD = "dp-sgd"
    DP_ADAM = "dp-adam"

    @property
    def takes_side_information(self) -> bool:
        """Does it read word frequencies?"""
        return self in _INFORMED


@dataclass(frozen=True)
class Settings:
    """Everything that is chosen before the noise is calibrated."""

    method: Method
    batch_size: float
    epochs: float
    clip_norm: float
    lr: float | None
    """None: the demo's, turned down where a step has more noise than the demo's."""

    def __post_init__(self) -> None:
        require_positive("batch_size", self.batch_size)
        require_positive("epochs", self.epochs)
        require_positive("clip_norm", self.clip_norm)
        if self.lr is not None:
            require_positive("lr", self.lr)

    def lr_at(self, noise_multiplier: float) -> float:
        """The learning rate for this noise.

        For SGD it is the demo's as long as a step's σ/b is no larger than the demo's, and divided
        by their ratio where it is, so that noise moves the weights no more than there. (On 3,000
        packages at ε = 1, one run each: DP-SGD 0.45 instead of 0.33, AdaDPS 0.44 instead of 0.39.)
        Adam divides by the noise itself.
        """
        if self.lr is not None:
            return self.lr
        usual = _winner(self.method)["lr"]
        if self.method is Method.DP_ADAM:
            return usual
        more_noise = (noise_multiplier / self.batch_size) / NOISE_A_STEP
        return usual / max(1.0, more_noise)

    def build(self, noise_multiplier: float, side: Frequencies | None) -> Chain:
        """The chain, with noise for it."""
        privacy = privatize(clip_norm=self.clip_norm, noise_multiplier=noise_multiplier)
        lr = self.lr_at(noise_multiplier)
        if self.method in _PLAIN:
            return _PLAIN[self.method](privacy, lr)
        if side is None:
            raise SettingError(
                f"Expected side information for {self.method.value}, found none. Give it, or use "
                "dp-sgd."
            )
        return _INFORMED[self.method](self.method, side, privacy, lr)


def default_settings(
    method: Method,
    *,
    examples: int,
    batch_size: float | None = None,
    epochs: float | None = None,
    clip_norm: float | None = None,
    lr: float | None = None,
) -> Settings:
    """What is given, and moderate values for the rest.

    >>> default_settings(Method.DP_SGD, examples=23_731).batch_size
    1024
    """
    require(examples >= 1, "examples >= 1", examples, "Declare how many there are.")
    usual = min(examples, max(SMALLEST_BATCH, round(RATE * examples)))
    return Settings(
        method=method,
        batch_size=usual if batch_size is None else batch_size,
        epochs=EPOCHS if epochs is None else epochs,
        clip_norm=_winner(method)["clip_norm"] if clip_norm is None else clip_norm,
        lr=lr,
    )


def _winner(method: Method) -> dict[str, float]:
    return recorded("demo")[_RECORDED[method]]


def _adadps(method: Method, side: Frequencies, privacy: Privatize, lr: float) -> Chain:
    return adadps(_shaped(method, side), privacy, lr)


def _two_sided(method: Method, side: Frequencies, privacy: Privatize, lr: float) -> Chain:
    shaped = _shaped(method, side)
    return adadps_two_sided(shaped, shaped, privacy, lr)


def _weighted(method: Method, side: Frequencies, privacy: Privatize, lr: float) -> Chain:
    return dp_sgd_weighted(_shaped(method, side), privacy, lr)


def _shaped(method: Method, side: Frequencies) -> Fixed:
    winner = _winner(method)
    return frequency(side, floor=winner["floor"], power=winner["power"])


_PLAIN: dict[Method, Callable[[Privatize, float], Chain]] = {
    Method.DP_SGD: dp_sgd,
    Method.DP_ADAM: dp_adam,
}
_INFORMED: dict[Method, Callable[[Method, Frequencies, Privatize, float], Chain]] = {
    Method.ADADPS: _adadps,
    Method.ADADPS_TWO_SIDED: _two_sided,
    Method.DP_SGD_WEIGHTED: _weighted,
}
_RECORDED = {
    Method.ADADPS: "AdaDPS, before the clip",
    Method.ADADPS_TWO_SIDED: "AdaDPS, two-sided",
    Method.DP_SGD_WEIGHTED: "DP-SGD, weighted features",
    Method.DP_SGD: "DP-SGD",
    Method.DP_ADAM: "DP-Adam",
}
