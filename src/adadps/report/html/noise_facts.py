"""Noise against the step that it perturbs, from public quantities alone.

A step of `sgd` moves the weights by -lr (S + N)/b: S is a sum of gradients clipped to C each, N is
noise of standard deviation σC in each of d coordinates. So noise moves each weight by lr σC/b and
all of them together by about lr σC√d/b, while a batch of b gradients moves them by at most lr C.
Over T steps noise grows as the root of Σ lr², what gradients can do as Σ lr.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from adadps.report.html.page import Section, Table
from adadps.report.result import Result

_WHAT = (
    "How much of a step is noise follows from the settings alone: the noise of all steps together "
    "grows with the root of their number, while gradients that agree add up, so that long runs and "
    "large batches drown the noise; noise on weights that no example reads does no harm."
)
_HEADINGS = (
    "run",
    "noise on one weight, a step",
    "noise on all weights, a step",
    "most by gradients, a step",
    "noise, all steps",
    "most, all steps",
    "noise ÷ most, all steps",
)


@dataclass(frozen=True)
class NoiseFacts:
    """Lengths in the space of the weights, or before an update that rescales them."""

    each: float
    together: float
    most: float
    together_all_steps: float
    most_all_steps: float

    @property
    def ratio(self) -> float:
        """Noise over what gradients can do, when all steps are taken."""
        return self.together_all_steps / self.most_all_steps


def noise_facts(result: Result) -> NoiseFacts | None:
    """The noise of a run in numbers; None if it has none, or if something was not recorded.

    For an update that divides by its own scale, such as Adam, lengths are those of the released
    gradient before it, i.e. with a learning rate of 1.
    """
    privacy, facts = result.privacy, result.public_facts
    scale, units = facts.get("noise_scale"), facts.get("expected_units")
    deviation = privacy.noise_multiplier * privacy.clip_norm if privacy.noise_multiplier else 0.0
    if not (scale and units and facts.get("parameters") and privacy.steps and deviation):
        return None
    rates = facts.get("learning_rates") if facts.get("update") == "sgd" else None
    steps = privacy.steps
    first = rates["first"] if rates else 1.0
    squares = rates["root_of_squares"] if rates else math.sqrt(steps)
    total = rates["total"] if rates else float(steps)
    each = deviation / units * scale["typical"]
    together = each * math.sqrt(facts["parameters"])
    most = privacy.clip_norm * scale["largest"]
    if not (math.isfinite(together) and math.isfinite(most) and most * total > 0):
        return None
    return NoiseFacts(
        first * each, first * together, first * most, squares * together, total * most
    )


def noise_section(results: Mapping[str, Result]) -> Section:
    """A row for every run that has noise."""
    rows, before_update, without = [], [], []
    for name, result in results.items():
        found = noise_facts(result)
        if found is None:
            without.append(name)
            continue
        if result.public_facts.get("update") != "sgd":
            before_update.append(name)
        lengths = (
            found.each, found.together, found.most, found.together_all_steps, found.most_all_steps
        )  # fmt: skip
        rows.append([name, *map(_short, lengths), _short(found.ratio)])
    points = []
    if before_update:
        points.append(
            f"{', '.join(before_update)}: before the update, which divides by a scale of its own "
            "and leaves the ratios alone."
        )
    if without:
        points.append(f"No row: {', '.join(without)} (no noise, or not recorded).")
    table = Table(_HEADINGS, rows) if rows else None
    return Section("Noise against the step", texts=[_WHAT], table=table, points=points)


def _short(length: float) -> str:
    """Three digits.

    >>> _short(6400.2), _short(0.01234)
    ('6,400', '0.0123')
    """
    return f"{length:,.0f}" if 1000 <= length < 1e7 else f"{length:.3g}"
