"""The report in a real browser: narrow, wide, light, dark, on paper, and without a network."""

from __future__ import annotations

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from adadps.methods import plain_sgd
from adadps.report.html import report_of_comparison, report_of_run
from support.browser import DARK, LIGHT, dom, needs_chromium, probed, run
from support.small_runs import before_the_clip, trained, two_sided

pytestmark = needs_chromium
PHONE, DESK = 360, 1200


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    torch.manual_seed(0)
    place = tmp_path_factory.mktemp("pages")
    run_with_long_words = trained(before_the_clip(), assumed_public=["x" * 300, "y " * 300])
    runs = {
        "DP-SGD": trained(),
        "AdaDPS, two-sided": trained(two_sided()),
        "a_name_without_a_single_place_to_break_it_" * 2: trained(plain_sgd(0.1)),
    }
    return {
        "run": report_of_run(run_with_long_words, place / "run.html"),
        "comparison": report_of_comparison(runs, place / "all.html", lead="A lead."),
    }


@pytest.fixture(scope="module", params=["run", "comparison"])
def page(pages, request):
    return pages[request.param]


def test_the_page_renders(page, tmp_path):
    shown = dom(page, tmp_path / "profile")
    source = page.read_text(encoding="utf-8")
    for tag in ("figure", "polyline", "table", "details", "h2"):
        assert shown.count(f"<{tag}") == source.count(f"<{tag}") > 0


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_nothing_sticks_out(page, tmp_path, width):
    found = probed(page.read_text(encoding="utf-8"), tmp_path, width=width)
    assert found["width"] == width
    assert found["scroll"] <= width
    assert found["wide"] == []
    assert found["outside"] == [], "labels within their drawings"


def test_the_probe_sees_what_sticks_out(pages, tmp_path):
    html = pages["run"].read_text(encoding="utf-8")
    wide = html.replace("<main>", '<main><p style="width:600px">wide</p>')
    found = probed(wide, tmp_path / "wide", width=PHONE)
    assert found["scroll"] > PHONE
    assert "wide" in found["wide"][0]
    moved = re.sub('<text x="[^"]*"', '<text x="900"', html)
    assert probed(moved, tmp_path / "moved", width=PHONE)["outside"] != []


def luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Return the contrast of WCAG 2, which requires 4.5 for text and 3 for graphics."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [LIGHT, DARK])
def test_light_and_dark_are_readable(pages, tmp_path, scheme):
    found = probed(pages["comparison"].read_text(encoding="utf-8"), tmp_path, scheme=scheme)
    assert (luminance(found["ground"]) > 0.5) is (scheme == LIGHT)
    assert contrast(found["ink"], found["ground"]) >= 7
    assert contrast(found["label"], found["panel"]) >= 4.5
    assert contrast(found["line"], found["panel"]) >= 3


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_all_colours_of_the_page_are_readable(pages, theme):
    css = pages["run"].read_text(encoding="utf-8")
    start = 0 if theme == "light" else css.index("prefers-color-scheme: dark")
    held = dict(re.findall(r"--([\w-]+): #(\w{6})", css[start : css.index("* {", start)]))
    light = dict(re.findall(r"--([\w-]+): #(\w{6})", css[: css.index("prefers-color-scheme")]))
    colours = {name: _rgb(value) for name, value in {**light, **held}.items()}
    if theme == "light":
        colours = {name: _rgb(value) for name, value in light.items()}
    for text, ground in (
        *(("ink", ground) for ground in ("ground", "panel")),
        *(("soft", ground) for ground in ("ground", "panel")),
        *(("good", "good-ground"), ("bad", "bad-ground"), ("ink", "good-ground")),
        *(("bad", "ground"),),
    ):
        assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for number in range(1, 9):
        assert contrast(colours[f"c{number}"], colours["panel"]) >= 3


def _rgb(value: str) -> str:
    return " ".join(str(int(value[place : place + 2], 16)) for place in (0, 2, 4))


def asked_for(html: str, folder: Path) -> list[str]:
    """Return what chromium requests from our server when it opens the page."""
    asked: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(html.encode())

        def log_message(self, *_: object) -> None:
            """Silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            dom(f"http://127.0.0.1:{server.server_port}/page", folder)
        finally:
            server.shutdown()
            thread.join()
    return [path for path in asked if path != "/favicon.ico"]  # requested by chromium itself


def test_nothing_is_asked_for_from_elsewhere(pages, tmp_path):
    html = pages["comparison"].read_text(encoding="utf-8")
    assert not re.search(r"(src|href|action|data)\s*=|url\(|@import|https?:", html)
    asking = html.replace("<main>", '<main><img src="/image.png" alt="">')
    policy = re.compile("<meta http-equiv=[^>]*>")
    assert asked_for(html, tmp_path / "1") == ["/page"]
    assert asked_for(asking, tmp_path / "2") == ["/page"], "its own policy forbids it"
    assert asked_for(policy.sub("", html), tmp_path / "3") == ["/page"]
    assert asked_for(policy.sub("", asking), tmp_path / "4") == ["/page", "/image.png"]


def test_paper_shows_all_cards_opened(pages, tmp_path):
    """A card that is closed on the screen must not be lost on paper."""
    html = pages["comparison"].read_text(encoding="utf-8")
    rule = re.search(r"details::details-content \{[^}]*\}", html)
    counts = []
    for name, content in (("opened", html), ("closed", html.replace(rule[0], ""))):
        file = tmp_path / f"{name}.html"
        file.write_text(content, encoding="utf-8")
        pdf = tmp_path / f"{name}.pdf"
        run(file, tmp_path / f"profile-{name}", f"--print-to-pdf={pdf}")
        counts.append(len(re.findall(rb"/Type\s*/Page\b", pdf.read_bytes())))
    assert counts[0] > counts[1] >= 1
