"""Take screenshots of a report with Debian's chromium: light, dark, and on a phone.

    adadps demo --out adadps-demo
    python scripts/report_screenshots.py adadps-demo/report.html --out docs/report

The phone is an inner frame of 360 pixels: a window of chromium cannot be that narrow.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import matplotlib.image

LARGEST = 300_000
"""Size in bytes that no picture may exceed."""
PHONE = 360
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
SHOTS = {"light": (1000, 1700, 1), "dark": (1000, 1700, 0), "phone": (PHONE, 1700, 1)}
"""The width, the height and the preferred colour scheme (0 is dark) of each."""


def shoot(page: Path, file: Path, width: int, height: int, scheme: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shown = page.resolve()
        if width < 500:
            shown = Path(folder) / "frame.html"
            shown.write_text(
                f"<!doctype html><body style='margin:0'><iframe src='{page.resolve().as_uri()}' "
                f"width='{width}' height='{height}' style='border:0' scrolling='no'></iframe>",
                encoding="utf-8",
            )
        chromium = shutil.which("chromium") or "chromium-browser"
        subprocess.run(
            [
                chromium,
                *OPTIONS,
                f"--user-data-dir={folder}/profile",
                f"--window-size={max(width, 500)},{height}",
                f"--blink-settings=preferredColorScheme={scheme}",
                f"--screenshot={file}",
                shown.as_uri(),
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )
    image = matplotlib.image.imread(file)[:, :width]
    matplotlib.image.imsave(file, image)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    title = re.search("<title>(.*?)</title>", asked.page.read_text(encoding="utf-8"))
    print(title[1] if title else asked.page)
    for name, (width, height, scheme) in SHOTS.items():
        file = asked.out / f"{name}.png"
        shoot(asked.page, file, width, height, scheme)
        size = file.stat().st_size
        print(f"{file}: {size} bytes")
        if size > LARGEST:
            raise SystemExit(
                f"Expected at most {LARGEST} bytes in {file}, found {size}. Make it smaller."
            )


if __name__ == "__main__":
    main()
