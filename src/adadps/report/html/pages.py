"""Pages of a report: sections of texts, tables, charts and privacy cards in one HTML file.

Line charts are laid out as coordinates on a canvas; the template turns them into SVG.
Colours, line widths and fonts are the page's (CSS variables), so that a chart is readable on light,
dark and paper.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment

from adadps.files import new_file
from adadps.report.card.rendering import CardSection

WIDTH, HEIGHT = 420, 270
LEFT, RIGHT, TOP, BOTTOM = 70, 22, 12, 46
LARGEST = 1e30
"""Larger values, or smaller ones than its inverse on a log axis, are not drawn."""
INTERVALS = 5
"""An axis has at most this many intervals between its ticks."""
ROUNDING = 1e-7
"""Part of an interval by which a value may pass the outermost tick: quotients are rounded."""
STYLES = 8
"""The number of line styles; the ninth line looks like the first."""


@dataclass(frozen=True)
class ChartLine:
    """A named line through points; a value that is not finite leaves a gap."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    style: int = 0
    """The style of the line, so that the same method looks the same in all charts."""


@dataclass(frozen=True)
class Chart:
    """One set of axes."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[ChartLine]
    log_x: bool = False
    log_y: bool = False
    note: str = ""


@dataclass(frozen=True)
class Tick:
    """A position on an axis, and its label."""

    at: float
    text: str


@dataclass(frozen=True)
class DrawnLine:
    """The pieces of a line as SVG points; single points are drawn as dots."""

    label: str
    style: int
    pieces: Sequence[str]
    dots: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class LaidOutChart:
    """A chart with the coordinates of all its parts."""

    chart: Chart
    lines: Sequence[DrawnLine]
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    in_words: str


def laid_out(chart: Chart) -> LaidOutChart:
    """Compute the coordinates of all parts of a chart.

    >>> line = ChartLine("a", [0, 10], [1.0, 2.0])
    >>> laid_out(Chart("loss", "steps", "loss", [line])).in_words
    'loss: loss by steps. a: from 1 at 0 to 2 at 10.'
    """
    points = [
        (x, y)
        for line in chart.lines
        for x, y in zip(line.x, line.y, strict=True)
        if _fits(chart, x, y)
    ]
    xs, ys = [x for x, _ in points] or [1.0], [y for _, y in points] or [1.0]
    x_ticks, x_range = (_log_ticks if chart.log_x else _linear_ticks)(min(xs), max(xs))
    y_ticks, y_range = (_log_ticks if chart.log_y else _linear_ticks)(min(ys), max(ys))
    across = _scale(x_range, (LEFT, WIDTH - RIGHT), log=chart.log_x)
    down = _scale(y_range, (HEIGHT - BOTTOM, TOP), log=chart.log_y)
    return LaidOutChart(
        chart,
        [_drawn(chart, line, across, down) for line in chart.lines],
        _labelled(x_ticks, across, log=chart.log_x),
        _labelled(y_ticks, down, log=chart.log_y),
        _in_words(chart),
    )


def _drawn(
    chart: Chart, line: ChartLine, across: Callable[[float], float], down: Callable[[float], float]
) -> DrawnLine:
    pieces: list[list[tuple[float, float]]] = [[]]
    for x, y in zip(line.x, line.y, strict=True):
        if _fits(chart, x, y):
            pieces[-1].append((round(across(x), 1), round(down(y), 1)))
        else:
            pieces.append([])
    return DrawnLine(
        line.label,
        line.style % STYLES + 1,
        [" ".join(f"{x},{y}" for x, y in piece) for piece in pieces if len(piece) > 1],
        [piece[0] for piece in pieces if len(piece) == 1],
    )


def _fits(chart: Chart, x: float, y: float) -> bool:
    return _fits_axis(x, log=chart.log_x) and _fits_axis(y, log=chart.log_y)


def _fits_axis(value: float, *, log: bool) -> bool:
    return math.isfinite(value) and abs(value) <= LARGEST and (value >= 1 / LARGEST or not log)


def _linear_ticks(low: float, high: float) -> tuple[list[float], tuple[float, float]]:
    """Return round numbers around the values, and the range that they span.

    >>> _linear_ticks(0.0, 97.0)[0]
    [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]
    """
    largest = max(abs(low), abs(high))
    if high - low <= 1e-6 * largest or largest < 1 / LARGEST:  # as good as one value
        room = largest / 2 if largest >= 1 / LARGEST else 0.5
        low, high = low - room, high + room
    power = 10.0 ** math.floor(math.log10((high - low) / INTERVALS))
    for step in (1, 2, 2.5, 5, 10, 20):
        first = math.floor(low / (step * power) + ROUNDING)
        last = math.ceil(high / (step * power) - ROUNDING)
        if last - first <= INTERVALS:
            break
    ticks = [number * step * power for number in range(first, last + 1)]
    return ticks, (ticks[0], ticks[-1])


def _log_ticks(low: float, high: float) -> tuple[list[float], tuple[float, float]]:
    """Return powers of ten around the values, at most six of them."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    last = max(last, first + 1)
    stride = math.ceil((last - first) / INTERVALS)
    ticks = [10.0**exponent for exponent in range(first, last + 1, stride)]
    return ticks, (10.0**first, 10.0**last)


def _scale(
    values: tuple[float, float], places: tuple[float, float], *, log: bool
) -> Callable[[float], float]:
    turn = math.log10 if log else float
    low, high = (turn(value) for value in values)

    def place(value: float) -> float:
        return places[0] + (turn(value) - low) / (high - low) * (places[1] - places[0])

    return place


def _labelled(ticks: list[float], place: Callable[[float], float], *, log: bool) -> list[Tick]:
    """Ticks with their texts: on a linear axis all with the same number of decimals."""
    texts = _powers(ticks) if log else _decimals(ticks)
    return [Tick(round(place(value), 1), text) for value, text in zip(ticks, texts, strict=True)]


def _powers(ticks: list[float]) -> list[str]:
    return [f"{value:,.10g}" if 1e-4 <= value < 1e6 else f"{value:.0e}" for value in ticks]


def _decimals(ticks: list[float]) -> list[str]:
    """As few decimals as tell the ticks apart without rounding them.

    >>> _decimals([0.0, 2.5, 5.0])
    ['0.0', '2.5', '5.0']
    """
    step, largest = ticks[1] - ticks[0], max(map(abs, ticks))
    if largest >= 1e6 or step < 1e-4:
        digits = next(
            n for n in range(12) if len({f"{tick:.{n}e}" for tick in ticks}) == len(ticks)
        )
        return [f"{tick + 0.0:.{digits}e}" for tick in ticks]
    places = next(n for n in range(8) if abs(round(step, n) - step) < 1e-3 * step)
    return [f"{round(tick, places) + 0.0:,.{places}f}" for tick in ticks]


def _in_words(chart: Chart) -> str:
    """Describe the chart for screen readers."""
    sentences = [f"{chart.title}: {chart.y_label} by {chart.x_label}."]
    for line in chart.lines:
        shown = [pair for pair in zip(line.x, line.y, strict=True) if _fits(chart, *pair)]
        if shown:
            (x0, y0), (x1, y1) = shown[0], shown[-1]
            sentences.append(f"{line.label}: from {y0:.3g} at {x0:.3g} to {y1:.3g} at {x1:.3g}.")
    return " ".join(sentences)


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
    canvas = sys.modules[__name__]
    return template.from_string(source).render(page=page, laid_out=laid_out, canvas=canvas)


def write(page: Page, path: Path, *, overwrite: bool = True) -> Path:
    """Write the page to ``path``, completely or not at all."""
    with new_file(path, overwrite=overwrite) as draft:
        draft.write_text(render(page), encoding="utf-8")
    return path
