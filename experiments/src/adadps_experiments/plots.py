"""Plots without a display: curves with error bands, as SVG or PNG."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.figure import Figure

_COLOURS = (
    "#4c78a8", "#f58518", "#54a24b", "#b279a2", "#9d755d", "#e45756", "#72b7b2", "#222222",
    "#8f8f8f", "#c7a500",
)  # fmt: skip


@dataclass(frozen=True)
class Curve:
    """A curve with an error band: mean and standard deviation at each x."""

    label: str
    x: Sequence[float]
    mean: Sequence[float]
    std: Sequence[float] | None = None


@dataclass(frozen=True)
class Panel:
    """One set of axes."""

    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]
    log_y: bool = False
    note: str = ""
    """A note above the legend, such as what is not drawn."""


def curves_of(label: str, x: Sequence[float], runs: Sequence[Sequence[float]]) -> Curve:
    """Return mean and standard deviation over runs of equal length.

    >>> curves_of("a", [1], [[1.0], [3.0]]).mean
    [2.0]
    """
    values = np.asarray(runs, dtype=float)
    return Curve(label, list(x), values.mean(0).tolist(), values.std(0).tolist())


def epochs_and_values(
    records: Sequence[Mapping[str, Any]],
) -> tuple[list[float], list[list[float]]]:
    """Return the curves of the runs of a method, over epochs."""
    first = records[0]
    share = first["job"]["batch"] / first["examples"]
    epochs = [step * share for step, _ in first["curve"]]
    return epochs, [[value for _, value in record["curve"]] for record in records]


def draw(
    panels: Sequence[Panel],
    kind: str = "svg",
    columns: int | None = None,
    *,
    legend_below: bool = False,
) -> bytes:
    """Draw the panels side by side, or in rows of ``columns``; ``kind`` is svg or png.

    A legend stands within its axes, or below them, where it cannot cover a curve.
    """
    figure = _figure(panels, columns, legend_below=legend_below)
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=120)
    return buffer.getvalue()


def _figure(
    panels: Sequence[Panel], columns: int | None = None, *, legend_below: bool = False
) -> Figure:
    across = min(columns or len(panels), len(panels))
    down = -(-len(panels) // across)
    tall = 3.6 * down
    if legend_below:
        rows = [panels[first : first + across] for first in range(0, len(panels), across)]
        tall += sum(max(map(_legend_height, row)) for row in rows)
    figure = Figure(figsize=(5.2 * across, tall), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False).ravel()
    for unused in axes[len(panels) :]:
        unused.set_axis_off()
    for axis, panel in zip(axes, panels, strict=False):
        for colour, curve in zip(cycle(_COLOURS), panel.curves, strict=False):
            axis.plot(curve.x, curve.mean, label=curve.label, color=colour, linewidth=1.8)
            if curve.std is not None:
                mean, std = np.asarray(curve.mean), np.asarray(curve.std)
                low = np.maximum(mean - std, mean * 1e-2) if panel.log_y else mean - std
                axis.fill_between(curve.x, low, mean + std, alpha=0.2, color=colour, linewidth=0)
        if panel.log_y:
            axis.set_yscale("log")
        axis.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
        axis.grid(alpha=0.3)
        if panel.curves:
            below: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16)}
            axis.legend(
                frameon=False,
                fontsize="x-small",
                title="\n".join(_note_lines(panel)) or None,
                title_fontsize="x-small",
                **({**below, "ncols": _legend_columns(panel)} if legend_below else {"loc": "best"}),
            )
    return figure


def _note_lines(panel: Panel) -> list[str]:
    return textwrap.wrap(panel.note, 80)


def _legend_columns(panel: Panel) -> int:
    """Return two columns if the labels are short enough, else one."""
    return 1 if any(len(curve.label) > 42 for curve in panel.curves) else 2


def _legend_height(panel: Panel) -> float:
    """Estimate the height of the legend in inches, at an x-small font."""
    entries = -(-len(panel.curves) // _legend_columns(panel))
    return 0.15 * (entries + len(_note_lines(panel))) + 0.1
