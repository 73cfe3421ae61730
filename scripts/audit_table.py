"""Makes docs/results/audit.json, row by row, and the tables of docs/results/audit.md.

    python scripts/audit_table.py                 # measures what is missing in the JSON file
    python scripts/audit_table.py --markdown      # prints the tables of the rows that are there

Delete the JSON file, or single rows of it, to measure again.
"""

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "museum"))

from exhibits import EXHIBITS  # noqa: E402

from adadps.audit.built_in import CanarySettings, RepeatedSettings  # noqa: E402
from adadps.audit.engine_paths import METHODS, PATHS  # noqa: E402
from adadps.reproduce.rows import write_json  # noqa: E402

JSON = ROOT / "docs" / "results" / "audit.json"
RUNS, CONFIDENCE = 4000, 0.99
REPEATED = {"epsilon": 1.0, "delta": 0.1, "steps": 1, "rate": 1.0}
CANARIES = {"epsilon": 4.0, "delta": 1e-6, "steps": 1, "rate": 1.0, "canaries": 5000}
HEADS = {
    "repeated": ("method", "path", "claimed ε", "lower bound", "runs", "verdict"),
    "canaries": ("method", "path", "claimed ε", "lower bound", "guesses, right", "verdict"),
    "museum": ("trainer", "", "claimed ε", "lower bound", "runs", "verdict"),
}


def jobs():
    """Every row: its name, and how it is measured."""
    pairs = [(m, p) for m in METHODS for p in PATHS if (m, p) != ("dp-adam", "late")]
    for method, path in pairs:
        asked = RepeatedSettings(method=method, path=path, **REPEATED)
        yield (
            ("repeated", method, path),
            lambda asked=asked: asked.audit(runs=RUNS, confidence=CONFIDENCE),
        )
    for method, path in pairs:
        once = CanarySettings(method=method, path=path, **CANARIES)
        yield ("canaries", method, path), lambda once=once: once.audit(confidence=CONFIDENCE)
    for name, make in EXHIBITS.items():
        for which in ("broken", "intact"):
            yield ("museum", name, which), lambda make=make, which=which: audited(make(), which)


def audited(exhibit, which):
    return exhibit.audited(getattr(exhibit, which), factor=2)


def measure(rows):
    known = {tuple(row["row"]) for row in rows}
    for name, audit in jobs():
        if name not in known:
            found = audit()
            rows.append({"row": list(name), **found.describe()})
            write_json(JSON, rows)
            print(*name, f"{found.lower_bound:.2f} of {found.claim.epsilon:.2f}", flush=True)


def tables(rows):
    """The rows in Markdown: one table for each kind of audit."""
    parts = []
    for kind, head in HEADS.items():
        lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
        lines += [line(row) for row in rows if row["row"][0] == kind]
        parts.append("\n".join(lines))
    return parts


def line(row):
    kind, first, second = row["row"]
    effort = f"{row['guesses']}, {row['right_guesses']}" if kind == "canaries" else row["runs"]
    verdict = "**above the claim**" if row["verdict"].startswith("BROKEN") else "consistent"
    bounds = f"{row['claimed_epsilon']:.2f} | {row['lower_bound']:.2f}"
    return f"| {first} | {second} | {bounds} | {effort} | {verdict} |"


def main():
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--markdown", action="store_true", help="print the tables, measure nothing")
    rows = json.loads(JSON.read_text(encoding="utf-8")) if JSON.exists() else []
    if asked.parse_args().markdown:
        print("\n\n".join(tables(rows)))
    else:
        measure(rows)


if __name__ == "__main__":
    main()
