"""How far the side information spreads over the features: public, or paid for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adadps.report.html.charts import Chart, Line
from adadps.report.html.page import Section
from adadps.report.result import Result

_HOW = {
    "before the clip": "Before the clip, every example's gradient of feature j is divided by A_j.",
    "after the noise": "After the noise, the released gradient is divided by A_j.",
    "in the features": "In the features, feature j is divided by A_j, and rows normalised again.",
}
"""By the place at which side information enters, as results record it."""
_WHAT = (
    "So rare features with a small A_j count as much as frequent ones. The chart shows the entries "
    "of A from the largest on, both axes on a log scale: a flat line would change nothing."
)
_PUBLIC = "A is side information: it is public, or was paid for, and was read before training."
_NONE = (
    "No spread is shown: the method uses no side information, or side information that changes "
    "during training, was read off private data, or was not recorded."
)


def spread_section(results: Mapping[str, Result]) -> Section:
    """The sorted entries of A of every preconditioner that stays fixed during training."""
    lines, points, places = [], [], []
    for style, (name, result) in enumerate(results.items()):
        for known in _each_once(result.public_facts.get("preconditioners", ())):
            points.append(_in_words(name, known))
            places += [how for place, how in _HOW.items() if place in known["place"]]
            if len(known["ranks"]) == len(known["relative"]) > 1:
                lines.append(Line(name, known["ranks"], known["relative"], style))
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
    told = " ".join([*dict.fromkeys(places), _WHAT])
    return Section("Side information", texts=[told, _PUBLIC], charts=[chart], points=points)


def _each_once(known: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One entry for side information that enters at several places."""
    found: list[dict[str, Any]] = []
    for one in known:
        same = [other for other in found if _but_place(one) == _but_place(other)]
        if same:
            same[0]["place"] += f" and {one['place']}"
        else:
            found.append(dict(one))
    return found


def _but_place(known: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in known.items() if name != "place"}


def _in_words(name: str, known: Mapping[str, Any]) -> str:
    price = f"cost: {known['price']}" if known["price"] else "public, at no cost"
    smallest = min(known["relative"], default=1.0)
    return (
        f"{name}: {known['entries']:,} entries, {known['place']}, the smallest {smallest:.3g} of "
        f"the largest; from {known['source']}; {price}."
    )
