"""How far the side information spreads over the features: public, or paid for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adadps.report.charts import Chart, Line
from adadps.report.page import Section
from adadps.result import Result

_WHAT = (
    "AdaDPS divides the gradient of feature j by A_j before it is clipped, so that rare features "
    "with a small A_j count as much as frequent ones. The chart shows the entries of A from the "
    "largest on, both axes on a log scale: a flat line would change nothing."
)
_PUBLIC = "A is side information: it is public, or was paid for, and was read before training."
_NONE = (
    "No spread is shown: the method uses no side information, or side information that changes "
    "during training, was read off private data, or was not recorded."
)


def spread_section(results: Mapping[str, Result]) -> Section:
    """The sorted entries of A of every preconditioner that stays fixed during training."""
    lines, points = [], []
    for style, (name, result) in enumerate(results.items()):
        drawn = []
        for known in result.public_facts.get("preconditioners", ()):
            ranks, relative = known["ranks"], known["relative"]
            points.append(_in_words(name, known))
            if len(ranks) != len(relative) or len(ranks) < 2 or relative in drawn:
                continue
            drawn.append(relative)
            lines.append(Line(name, ranks, relative, style))
    if not lines:
        return Section("Side information", texts=[_NONE], points=points)
    chart = Chart(
        "Spread of A, relative to its largest entry",
        "entries of A, from the largest on",
        "A ÷ largest A",
        lines,
        log_x=True,
        log_y=True,
    )
    return Section("Side information", texts=[_WHAT, _PUBLIC], charts=[chart], points=points)


def _in_words(name: str, known: Mapping[str, Any]) -> str:
    price = f"cost: {known['price']}" if known["price"] else "public, at no cost"
    smallest = min(known["relative"], default=1.0)
    return (
        f"{name}: {known['entries']:,} entries, {known['place']}, the smallest {smallest:.3g} of "
        f"the largest; from {known['source']}; {price}."
    )
