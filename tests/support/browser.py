"""Debian's chromium without a window: what a page looks like to the one who opens it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)"
)
DARK, LIGHT = 0, 1
_OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--force-device-scale-factor=1"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # nothing leaves the machine
)
PROBE = """<script>
addEventListener("load", () => {
  const root = document.documentElement, wide = [...document.body.querySelectorAll("*")]
    .filter(e => !e.closest(".scroll") && e.getBoundingClientRect().right > innerWidth + 0.5);
  const box = e => e.getBoundingClientRect();
  const outside = [...document.querySelectorAll("figure > svg")].flatMap(svg =>
    [...svg.querySelectorAll("text")].filter(t => box(t).left < box(svg).left - 0.5
      || box(t).right > box(svg).right + 0.5 || box(t).bottom > box(svg).bottom + 0.5));
  const of = e => e ? getComputedStyle(e) : {};
  parent.postMessage(JSON.stringify({
    width: innerWidth, scroll: root.scrollWidth, wide: wide.map(e => e.outerHTML.slice(0, 80)),
    outside: outside.map(t => t.textContent), ground: of(document.body).backgroundColor,
    ink: of(document.body).color, line: of(document.querySelector(".curve")).stroke,
    label: of(document.querySelector("svg text")).fill,
    panel: of(document.querySelector("figure")).backgroundColor,
  }), "*");
});
</script>"""


def run(page: Path | str, profile: Path, *options: str) -> str:
    """Open a page in a fresh profile; return what chromium prints."""
    assert CHROMIUM is not None
    place = page if isinstance(page, str) else page.as_uri()
    done = subprocess.run(
        [CHROMIUM, *_OPTIONS, f"--user-data-dir={profile}", *options, place],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


def dom(page: Path | str, profile: Path, *, width: int = 1000, scheme: int = LIGHT) -> str:
    """The page's tree after it was loaded."""
    return run(
        page,
        profile,
        "--dump-dom",
        f"--window-size={width},900",
        f"--blink-settings=preferredColorScheme={scheme}",
    )


def framed(html: str, width: int, folder: Path) -> Path:
    """A page that shows another one in a frame of this width: a window cannot be that narrow.

    The inner page may run our probe, which its own policy would forbid.
    """
    told = re.sub(r"<meta http-equiv=[^>]*>", "", html).replace("</body>", f"{PROBE}</body>")
    assert told.count("<script>") == 1
    (folder / "inner.html").write_text(told, encoding="utf-8")
    outer = folder / "outer.html"
    outer.write_text(
        "<!doctype html><title>nothing was told</title><body style='margin:0'><script>"
        "addEventListener('message', told => document.title = told.data)</script>"
        f"<iframe src='inner.html' width='{width}' height='900' style='border:0'></iframe>",
        encoding="utf-8",
    )
    return outer


def probed(html: str, folder: Path, *, width: int = 1000, scheme: int = LIGHT) -> dict[str, Any]:
    """What our probe tells of the page in a frame of this width."""
    folder.mkdir(exist_ok=True)
    shown = dom(framed(html, width, folder), folder / "profile", scheme=scheme)
    title = re.search(r"<title>(.*?)</title>", shown, re.DOTALL)
    assert title, shown[:500]
    found: dict[str, Any] = json.loads(unescape(title[1]))
    return found
