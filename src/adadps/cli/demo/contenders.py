"""The methods that the demo compares, each with the setting that tuning recorded for it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files

from adadps.estimators.planner.methods import PreparedMethod, takes_side_information
from adadps.methods.paper import plain_adam
from adadps.methods.side import Frequencies, frequency
from adadps.methods.stages import Chain, privatize
from adadps.types import Method

NOT_PRIVATE = "Adam, no privacy"

TunedSetting = dict[str, float]


@dataclass(frozen=True)
class DemoMethod:
    """One row of the demo's table; ``method`` is None for Adam without privacy."""

    name: str
    method: Method | None

    @property
    def side(self) -> str:
        """Return the side information that the method reads, in words."""
        informed = self.method is not None and takes_side_information(self.method)
        return "word frequencies" if informed else "none"

    def chain(
        self, setting: TunedSetting, noise_multiplier: float, frequencies: Frequencies
    ) -> Chain:
        """Return the chain with a recorded setting."""
        if self.method is None:
            return plain_adam(setting["lr"])
        side = None
        if takes_side_information(self.method):
            side = frequency(frequencies, floor=setting["floor"], power=setting["power"])
        privacy = privatize(clip_norm=setting["clip_norm"], noise_multiplier=noise_multiplier)
        return PreparedMethod(self.method, side).chain(privacy, setting["lr"])


CONTENDERS = (
    DemoMethod("DP-SGD", Method.DP_SGD),
    DemoMethod("DP-Adam", Method.DP_ADAM),
    DemoMethod("AdaDPS, before the clip", Method.ADADPS),
    DemoMethod("AdaDPS, two-sided", Method.ADADPS_TWO_SIDED),
    DemoMethod("DP-SGD, weighted features", Method.DP_SGD_WEIGHTED),
    DemoMethod(NOT_PRIVATE, None),
)


def recorded_settings() -> dict[str, TunedSetting]:
    """Return the winning setting of each method."""
    text = files("adadps.cli.demo").joinpath("recorded.json").read_text("utf-8")
    return {name: entry["winner"] for name, entry in json.loads(text)["contenders"].items()}
