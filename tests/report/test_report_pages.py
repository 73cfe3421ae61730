"""Charts and the HTML page: valid, complete, escaped, and without external links."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from xml.etree import ElementTree

import matplotlib.image
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adadps.errors import DataError
from adadps.report.card.rendering import CardSection
from adadps.report.html import pages
from adadps.report.html.pages import (
    Chart,
    ChartLine,
    Page,
    PageTable,
    Section,
    ShownCard,
    laid_out,
    render,
    write,
)
from adadps_experiments import plots
from adadps_experiments.plots import Curve, Panel, curves_of, draw

SVG = "{http://www.w3.org/2000/svg}"


def panel(*labels: str, log_y: bool = False) -> Panel:
    curves = [curves_of(label, [1, 2, 3], [[3.0, 2.0, 1.0], [3.0, 1.0, 0.5]]) for label in labels]
    return Panel("loss by epoch", "epochs", "loss", curves, log_y)


CHART = Chart(
    "loss by epoch",
    "epochs",
    "loss",
    [
        ChartLine("DP-SGD", [1, 2, 3], [3.0, 2.0, 1.0]),
        ChartLine("AdaDPS", [1, 2, 3], [2.0, 1.0, 0.5], 1),
    ],
    note="A note.",
)
CARD = ShownCard("DP-SGD", "ε = 3", True, [CardSection("Guarantee", [("unit", "example")], ["a"])])
SECTION = Section(
    "Results",
    texts=["A text."],
    table=PageTable(["method", "accuracy"], [["DP-SGD", "0.61"], ["AdaDPS", "0.69"]], highlight=1),
    charts=[CHART],
    points=["Noise is fresh in every run."],
    cards=[CARD],
)
PAGE = Page(
    title="Three methods, one budget",
    lead="What was done.",
    guarantee="ε = 3.000 at δ = 1e-05",
    private=True,
    warnings=["Careful."],
    sections=[SECTION],
    made_with="adadps 0",
)


def page_with(**changed: object) -> Page:
    return replace(PAGE, sections=[replace(SECTION, **changed)])


# --- plots --------------------------------------------------------------------------------------


def test_a_curve_is_the_mean_and_standard_deviation_over_runs():
    curve = curves_of("loss", [1, 2], [[1.0, 10.0], [3.0, 10.0], [8.0, 10.0]])
    assert (curve.label, curve.x, curve.mean) == ("loss", [1, 2], [4.0, 10.0])
    assert curve.std == pytest.approx([np.sqrt((9 + 1 + 16) / 3), 0.0])


def test_a_single_run_has_no_spread():
    assert curves_of("loss", [1, 2], [[1.0, 2.0]]).std == [0.0, 0.0]


@pytest.mark.parametrize("log_y", [False, True])
def test_svg_is_valid_xml(log_y):
    root = ElementTree.fromstring(draw([panel("DP-SGD", log_y=log_y)]))
    assert root.tag == f"{SVG}svg"
    assert len(root.findall(f".//{SVG}path")) > 10


def test_png_is_an_image_with_something_on_it():
    image = matplotlib.image.imread(io.BytesIO(draw([panel("DP-SGD")], "png")), format="png")
    assert image.ndim == 3
    assert image.std() > 0


def test_two_panels_are_drawn_side_by_side():
    one, two = (
        matplotlib.image.imread(io.BytesIO(draw([panel("a")] * count, "png")), format="png")
        for count in (1, 2)
    )
    assert two.shape[0] == one.shape[0]
    assert two.shape[1] == 2 * one.shape[1]


@pytest.mark.parametrize("name", ["{}", "a long name of a method with its side information, {}"])
def test_a_legend_below_covers_no_curve_and_leaves_them_their_room(name):
    many = replace(
        panel(*(name.format(n) for n in range(10))), note="Not drawn: " + "others; " * 30
    )
    heights = []
    for panels in ([panel("a")] * 4, [many] * 4):
        figure = plots._figure(panels, 2, legend_below=True)
        figure.draw_without_rendering()
        for axis in figure.axes:
            legend = axis.get_legend().get_window_extent()
            assert not legend.overlaps(axis.get_window_extent())
            assert not any(legend.overlaps(text.get_window_extent()) for text in titles_of(figure))
            assert legend.x0 > 0
            assert legend.y0 > 0
            assert legend.x1 < figure.bbox.x1
            assert ("Not drawn" in axis.get_legend().get_title().get_text()) is (panels[0] is many)
        heights.append(figure.axes[0].get_window_extent().height)
    assert min(heights) > 0.9 * max(heights)


def titles_of(figure):
    return [axis.title for axis in figure.axes]


def test_a_curve_without_spread_is_drawn():
    plain = Panel("t", "x", "y", [Curve("plain", [1, 2], [1.0, 2.0])])
    assert "plain" in draw([plain]).decode()


@pytest.mark.parametrize("count", [1, 6, 9])
def test_every_curve_is_drawn(count):
    labels = [f"method {i}" for i in range(count)]
    drawn = draw([panel(*labels)]).decode()
    assert [label for label in labels if label not in drawn] == []


# --- the page -----------------------------------------------------------------------------------


class Reader(HTMLParser):
    """Collects tags with their attributes, and the visible text inside each kind of tag."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if data.strip() and self.open:
            self.texts.setdefault(self.open[-1], []).append(data.strip())


def test_the_page_holds_all_its_parts():
    page = Reader(render(PAGE))
    assert page.texts["h1"] == ["Three methods, one budget"]
    assert page.texts["h2"] == ["Results"]
    assert page.texts["p"][:4] == [
        *("What was done.", "ε = 3.000 at δ = 1e-05", "Careful.", "A text."),
    ]
    assert page.texts["th"] == ["method", "accuracy", "DP-SGD", "AdaDPS"]
    assert page.texts["td"] == ["0.61", "0.69"]
    assert (page.texts["dt"], page.texts["dd"]) == (["unit"], ["example"])
    assert page.texts["li"] == ["DP-SGD", "AdaDPS", "Noise is fresh in every run.", "a"]
    assert page.texts["figcaption"] == ["loss by epoch"]
    assert page.texts["h4"] == ["Guarantee"]


def test_headings_go_down_one_by_one():
    levels = [int(tag[1]) for tag, _ in Reader(render(PAGE)).tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_those_who_do_not_see_the_plot_are_told():
    tags = Reader(render(PAGE)).tags
    told = [attrs["aria-label"] for tag, attrs in tags if attrs.get("role") == "img"]
    assert told == [
        "loss by epoch: loss by epochs. DP-SGD: from 3 at 1 to 1 at 3. "
        "AdaDPS: from 2 at 1 to 0.5 at 3."
    ]
    assert dict(tags)["html"] == {"lang": "en"}
    assert all("scope" in attrs for tag, attrs in tags if tag == "th")


def test_a_page_that_is_not_private_says_so_in_another_colour():
    assert '<p class="guarantee">' in render(PAGE)
    assert '<p class="guarantee none">' in render(replace(PAGE, private=False))


def test_the_plot_inside_is_the_whole_drawing():
    html = render(PAGE)
    inside = html[html.index("<svg viewBox") : html.index("</svg>") + len("</svg>")]
    root = ElementTree.fromstring(inside)
    assert len(root.findall("polyline")) == 2
    assert {"epochs", "loss"} <= {text.text for text in root.findall("text")}


def test_one_row_is_highlighted():
    rows = [attributes for tag, attributes in Reader(render(PAGE)).tags if tag == "tr"]
    assert rows == [{}, {}, {"class": "highlight"}]


def test_no_row_need_be_highlighted():
    html = render(page_with(table=replace(SECTION.table, highlight=None)))
    assert 'class="highlight"' not in html


def test_a_page_without_charts_has_no_figure():
    assert "figure" not in {tag for tag, _ in Reader(render(page_with(charts=[]))).tags}


ATTACK = '</td></svg><script>alert("1")</script>'
PLACES: dict[str, Callable[[], Page]] = {
    "title": lambda: replace(PAGE, title=ATTACK),
    "lead": lambda: replace(PAGE, lead=ATTACK),
    "guarantee": lambda: replace(PAGE, guarantee=ATTACK),
    "warning": lambda: replace(PAGE, warnings=[ATTACK]),
    "version": lambda: replace(PAGE, made_with=ATTACK),
    "title of a section": lambda: page_with(title=ATTACK),
    "text": lambda: page_with(texts=[ATTACK]),
    "heading": lambda: page_with(table=PageTable([ATTACK], [["a"]])),
    "cell": lambda: page_with(table=PageTable(["a"], [[ATTACK]])),
    "point": lambda: page_with(points=[ATTACK]),
    "name of a card": lambda: page_with(cards=[replace(CARD, name=ATTACK)]),
    "fact of a card": lambda: page_with(
        cards=[replace(CARD, sections=[CardSection(ATTACK, [(ATTACK, ATTACK)], [ATTACK])])]
    ),
    "chart": lambda: page_with(charts=[replace(CHART, title=ATTACK, note=ATTACK)]),
    "axes": lambda: page_with(charts=[replace(CHART, x_label=ATTACK, y_label=ATTACK)]),
    "label of a line": lambda: page_with(
        charts=[replace(CHART, lines=[ChartLine(ATTACK, [1, 2], [1.0, 2.0])] * 2)]
    ),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
def test_texts_are_shown_and_not_executed(place):
    html = render(place())
    assert "<script" not in html
    assert "&lt;script&gt;" in html


def test_the_page_is_self_contained():
    html = render(PAGE)
    page = Reader(html)
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "link", "img", "iframe", "base"})
    loading = ("src", "srcset", "href", "xlink:href", "data", "action", "background", "poster")
    assert [attrs[name] for _, attrs in page.tags for name in loading if name in attrs] == []
    assert not re.search(r"url\(|@import|https?:", html)
    policy = [attrs["content"] for _, attrs in page.tags if "http-equiv" in attrs]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_the_page_is_written_where_it_is_wanted(tmp_path):
    path = write(PAGE, tmp_path / "new" / "report.html")
    assert path.read_text(encoding="utf-8") == render(PAGE)
    assert write(PAGE, path) == path
    with pytest.raises(DataError, match="--force"):
        write(PAGE, path, overwrite=False)


# --- charts -------------------------------------------------------------------------------------


def places(x: list[float], y: list[float], **axes: bool) -> list[tuple[float, float]]:
    (line,) = laid_out(Chart("t", "x", "y", [ChartLine("a", x, y)], **axes)).lines
    return [
        tuple(float(part) for part in pair.split(","))
        for piece in line.pieces
        for pair in piece.split()
    ]


def test_larger_values_stand_higher_and_further_right():
    found = places([0, 1, 2], [1.0, 2.0, 4.0])
    assert found == sorted(found)
    assert [y for _, y in found] == sorted((y for _, y in found), reverse=True)


def test_equal_factors_are_equal_distances_on_a_log_axis():
    (a, b), (c, d), (e, f) = places([1, 10, 100], [0.01, 0.1, 1.0], log_x=True, log_y=True)
    assert (c - a, d - b) == pytest.approx((e - c, f - d), abs=0.2)


finite = st.floats(-1e12, 1e12) | st.floats(1e-9, 1.0)


@given(
    st.lists(st.tuples(finite, finite | st.just(math.nan)), min_size=1, max_size=9),
    st.booleans(),
    st.booleans(),
)
def test_every_point_and_tick_is_on_the_canvas(points, log_x, log_y):
    lines = [ChartLine("a", [x for x, _ in points], [y for _, y in points])]
    drawing = laid_out(Chart("t", "x", "y", lines, log_x=log_x, log_y=log_y))
    shown = [
        tuple(float(part) for part in pair.split(","))
        for line in drawing.lines
        for piece in line.pieces
        for pair in piece.split()
    ] + [dot for line in drawing.lines for dot in line.dots]
    fitting = [
        (x, y)
        for x, y in points
        if math.isfinite(y) and (x >= 1e-30 or not log_x) and (y >= 1e-30 or not log_y)
    ]
    assert len(shown) == len(fitting)
    for x, y in shown:
        assert pages.LEFT - 0.1 <= x <= pages.WIDTH - pages.RIGHT + 0.1
        assert pages.TOP - 0.1 <= y <= pages.HEIGHT - pages.BOTTOM + 0.1
    for ticks in (drawing.x_ticks, drawing.y_ticks):
        assert 2 <= len(ticks) <= 12
        assert len({tick.text for tick in ticks}) == len(ticks)


def test_a_value_that_is_no_number_leaves_a_gap():
    line = ChartLine("a", [1, 2, 3, 4, 5], [1.0, 2.0, math.nan, 2.0, 1.0])
    (drawn,) = laid_out(Chart("t", "x", "y", [line])).lines
    assert len(drawn.pieces) == 2
    alone = ChartLine("a", [1, 2, 3], [1.0, math.nan, 2.0])
    (drawn,) = laid_out(Chart("t", "x", "y", [alone])).lines
    assert (len(drawn.pieces), len(drawn.dots)) == (0, 2)
