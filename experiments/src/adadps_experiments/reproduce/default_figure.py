"""The comparison of default settings as a table and as a figure."""

from __future__ import annotations

from collections.abc import Sequence

from adadps_experiments.plots import Curve, Panel, draw
from adadps_experiments.reproduce.default_table import LINES
from adadps_experiments.reproduce.rows import Row

TITLE = "Default settings against tuned ones: test accuracy"
COLUMNS = {"problem": "dataset", "ε": "epsilon", **{label: line for line, label in LINES.items()}}


def wide(rows: Sequence[Row]) -> list[Row]:
    """One row for each problem and epsilon, one column a line."""
    found: dict[tuple[str, float], Row] = {}
    for row in rows:
        epsilon = row["settings"]["target_epsilon"]
        mine = found.setdefault(
            (row["dataset"], epsilon), {"dataset": row["dataset"], "epsilon": epsilon}
        )
        mine[row["method"]] = f"{row['mean']:.3f} ± {row['std']:.3f}"
    return list(found.values())


def figure_of(rows: Sequence[Row]) -> bytes:
    """Accuracy against epsilon, one panel a problem, as PNG."""
    panels = []
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        curves = []
        for line, label in LINES.items():
            mine = [row for row in rows if (row["dataset"], row["method"]) == (dataset, line)]
            curves.append(
                Curve(
                    label,
                    [row["settings"]["target_epsilon"] for row in mine],
                    [row["mean"] for row in mine],
                    [row["std"] for row in mine],
                )
            )
        panels.append(Panel(dataset, "ε", "test accuracy", curves))
    return draw(panels, "png", columns=3, legend_below=True)
