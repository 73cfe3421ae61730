"""The methods that are compared, each built from its recorded setting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from adadps.cli.demo.settings import Setting
from adadps.methods.paper import (
    adadps,
    adadps_two_sided,
    dp_adam,
    dp_sgd,
    dp_sgd_weighted,
    plain_adam,
)
from adadps.methods.side import Frequencies, frequency
from adadps.methods.side.source import Fixed
from adadps.methods.stages import Chain, privatize
from adadps.methods.stages.gradients import Privatize

NOT_PRIVATE = "Adam, no privacy"


@dataclass(frozen=True)
class Contender:
    """One row of the table."""

    name: str
    side: str
    build: Callable[[Setting, float, Frequencies], Chain]


def _privacy(setting: Setting, sigma: float) -> Privatize:
    return privatize(clip_norm=setting["clip_norm"], noise_multiplier=sigma)


def _side(setting: Setting, frequencies: Frequencies) -> Fixed:
    return frequency(frequencies, floor=setting["floor"], power=setting["power"])


def _before_the_clip(setting: Setting, sigma: float, frequencies: Frequencies) -> Chain:
    return adadps(_side(setting, frequencies), _privacy(setting, sigma), lr=setting["lr"])


def _on_both_sides(setting: Setting, sigma: float, frequencies: Frequencies) -> Chain:
    side = _side(setting, frequencies)
    return adadps_two_sided(side, side, _privacy(setting, sigma), lr=setting["lr"])


def _into_the_features(setting: Setting, sigma: float, frequencies: Frequencies) -> Chain:
    return dp_sgd_weighted(_side(setting, frequencies), _privacy(setting, sigma), lr=setting["lr"])


CONTENDERS = (
    Contender("DP-SGD", "none", lambda s, sigma, _: dp_sgd(_privacy(s, sigma), lr=s["lr"])),
    Contender("DP-Adam", "none", lambda s, sigma, _: dp_adam(_privacy(s, sigma), lr=s["lr"])),
    Contender("AdaDPS, before the clip", "word frequencies", _before_the_clip),
    Contender("AdaDPS, two-sided", "word frequencies", _on_both_sides),
    Contender("DP-SGD, weighted features", "word frequencies", _into_the_features),
    Contender(NOT_PRIVATE, "none", lambda s, *_: plain_adam(s["lr"])),
)
