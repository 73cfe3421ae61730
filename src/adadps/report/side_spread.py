"""How far the side information spreads over the features: public, or paid for."""

from __future__ import annotations

from collections.abc import Mapping

from adadps.report.charts import Chart, Line
from adadps.report.page import Section
from adadps.result import Result

_WHAT = (
    "AdaDPS divides the gradient of feature j by A_j before it is clipped, so that rare features "
    "with a small A_j count as much as frequent ones. The chart shows A on a log scale, sorted "
    "from the smallest entry to the largest: a flat line would change nothing."
)
_PUBLIC = "A is side information: it is public, or was paid for, and was read before training."
_NONE = (
    "No spread is shown: the method uses no side information, or side information that changes "
    "during training, was read off private data, or was not recorded."
)


def spread_section(results: Mapping[str, Result]) -> Section:
    """The quantiles of A of every preconditioner that stays fixed during training."""
    lines, points = [], []
    for style, (name, result) in enumerate(results.items()):
        drawn: set[tuple[float, ...]] = set()
        for known in result.public_facts.get("preconditioners", ()):
            quantiles = known["quantiles"]
            if len(quantiles) < 2 or tuple(quantiles) in drawn:
                continue
            drawn.add(tuple(quantiles))
            shares = [100 * place / (len(quantiles) - 1) for place in range(len(quantiles))]
            lines.append(Line(f"{name}, {known['place']}", shares, quantiles, style))
            price = f"; cost: {known['price']}" if known["price"] else "; public, no cost"
            points.append(
                f"{name}: A for {known['entries']:,} entries, {known['place']}, between "
                f"{quantiles[0]:.3g} and {quantiles[-1]:.3g}, median "
                f"{quantiles[len(quantiles) // 2]:.3g}; from {known['source']}{price}."
            )
    if not lines:
        return Section("Side information", texts=[_NONE])
    chart = Chart("Spread of A over the features", "share of the entries of A, %", "A", lines, True)
    return Section("Side information", texts=[_WHAT, _PUBLIC], charts=[chart], points=points)
