"""One self-contained html page: what was done, a table, a plot, and what may be said of privacy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment
from markupsafe import Markup

from adadps.report.plots import Panel, draw


@dataclass(frozen=True)
class Table:
    """Rows of texts under headings; ``highlight`` is the row to look at."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    highlight: int | None = None


@dataclass(frozen=True)
class Page:
    """The content of a report."""

    title: str
    lead: str
    table: Table
    panels: Sequence[Panel]
    facts: Sequence[tuple[str, str]]
    notes: Sequence[str]


def render(page: Page) -> str:
    """The page as html, with its plot inside."""
    source = files("adadps.report").joinpath("page.html").read_text(encoding="utf-8")
    template = Environment(autoescape=True, trim_blocks=True).from_string(source)
    plot = draw(page.panels).decode("utf-8") if page.panels else ""
    return template.render(page=page, plot=Markup(plot[plot.find("<svg") :] if plot else ""))


def write(page: Page, path: Path) -> Path:
    """Write the page to ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(page), encoding="utf-8")
    return path
