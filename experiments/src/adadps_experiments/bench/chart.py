"""Bars of the time of a step on a logarithmic scale, one panel a workload."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from adadps.errors import DataError
from adadps_experiments.bench.contenders import CONTENDERS
from adadps_experiments.bench.rows import Row, find, measured
from adadps_experiments.bench.sheets import number

_COLOURS = {"adadps": "#54a24b", "torch": "#9d9d9d", "opacus": "#4c78a8", "microbatch": "#f58518"}


def draw(rows: Sequence[Row]) -> bytes:
    """A PNG of all workloads; contenders that could not run have no bar."""
    shown = [row for row in rows if measured(row) and "seconds" not in row]
    names = list(dict.fromkeys(row["workload"] for row in shown))
    if not names:
        raise DataError(
            "Expected at least one measured row to draw, found none. See the reasons in the table."
        )
    across = min(3, len(names))
    down = -(-len(names) // across)
    figure = Figure(figsize=(4.6 * across, 2.9 * down), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False).flatten()
    for axis, name in zip(axes, names, strict=False):
        _panel(axis, name, shown)
    for axis in axes[len(names) :]:
        axis.set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()


def _panel(axis: Any, workload: str, rows: Sequence[Row]) -> None:
    found = [row for name in CONTENDERS if (row := find(rows, workload, name)) is not None]
    labels = [row["contender"] for row in found]
    times = [row["ms_per_step"] for row in found]
    colours = [_COLOURS[label.split("-")[0]] for label in labels]
    bars = axis.barh(labels, times, color=colours)
    axis.bar_label(bars, [number(t) for t in times], padding=3, fontsize=8)
    axis.set_xscale("log")
    axis.set_xlim(min(times) / 3, max(times) * 6)
    axis.invert_yaxis()
    axis.set(title=workload, xlabel="milliseconds per step")
    axis.grid(axis="x", alpha=0.3)
