"""Plots without a display: curves with error bands, as SVG or PNG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np
from matplotlib.figure import Figure

_COLOURS = (
    "#4c78a8", "#f58518", "#54a24b", "#b279a2", "#9d755d", "#e45756", "#72b7b2", "#222222",
    "#8f8f8f", "#c7a500",
)  # fmt: skip


@dataclass(frozen=True)
class Curve:
    """One line with a band: a mean and a standard deviation at each x."""

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


def curves_of(label: str, x: Sequence[float], runs: Sequence[Sequence[float]]) -> Curve:
    """Mean and standard deviation over runs of equal length.

    >>> curves_of("a", [1], [[1.0], [3.0]]).mean
    [2.0]
    """
    values = np.asarray(runs, dtype=float)
    return Curve(label, list(x), values.mean(0).tolist(), values.std(0).tolist())


def draw(panels: Sequence[Panel], kind: str = "svg", columns: int | None = None) -> bytes:
    """Draw the panels side by side, or in rows of ``columns``; ``kind`` is svg or png."""
    across = min(columns or len(panels), len(panels))
    down = -(-len(panels) // across)
    figure = Figure(figsize=(5.2 * across, 3.6 * down), layout="constrained")
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
            axis.legend(frameon=False, fontsize="x-small", loc="best")
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=120)
    return buffer.getvalue()
