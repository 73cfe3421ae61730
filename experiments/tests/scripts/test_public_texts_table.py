"""The table of public texts in docs/results/defaults.md is that of the committed runs."""

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_page_shows_the_kept_runs():
    place = ROOT / "experiments/scripts/public_texts_table.py"
    spec = importlib.util.spec_from_file_location("public_texts_table", place)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    held = json.loads(script.JSON.read_text(encoding="utf-8"))
    assert all(0.5 < row["accuracy"] < 1 for row in held)
    found = script.table(held)
    assert len(found.splitlines()) > 2
    assert found in (ROOT / "docs" / "results" / "defaults.md").read_text(encoding="utf-8")
