"""Rows of results, and settings recorded by tuning."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

Row = dict[str, Any]
Setting = dict[str, float]


def summary(*, values: Sequence[float], settings: dict[str, Any], **facts: Any) -> Row:
    """Mean and standard deviation over seeds, with infinite or missing numbers as null.

    >>> summary(values=[1.0, 3.0], settings={}, method="sgd", epsilon_pld=math.inf)["mean"]
    2.0
    """
    numbers: Row = {
        "mean": statistics.fmean(values),
        "std": statistics.pstdev(values),
        "seeds": len(values),
    }
    merged = {**facts, **numbers}
    finite = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in merged.items()
    }
    return {**finite, "settings": settings}


def recorded(experiment: str) -> dict[str, Setting]:
    """The winning settings of an experiment, as tuning recorded them."""
    text = (
        files("adadps_experiments.reproduce")
        .joinpath(f"recorded/{experiment}.json")
        .read_text("utf-8")
    )
    return {name: entry["winner"] for name, entry in json.loads(text)["contenders"].items()}
