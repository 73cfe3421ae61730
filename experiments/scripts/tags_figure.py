"""Draw how accuracy on tags depends on epsilon, from the rows of `adadps reproduce stackoverflow`.

python experiments/scripts/tags_figure.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from adadps_experiments.plots import Curve, Panel, draw

FOLDER = Path(__file__).parents[2] / "docs/results/text"
EPSILONS = (0.84, 3.0, 8.5)
SHOWN = ("dp-sgd", "dp-adam", "adadps", "adadps-two-sided", "dp-sgd-weighted")
PANELS = {
    "Stack Overflow titles": ("so-titles", "so-titles-general-words"),
    "Debian packages": ("debian-tags", "debian-tags"),
}
"""The data set of a panel, and the one with words of general English."""


def points(rows: list[dict[str, Any]], dataset: str, features: str, method: str) -> list[Any]:
    """Return mean and standard deviation at each epsilon."""
    found = {
        row["settings"]["target_epsilon"]: (row["mean"], row["std"])
        for row in rows
        if (row["dataset"], row["method"]) == (dataset, method)
        and row["settings"]["features"] == features
        and row["metric"] == "test accuracy"
    }
    return [found[epsilon] for epsilon in EPSILONS]


def panel(rows: list[dict[str, Any]], title: str, dataset: str, general: str) -> Panel:
    names = {row["method"]: row["settings"]["label"] for row in rows}
    wanted = [
        (f"{names[method]}, no side information", general, "plain", method)
        for method in ("dp-sgd", "dp-adam")
    ] + [(f"{names[method]}, IDF features", dataset, "best for DP-SGD", method) for method in SHOWN]
    curves = []
    for label, source, features, method in wanted:
        mean, std = zip(*points(rows, source, features, method), strict=True)
        curves.append(Curve(label, list(EPSILONS), list(mean), list(std)))
    return Panel(title, "ε (PLD)", "test accuracy", curves)


if __name__ == "__main__":
    held = json.loads((FOLDER / "stackoverflow.json").read_text(encoding="utf-8"))
    panels = [panel(held, title, *names) for title, names in PANELS.items()]
    (FOLDER / "tags.png").write_bytes(draw(panels, "png", columns=2, legend_below=True))
