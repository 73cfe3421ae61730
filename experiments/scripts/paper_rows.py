"""Find rows below docs/results, for the pages that stand above all experiments."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs/results"
ONE_PERCENT = "1.00% of the training texts"

Row = dict[str, Any]
Find = Callable[[str], Row | None]
"""Returns the row of a method, if there is one."""

LABELS = {
    "dp-sgd": "DP-SGD", "dp-adam": "DP-Adam", "dp-rmsprop": "DP-RMSProp",
    "adadps-public": "AdaDPS (RMSProp)", "adadps-public-adam": "AdaDPS (Adam)",
    "pda-dpmd": "PDA-DPMD", "warm-start": "DP-SGD, warm start", "dp-adam-pub": "DP-Adam-Pub",
    "dp-r-pub": "DP-R-Pub", "ideal": "ideal", "sgd": "SGD", "adam": "Adam",
    "adas-public": "AdaS", "whitened": "whitened", "warm-whitened": "warm start, whitened",
}  # fmt: skip
"""What the methods are called in the rows of images and of the LSTM."""


@cache
def rows_in(folder: str) -> tuple[Row, ...]:
    """Return the rows in all files of a folder of docs/results."""
    found: list[Row] = []
    for file in sorted((RESULTS / folder).glob("*.json")):
        held = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(held, list):
            found += held
    return tuple(found)


def text(
    experiment: str, dataset: str, features: str, epsilon: float | None, public: str = ONE_PERCENT
) -> Find:
    """Find rows of the experiments on text, with this public data if any."""

    def find(method: str) -> Row | None:
        for row in rows_in("text"):
            settings = row["settings"]
            if (
                (row["experiment"], row["dataset"], row["method"]) == (experiment, dataset, method)
                and row["metric"] == "test accuracy"
                and settings["features"] == features
                and settings["target_epsilon"] in (epsilon, None)
                and settings["public"] in (public, None)
            ):
                return row
        return None

    return find


def trained(folder: str, experiment: str, epsilon: float | None) -> Find:
    """Find rows of the experiments on images, or on the LSTM."""

    def find(method: str) -> Row | None:
        for row in rows_in(folder):
            paid = row["epsilon_pld"]
            near = paid is None or epsilon is None or abs(paid - epsilon) < 0.05
            if row["experiment"] == experiment and row["method"] == LABELS.get(method) and near:
                return row
        return None

    return find
