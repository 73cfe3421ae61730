"""The report of one run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adadps.report.card import card_of
from adadps.report.card.not_covered import about_held_out
from adadps.report.card.sections import headline_of, measured_on, readable, sections_of
from adadps.report.html.curves import curves, spending
from adadps.report.html.noise_facts import noise_section
from adadps.report.html.page import Page, Section, ShownCard, Table, write
from adadps.report.html.side_spread import spread_section
from adadps.report.result import Result

Audit = Mapping[str, Any]


def report_of_run(
    result: Result,
    path: str | Path,
    *,
    title: str = "A private run",
    audit: Audit | None = None,
    overwrite: bool = True,
) -> Path:
    """Write one self-contained html page about a run: curves, side information, noise, card.

    ``audit`` is what `adadps.report.card.audited.attached_audit` finds in the folder of a saved
    result.
    """
    return write(page_of_run(result, title, audit), Path(path), overwrite=overwrite)


def page_of_run(result: Result, title: str, audit: Audit | None = None) -> Page:
    """The content of that page."""
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
                "Accuracy and other numbers",
                texts=about_held_out(m.declared for m in result.history)
                if result.history
                else ["No accuracy was measured: no held-out or public rows were given (--test)."],
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
    """A result's privacy card, ready for a page."""
    return _shown(name, card_of(result.describe(), audit))


def _shown(name: str, card: Mapping[str, Any]) -> ShownCard:
    return ShownCard(name, headline_of(card), card["private"], sections_of(card))


def _last_values(result: Result) -> Table | None:
    last = {(m.metric, m.data, m.declared): m for m in result.history}
    rows = [
        [readable(m.metric), f"{m.value:#.4g}", measured_on(m.data, m.declared), str(m.step)]
        for m in last.values()
    ]
    return Table(["what", "last value", "measured on", "after step"], rows) if rows else None
