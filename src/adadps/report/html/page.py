"""One self-contained HTML page: sections of texts, tables, charts and privacy cards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment

from adadps.files.writing import new_file
from adadps.report.card.rendering import CardSection
from adadps.report.html import charts
from adadps.report.html.charts import Chart, laid_out


@dataclass(frozen=True)
class PageTable:
    """Rows of texts under headings; the first cell of a row is its name."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    highlight: int | None = None
    """The row to highlight."""


@dataclass(frozen=True)
class ShownCard:
    """A privacy card under the name of its run."""

    name: str
    headline: str
    private: bool
    sections: Sequence[CardSection]


@dataclass(frozen=True)
class Section:
    """A part of the page under a heading."""

    title: str
    texts: Sequence[str] = ()
    table: PageTable | None = None
    charts: Sequence[Chart] = ()
    points: Sequence[str] = ()
    cards: Sequence[ShownCard] = ()


@dataclass(frozen=True)
class Page:
    """The content of a report; ``warnings`` are shown at the top."""

    title: str
    lead: str
    guarantee: str
    private: bool
    sections: Sequence[Section]
    warnings: Sequence[str] = ()
    made_with: str = ""
    meaning: str = ""
    """The guarantee in plain words."""


def render(page: Page) -> str:
    """Return the page as HTML, with everything inline."""
    source = files("adadps.report.html").joinpath("page.html").read_text(encoding="utf-8")
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return template.from_string(source).render(page=page, laid_out=laid_out, canvas=charts)


def write(page: Page, path: Path, *, overwrite: bool = True) -> Path:
    """Write the page to ``path``, completely or not at all."""
    with new_file(path, overwrite=overwrite) as draft:
        draft.write_text(render(page), encoding="utf-8")
    return path
