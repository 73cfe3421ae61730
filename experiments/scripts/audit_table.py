"""Make docs/results/audit.json row by row, and the tables of docs/results/audit.md.

    python experiments/scripts/audit_table.py             # measure the rows that are missing
    python experiments/scripts/audit_table.py --markdown  # print the tables of the measured rows

Delete the JSON file, or single rows of it, to measure again.
"""

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from adadps.audit.built_in import (  # noqa: E402
    METHODS,
    NEED_RULES,
    NEVER_LATE,
    PATHS,
    CanarySettings,
    RepeatedSettings,
    usual_steps,
)
from adadps.files import write_json  # noqa: E402
from museum.exhibits import EXHIBITS  # noqa: E402

JSON = ROOT / "docs" / "results" / "audit.json"
RUNS, CONFIDENCE = 4000, 0.99
REPEATED = {"epsilon": 1.0, "delta": 0.1, "rate": 1.0}
CANARIES = {"epsilon": 4.0, "delta": 1e-6, "canaries": 5000}
WAITING = {"steps": 32, "rate": 0.5}
"""Where noise is late: canaries left out wait for all steps, the others between batches."""

BOUNDS = ("claimed ε", "lower bound", "at most")
HEADS = {
    "repeated": ("method", "path", "steps", *BOUNDS, "runs", "verdict"),
    "canaries": ("method", "path", "steps", *BOUNDS, "guesses, right", "verdict"),
    "museum": ("trainer", "", *BOUNDS, "runs", "verdict"),
}


def jobs():
    """Yield every row: its name, and a function that measures it."""
    pairs = [
        (method, path)
        for method in METHODS
        for path in PATHS
        if not (PATHS[path].late_noise and method in NEVER_LATE)
        and not (path == "general" and method in NEED_RULES)
    ]
    for method, path in pairs:
        steps = usual_steps(path, method)
        asked = RepeatedSettings(method=method, path=path, steps=steps, **REPEATED)
        yield (
            ("repeated", method, path),
            lambda asked=asked: asked.audit(runs=RUNS, confidence=CONFIDENCE),
        )
    for method, path in pairs:
        at_once = {"steps": usual_steps(path, method), "rate": 1.0}
        pace = WAITING if PATHS[path].late_noise else at_once
        once = CanarySettings(method=method, path=path, **pace, **CANARIES)
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
    """Return the rows in Markdown, one table per kind of audit."""
    parts = []
    for kind, head in HEADS.items():
        lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
        lines += [line(row) for row in rows if row["row"][0] == kind]
        parts.append("\n".join(lines))
    return parts


def line(row):
    kind, first, second = row["row"]
    effort = row["runs"] if row["runs"] > 1 else f"1, {row['canaries']} canaries"
    if kind == "canaries":
        effort = f"{row['guesses']}, {row['right_guesses']}"
    verdict = "**above the claim**" if row["verdict"].startswith("BROKEN") else row["verdict"]
    names = [first, second, *([] if kind == "museum" else [row["settings"]["steps"]])]
    bounds = [f"{row[of]:.2f}" for of in ("claimed_epsilon", "lower_bound", "largest_bound")]
    return f"| {' | '.join(map(str, [*names, *bounds, effort, verdict]))} |"


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
