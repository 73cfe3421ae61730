"""The tables of docs/results/doctor.md are those of the committed rows."""

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_page_shows_the_kept_rows():
    place = ROOT / "experiments/scripts/doctor_table.py"
    spec = importlib.util.spec_from_file_location("doctor_table", place)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    page = (ROOT / "docs" / "results" / "doctor.md").read_text(encoding="utf-8")
    found = script.tables(json.loads(script.JSON.read_text(encoding="utf-8")))
    assert len(found) == 4
    for table in found:
        assert table in page
