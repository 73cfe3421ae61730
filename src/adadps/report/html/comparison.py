"""The report of several runs side by side, with a warning if their guarantees differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from adadps.errors import DataError
from adadps.report.card.meaning import about_held_out, meaning_of
from adadps.report.card.rendering import digits, measured_on, readable
from adadps.report.html.pages import Page, PageTable, Section, write
from adadps.report.html.reports import Audit, curves, noise_section, shown_card, spread_section
from adadps.report.result import Result

EQUAL = 0.005
"""Epsilons that differ by a smaller share count as equal: noise is calibrated in small units."""

Columns = Mapping[str, Mapping[str, str]]


def report_of_comparison(
    results: Mapping[str, Result],
    path: str | Path,
    *,
    title: str = "Private runs side by side",
    lead: str = "",
    notes: Sequence[str] = (),
    columns: Columns | None = None,
    highlight: str | None = None,
    audits: Mapping[str, Audit] | None = None,
    overwrite: bool = True,
) -> Path:
    """Write one self-contained HTML page that compares named runs.

    Runs that differ in epsilon or delta are shown with a warning. ``columns`` are further columns
    of the table: a heading, then a text per name. ``highlight`` names the row to emphasise, and
    ``audits`` are attached audits by the names of their runs.
    """
    page = page_of_comparison(results, title, lead, notes, columns or {}, highlight, audits)
    return write(page, Path(path), overwrite=overwrite)


def page_of_comparison(
    results: Mapping[str, Result],
    title: str,
    lead: str,
    notes: Sequence[str],
    columns: Columns,
    highlight: str | None,
    audits: Mapping[str, Audit] | None = None,
) -> Page:
    """Return the content of that page."""
    if len(results) < 2:
        raise DataError(
            f"Expected at least two runs to compare, found {len(results)}. Use `report_of_run` for "
            "one run."
        )
    warnings = differences(results)
    private = [result for result in results.values() if result.privacy.private]
    return Page(
        title=title,
        lead=lead,
        guarantee=_guarantee(private, len(results), equal=not warnings),
        meaning=_meaning(private) if private and not warnings else "",
        private=bool(private) and not warnings,
        warnings=warnings,
        sections=[
            Section(
                "Methods side by side" if warnings else "Methods at equal ε",
                texts=about_held_out(m.declared for r in results.values() for m in r.history),
                table=_table(results, columns, highlight),
                charts=curves(results),
            ),
            spread_section(results),
            noise_section(results),
            Section(
                "Privacy cards",
                cards=[
                    shown_card(name, result, (audits or {}).get(name))
                    for name, result in results.items()
                ],
            ),
            *([Section("How to read this", points=notes)] if notes else []),
        ],
        made_with=", ".join(
            sorted({r.public_facts.get("made_with", "") for r in results.values()} - {""})
        ),
    )


def differences(results: Mapping[str, Result]) -> list[str]:
    """Return why the private runs must not be compared as equals; empty if they can be."""
    private = {name: r.privacy for name, r in results.items() if r.privacy.private}
    found = []
    for symbol, values in (
        ("ε", {name: p.epsilon for name, p in private.items()}),
        ("δ", {name: p.delta for name, p in private.items()}),
    ):
        if values and not math.isclose(min(values.values()), max(values.values()), rel_tol=EQUAL):
            listed = "; ".join(f"{name}: {value:.4g}" for name, value in values.items())
            found.append(
                f"These runs do not have the same {symbol} ({listed}): not a fair comparison."
            )
    for what, texts in (
        ("neighbouring relation", {p.relation for p in private.values()}),
        ("unit of privacy", {p.unit for p in private.values()}),
    ):
        if len(texts) > 1:
            found.append(f"These runs do not have the same {what} ({'; '.join(sorted(texts))}).")
    return found


def _guarantee(private: list[Result], runs: int, *, equal: bool) -> str:
    if not private:
        return "NOT PRIVATE: ε = ∞ for every run"
    others = runs - len(private)
    beside = f"; {others} more without privacy (ε = ∞)" if others else ""
    if not equal:
        return f"{len(private)} private runs with different guarantees{beside}"
    weakest = _weakest(private).privacy
    return (
        f"ε = {digits(weakest.epsilon)} at δ = {weakest.delta:.3g}, per {weakest.unit}, for each "
        f"of {len(private)} private runs{beside}"
    )


def _meaning(private: list[Result]) -> str:
    words = meaning_of(asdict(_weakest(private).privacy), "one of these models")
    several = " For somebody who sees several of them, their costs add up."
    return words + (several if len(private) > 1 else "")


def _weakest(private: list[Result]) -> Result:
    """Return the private run with the largest epsilon, which holds for all of them."""
    return max(private, key=lambda result: result.privacy.epsilon)


def _table(results: Mapping[str, Result], columns: Columns, highlight: str | None) -> PageTable:
    metrics = list(
        dict.fromkeys((m.metric, m.data, m.declared) for r in results.values() for m in r.history)
    )
    headings = [
        "run",
        *(
            f"{readable(metric)}, {measured_on(data, declared)}"
            for metric, data, declared in metrics
        ),
        "ε",
        "δ",
        *columns,
    ]
    rows = []
    for name, result in results.items():
        last = {(m.metric, m.data, m.declared): m.value for m in result.history}
        privacy = result.privacy
        rows.append(
            [
                name,
                *(f"{last[key]:#.4g}" if key in last else "–" for key in metrics),
                digits(privacy.epsilon) if privacy.private else "∞ (not private)",
                f"{privacy.delta:.3g}" if privacy.private else "–",
                *(column.get(name, "–") for column in columns.values()),
            ]
        )
    place = list(results).index(highlight) if highlight and highlight in results else None
    return PageTable(headings, rows, place)
