"""Draw the picture of the README and of the front page from the committed table of defaults.

python experiments/scripts/front_figure.py
"""

import json
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

ROOT = Path(__file__).parents[2]
ROWS = ROOT / "docs/results/defaults/defaults.json"
PICTURE = ROOT / "docs/accuracy.png"
TITLES = {
    "imdb": "IMDB reviews, 2 classes",
    "amazon": "Amazon reviews, 2 classes",
    "debian-sections": "Debian packages, 58 sections",
    "debian-tags": "Debian packages, tags",
    "so-titles": "Stack Overflow titles, tags",
    "mnist": "MNIST, no side information",
}
PRIVATE = {
    "defaults": ("adadps defaults, nothing tuned", "#1f6fb4", "o"),
    "dp-sgd-tuned": ("DP-SGD on words, tuned, no side information", "#d9772b", "s"),
}


def main() -> None:
    rows = json.loads(ROWS.read_text(encoding="utf-8"))
    figure = Figure(figsize=(9.6, 5.2), layout="constrained", dpi=130)
    axes = figure.subplots(2, 3)
    for axis, (dataset, title) in zip(axes.flat, TITLES.items(), strict=True):
        draw_problem(axis, [row for row in rows if row["dataset"] == dataset], title)
    for axis in axes[:, 0]:
        axis.set_ylabel("test accuracy")
    for axis in axes[-1]:
        axis.set_xlabel("ε (smaller is more private)")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(PICTURE, metadata={"Software": None})


def draw_problem(axis: Axes, rows: list[dict[str, Any]], title: str) -> None:
    """One panel: accuracy against epsilon, and the line that training without privacy reaches."""
    for method, (label, colour, marker) in PRIVATE.items():
        mine = [row for row in rows if row["method"] == method]
        axis.errorbar(
            [row["settings"]["target_epsilon"] for row in mine],
            [row["mean"] for row in mine],
            yerr=[row["std"] for row in mine],
            label=label,
            color=colour,
            marker=marker,
            linewidth=2,
            capsize=2,
        )
    ceiling = next(row["mean"] for row in rows if row["method"] == "sgd")
    axis.axhline(ceiling, label="SGD on words, no privacy, tuned", color="#555555", linestyle="--")
    axis.set_title(title, fontsize=10)
    axis.set_xscale("log")
    axis.set_xlim(0.42, 10)
    axis.set_xticks([0.5, 1, 3, 8], labels=["0.5", "1", "3", "8"])
    axis.set_xticks([], minor=True)
    shown = [row["mean"] for row in rows if row["method"] in PRIVATE]
    high = max(*shown, ceiling)
    axis.set_ylim(min(*shown, high - 0.11) - 0.005, high + 0.015)
    axis.yaxis.set_major_locator(MultipleLocator(0.05))
    axis.yaxis.set_major_formatter("{x:.2f}")
    axis.grid(axis="y", alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    main()
