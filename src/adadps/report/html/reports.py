"""The report of one run, and the sections of every report: curves, side information, noise.

The section on noise uses public quantities alone. A step of `sgd` moves the weights by
-lr (S + N)/b, where S is a sum of gradients clipped to C each, and N is noise of standard deviation
σC in each of d coordinates. So the noise moves each weight by lr σC/b and all of them together by
about lr σC√d/b, while a batch of b gradients moves them by at most lr C. Over T steps the noise
grows as the root of Σ lr², and the largest move by gradients as Σ lr.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adadps.report.card import card_of
from adadps.report.card.meaning import about_held_out, epsilon_after
from adadps.report.card.rendering import headline_of, measured_on, readable, sections_of
from adadps.report.html.pages import Chart, ChartLine, Page, PageTable, Section, ShownCard, write
from adadps.report.result import Measurement, Result

Audit = Mapping[str, Any]


def report_of_run(
    result: Result,
    path: str | Path,
    *,
    title: str = "A private run",
    audit: Audit | None = None,
    overwrite: bool = True,
) -> Path:
    """Write one self-contained HTML page about a run: curves, side information, noise, card.

    ``audit`` is what `adadps.report.card.audits.attached_audit` returns for the folder of a saved
    result.
    """
    return write(page_of_run(result, title, audit), Path(path), overwrite=overwrite)


def page_of_run(result: Result, title: str, audit: Audit | None = None) -> Page:
    """Return the content of that page."""
    runs = {title: result}
    card = card_of(result.describe(), audit)
    shown = _shown(title, card)
    spent = spending(runs)
    return Page(
        title=title,
        lead=f"Model: {card['model']}." if card["model"] else f"Method: {result.method}",
        guarantee=shown.headline,
        meaning=card["guarantee"]["in_words"],
        private=shown.private,
        warnings=result.privacy.not_private_because,
        sections=[
            Section(
                "Accuracy and other metrics",
                texts=about_held_out(m.declared for m in result.history)
                if result.history
                else ["Nothing was measured: no held-out or public rows were given (--test)."],
                table=_last_values(result),
                charts=[*curves(runs), *([spent] if spent else [])],
            ),
            spread_section(runs),
            noise_section(runs),
            Section("Privacy card", cards=[shown]),
        ],
        made_with=result.public_facts.get("made_with", ""),
    )


def shown_card(name: str, result: Result, audit: Audit | None = None) -> ShownCard:
    """Return the privacy card of a result, ready for a page."""
    return _shown(name, card_of(result.describe(), audit))


def _shown(name: str, card: Mapping[str, Any]) -> ShownCard:
    return ShownCard(name, headline_of(card), card["private"], sections_of(card))


def _last_values(result: Result) -> PageTable | None:
    last = {(m.metric, m.data, m.declared): m for m in result.history}
    rows = [
        [readable(m.metric), f"{m.value:#.4g}", measured_on(m.data, m.declared), str(m.step)]
        for m in last.values()
    ]
    return PageTable(["metric", "last value", "measured on", "after step"], rows) if rows else None


MOST_POINTS = 12
"""The most points of a curve against epsilon: each may take a second to compute."""
MOST_METRICS = 3

Key = tuple[str, str, str]
"""The metric, its data, and how the data is declared."""


def curves(results: Mapping[str, Result]) -> list[Chart]:
    """Draw every metric that was measured more than once against steps and against epsilon."""
    found: list[Chart] = []
    for key in _metrics(results)[:MOST_METRICS]:
        measured = {name: _of(result, key) for name, result in results.items()}
        if max(len(entries) for entries in measured.values()) > 1:
            metric, data, declared = key
            metric = readable(metric)
            title = f"{metric} on {measured_on(data, declared)}"
            found.append(
                Chart(
                    f"{title}, by steps",
                    "steps",
                    metric,
                    [
                        ChartLine(
                            name, [m.step for m in entries], [m.value for m in entries], style
                        )
                        for style, (name, entries) in enumerate(measured.items())
                        if entries
                    ],
                )
            )
            spent = _against_epsilon(results, measured, f"{title}, by ε spent", metric)
            found += [spent] if spent.lines else []
    return found


def spending(results: Mapping[str, Result]) -> Chart | None:
    """Draw epsilon by steps, for runs that record their charges."""
    lines = []
    for style, (name, result) in enumerate(results.items()):
        privacy, steps = result.describe()["privacy"], result.privacy.steps
        places = sorted({round(steps * share / 8) for share in range(1, 9)} - {0})
        priced = [(step, epsilon_after(privacy, step)) for step in places]
        known = [(step, epsilon) for step, epsilon in priced if epsilon is not None]
        if known:
            lines.append(ChartLine(name, [s for s, _ in known], [e for _, e in known], style))
    return Chart("ε spent, by steps", "steps", "ε", lines) if lines else None


def _against_epsilon(
    results: Mapping[str, Result],
    measured: Mapping[str, list[Measurement]],
    title: str,
    metric: str,
) -> Chart:
    lines, missing = [], []
    for style, (name, entries) in enumerate(measured.items()):
        privacy = results[name].describe()["privacy"]
        priced = [(epsilon_after(privacy, m.step), m.value) for m in _some(entries)]
        known = [(epsilon, value) for epsilon, value in priced if epsilon is not None]
        if known:
            lines.append(ChartLine(name, [e for e, _ in known], [v for _, v in known], style))
        else:
            missing.append(name)
    note = f"Not drawn: {'; '.join(missing)} (no finite ε, or not recorded)." if missing else ""
    return Chart(title, "ε spent", metric, lines, note=note)


def _metrics(results: Mapping[str, Result]) -> list[Key]:
    keys = dict.fromkeys(
        (m.metric, m.data, m.declared) for result in results.values() for m in result.history
    )
    return list(keys)


def _of(result: Result, key: Key) -> list[Measurement]:
    return [m for m in result.history if (m.metric, m.data, m.declared) == key]


def _some(entries: list[Measurement]) -> list[Measurement]:
    """Return at most `MOST_POINTS` entries, with the first and the last."""
    if len(entries) <= MOST_POINTS:
        return entries
    last = len(entries) - 1
    places = {round(last * place / (MOST_POINTS - 1)) for place in range(MOST_POINTS)}
    return [entries[place] for place in sorted(places)]


_NOISE = (
    "How much of a step is noise follows from the settings alone. The noise of all steps together "
    "grows with the square root of their number, while gradients that agree add up, so that long "
    "runs and large batches drown out the noise. Noise on weights that no example reads does no "
    "harm."
)
_HEADINGS = (
    "run",
    "noise on one weight, per step",
    "noise on all weights, per step",
    "largest move by gradients, per step",
    "noise, all steps",
    "largest move, all steps",
    "noise ÷ largest move, all steps",
)


@dataclass(frozen=True)
class NoiseFacts:
    """Lengths in weight space, or before an update that rescales them."""

    each: float
    together: float
    most: float
    together_all_steps: float
    most_all_steps: float

    @property
    def ratio(self) -> float:
        """The noise of all steps divided by the largest move of all gradients."""
        return self.together_all_steps / self.most_all_steps


def noise_facts(result: Result) -> NoiseFacts | None:
    """Return the noise of a run in numbers; None if it has none or something was not recorded.

    For an update that divides by its own scale, such as Adam, the lengths are those of the released
    gradient before the update, i.e. with a learning rate of 1.
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


def _noise_moves(result: Result) -> bool:
    """Is there noise, whose size in the weights was recorded as not fixed?"""
    facts = result.public_facts
    return result.privacy.noise_multiplier > 0 and facts.get("noise_scale", 1) is None


def noise_section(results: Mapping[str, Result]) -> Section:
    """Return a section with one row per run that has noise."""
    rows, before_update = [], []
    without: list[str] = []
    moving: list[str] = []
    for name, result in results.items():
        found = noise_facts(result)
        if found is None:
            (moving if _noise_moves(result) else without).append(name)
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
            f"{', '.join(before_update)}: lengths before the update, which divides by its own "
            "scale and does not change the ratios."
        )
    if without:
        points.append(f"No row: {', '.join(without)} (no noise, or not recorded).")
    if moving:
        points.append(
            f"No row: {', '.join(moving)} (the clip norm, or the scale of the noise, changes "
            "from step to step, so that no one number is true)."
        )
    table = PageTable(_HEADINGS, rows) if rows else None
    return Section("Noise against the step", texts=[_NOISE], table=table, points=points)


def _short(length: float) -> str:
    """Format a length with three digits.

    >>> _short(6400.2), _short(0.01234)
    ('6,400', '0.0123')
    """
    return f"{length:,.0f}" if 1000 <= length < 1e7 else f"{length:.3g}"


_HOW = {
    "before the clip": "Before the clip, every example's gradient of feature j is divided by A_j.",
    "after the noise": "After the noise, the released gradient is divided by A_j.",
    "in the features": "In the features, feature j is divided by A_j and rows are re-normalised.",
}
"""What happens at each place where side information enters, as results record it."""
_SPREAD = (
    "So rare features with a small A_j count as much as frequent ones. The chart shows the entries "
    "of A from largest to smallest on log scales: a flat line would change nothing."
)
_KNOWN_BEFORE = (
    "A is side information: it is public or was paid for, and it was read before training."
)
_NO_SPREAD = (
    "No spread is shown: the method uses no side information, or its side information changes "
    "during training, was read from private data, or was not recorded."
)


def spread_section(results: Mapping[str, Result]) -> Section:
    """Show the sorted entries of A of every preconditioner that is fixed during training."""
    lines, points, places = [], [], []
    for style, (name, result) in enumerate(results.items()):
        for known in _each_once(result.public_facts.get("preconditioners", ())):
            points.append(_in_words(name, known))
            places += [how for place, how in _HOW.items() if place in known["place"]]
            if len(known["ranks"]) == len(known["relative"]) > 1:
                lines.append(ChartLine(name, known["ranks"], known["relative"], style))
    if not lines:
        return Section("Side information", texts=[_NO_SPREAD], points=points)
    chart = Chart(
        "Spread of A, relative to its largest entry",
        "entries of A, from the largest",
        "A ÷ largest A",
        lines,
        log_x=True,
        log_y=True,
    )
    effect = " ".join([*dict.fromkeys(places), _SPREAD])
    return Section("Side information", texts=[effect, _KNOWN_BEFORE], charts=[chart], points=points)


def _each_once(known: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Merge the entries of side information that enters at several places."""
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
