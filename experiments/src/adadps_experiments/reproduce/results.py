"""Rows of results, and the settings that ``--tune`` recorded."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from adadps.errors import DataError
from adadps.files import parse_json
from adadps_experiments.reproduce.records import Record

Row = dict[str, Any]
Setting = dict[str, float]
Winners = dict[str, Any]


def summary(*, values: Sequence[float], settings: dict[str, Any], **facts: Any) -> Row:
    """Return a row with mean and standard deviation over seeds; infinite values become null.

    >>> summary(values=[1.0, 3.0], settings={}, method="sgd", epsilon_pld=math.inf)["mean"]
    2.0
    >>> summary(values=[1.0, math.nan], settings={})["std"] is None  # a run diverged
    True
    """
    numbers: Row = {
        "mean": statistics.fmean(values),
        "std": statistics.pstdev(values) if all(map(math.isfinite, values)) else math.nan,
        "seeds": len(values),
    }
    merged = {**facts, **numbers}
    finite = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in merged.items()
    }
    return {**finite, "settings": settings}


def run_settings(records: Sequence[Record], values: Sequence[float | None]) -> dict[str, Any]:
    """Return what belongs to the settings of a row: those of its first run, and all values."""
    first = records[0]
    return {
        **first["job"]["setting"],
        "batch": first["job"]["batch"],
        "epochs": first["job"]["epochs"],
        "steps": first["steps"],
        "noise_multiplier": first["noise_multiplier"],
        "clip_norm": first["clip_norm"],
        "chain": first["chain"],
        "seconds": [record["seconds"] for record in records],
        "values": list(values),
    }


def recorded_settings(experiment: str) -> dict[str, Setting]:
    """Return the winning setting of each method of an experiment, as ``--tune`` recorded it."""
    held = json.loads(_recorded(experiment))
    return {name: entry["winner"] for name, entry in held["contenders"].items()}


def read_winners(path: Path | None, experiment: str = "text") -> Winners:
    """Read winners from a file of ``--tune``, or those that the package ships."""
    try:
        held = parse_json(_recorded(experiment) if path is None else path.read_text("utf-8"))
    except (OSError, ValueError) as error:  # absent, not text, or not JSON
        raise DataError(_no_winners(path, experiment, error)) from error
    if not isinstance(held, dict) or not isinstance(held.get("datasets"), dict):
        raise DataError(_no_winners(path, experiment, "something else"))
    return held


def _recorded(experiment: str) -> str:
    file = files("adadps_experiments.reproduce").joinpath(f"recorded/{experiment}.json")
    return file.read_text("utf-8")


def _no_winners(path: Path | None, experiment: str, found: object) -> str:
    return (
        f"Expected winners of --tune in {path or f'recorded/{experiment}.json'}, found: {found}. "
        "Give the file that --tune has written."
    )
