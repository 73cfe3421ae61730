"""The settings that tuning recorded for the methods of the demo."""

from __future__ import annotations

import json
from importlib.resources import files

Setting = dict[str, float]


def recorded() -> dict[str, Setting]:
    """The winning setting of each method."""
    text = files("adadps.cli.demo").joinpath("recorded.json").read_text("utf-8")
    return {name: entry["winner"] for name, entry in json.loads(text)["contenders"].items()}
