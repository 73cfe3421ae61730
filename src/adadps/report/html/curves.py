"""Measurements of one or several runs as charts: against steps, and against what was spent."""

from __future__ import annotations

from collections.abc import Mapping

from adadps.report.card.mechanism import epsilon_after
from adadps.report.card.sections import measured_on, readable
from adadps.report.html.charts import Chart, Line
from adadps.report.result import Measurement, Result

MOST_POINTS = 12
"""So many points of a curve against epsilon: each may take a second to compute."""
MOST_METRICS = 3

Key = tuple[str, str, str]
"""Metric, data and how the data is declared."""


def curves(results: Mapping[str, Result]) -> list[Chart]:
    """For every metric that was measured more than once: against steps, and against epsilon."""
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
                        Line(name, [m.step for m in entries], [m.value for m in entries], style)
                        for style, (name, entries) in enumerate(measured.items())
                        if entries
                    ],
                )
            )
            spent = _against_epsilon(results, measured, f"{title}, by ε spent", metric)
            found += [spent] if spent.lines else []
    return found


def spending(results: Mapping[str, Result]) -> Chart | None:
    """Epsilon after so many steps, of a run that records what it was charged with."""
    lines = []
    for style, (name, result) in enumerate(results.items()):
        privacy, steps = result.describe()["privacy"], result.privacy.steps
        places = sorted({round(steps * share / 8) for share in range(1, 9)} - {0})
        priced = [(step, epsilon_after(privacy, step)) for step in places]
        known = [(step, epsilon) for step, epsilon in priced if epsilon is not None]
        if known:
            lines.append(Line(name, [s for s, _ in known], [e for _, e in known], style))
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
            lines.append(Line(name, [e for e, _ in known], [v for _, v in known], style))
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
    """At most so many, with the first and the last."""
    if len(entries) <= MOST_POINTS:
        return entries
    last = len(entries) - 1
    places = {round(last * place / (MOST_POINTS - 1)) for place in range(MOST_POINTS)}
    return [entries[place] for place in sorted(places)]
