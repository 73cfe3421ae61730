"""Plots and the html page: valid, complete, escaped, and without a link to the outside."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import matplotlib.image
import numpy as np
import pytest

from adadps.report import plots
from adadps.report.page import Page, Table, render, write
from adadps.report.plots import Curve, Panel, curves_of, draw

SVG = "{http://www.w3.org/2000/svg}"


def panel(*labels: str, log_y: bool = False) -> Panel:
    curves = [curves_of(label, [1, 2, 3], [[3.0, 2.0, 1.0], [3.0, 1.0, 0.5]]) for label in labels]
    return Panel("loss by epoch", "epochs", "loss", curves, log_y)


PAGE = Page(
    title="Three methods, one budget",
    lead="What was done.",
    table=Table(["method", "accuracy"], [["DP-SGD", "0.61"], ["AdaDPS", "0.69"]], highlight=1),
    panels=[panel("DP-SGD", "AdaDPS")],
    facts=[("guarantee", "ε = 3.000 at δ = 1e-05")],
    notes=["Noise is fresh in every run."],
)


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


def test_the_page_holds_table_plot_facts_and_notes():
    page = Reader(render(PAGE))
    assert page.texts["h1"] == ["Three methods, one budget"]
    assert page.texts["p"] == ["What was done."]
    assert page.texts["th"] == ["method", "accuracy"]
    assert page.texts["td"] == ["DP-SGD", "0.61", "AdaDPS", "0.69"]
    assert (page.texts["dt"], page.texts["dd"]) == (["guarantee"], ["ε = 3.000 at δ = 1e-05"])
    assert page.texts["li"] == ["Noise is fresh in every run."]
    assert [tag for tag, _ in page.tags].count("svg") == 1


def test_the_plot_inside_is_the_whole_drawing():
    html = render(PAGE)
    inside = html[html.index("<svg") : html.index("</svg>") + len("</svg>")]
    root = ElementTree.fromstring(inside)
    assert len(root.findall(f".//{SVG}path")) > 10
    assert "<?xml" not in html


def test_one_row_is_highlighted():
    rows = [attributes for tag, attributes in Reader(render(PAGE)).tags if tag == "tr"]
    assert rows == [{}, {}, {"class": "highlight"}]


def test_no_row_need_be_highlighted():
    html = render(replace(PAGE, table=replace(PAGE.table, highlight=None)))
    assert 'class="highlight"' not in html


def test_a_page_without_panels_has_no_figure():
    assert "figure" not in {tag for tag, _ in Reader(render(replace(PAGE, panels=[]))).tags}


ATTACK = '</td></svg><script>alert("1")</script>'
PLACES: dict[str, Callable[[], Page]] = {
    "title": lambda: replace(PAGE, title=ATTACK),
    "lead": lambda: replace(PAGE, lead=ATTACK),
    "heading": lambda: replace(PAGE, table=Table([ATTACK], [["a"]])),
    "cell": lambda: replace(PAGE, table=Table(["a"], [[ATTACK]])),
    "name of a fact": lambda: replace(PAGE, facts=[(ATTACK, "a")]),
    "fact": lambda: replace(PAGE, facts=[("a", ATTACK)]),
    "note": lambda: replace(PAGE, notes=[ATTACK]),
    "label of a curve": lambda: replace(PAGE, panels=[panel(ATTACK)]),
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
    targets = [attrs[name] for _, attrs in page.tags for name in loading if name in attrs]
    assert [target for target in targets if not target.startswith("#")] == []
    assert [url for url in re.findall(r"url\(([^)]*)", html) if not url.startswith("#")] == []
    assert "@import" not in html


def test_the_page_is_written_where_it_is_wanted(tmp_path):
    path = write(replace(PAGE, panels=[]), tmp_path / "new" / "report.html")
    assert path.read_text(encoding="utf-8") == render(replace(PAGE, panels=[]))
