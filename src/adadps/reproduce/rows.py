"""Rows of results, and settings recorded by tuning."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from adadps.writing import new_file

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
    text = files("adadps.reproduce").joinpath(f"recorded/{experiment}.json").read_text("utf-8")
    return {name: entry["winner"] for name, entry in json.loads(text)["contenders"].items()}


def write_json(path: Path, content: Any) -> None:
    """Write JSON for other programs to read."""
    write_file(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def write_file(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all, and the folder that it goes into."""
    with new_file(path, overwrite=True) as draft:
        draft.write_bytes(content)
