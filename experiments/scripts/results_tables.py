"""Write the tables of docs/results from the rows of the experiments.

    python experiments/scripts/results_tables.py          # fill the tables in
    python experiments/scripts/results_tables.py --check  # exit 1 if a table differs from the rows

A table stands between two comments: ``<!-- table: imdb imdb accuracy 1.5 -->`` names the
experiment, the data set, the metric and epsilon, and optionally the methods to show;
``<!-- end -->`` follows it. ``<!-- table: defaults -->`` is the comparison of default settings,
``<!-- table: federated all users -->`` the federated comparison in the scenario "all users",
``<!-- table: images fashion-mnist -->`` the rows of the image experiment of that name,
``<!-- table: image-settings mnist-ae mnist-ae -->`` what --tune found: a file of winners, and the
part of it, ``<!-- table: lstm imdb-lstm -->`` the rows of one model of the LSTM experiment, and
``<!-- table: lstm-trials imdb-lstm -->`` how far its trials are.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = tuple(
    ROOT / f"docs/results/{name}.md"
    for name in ("text", "defaults", "federated", "mnist", "autoencoder", "lstm")
)
ROWS = ROOT / "docs/results/text"
DEFAULTS = ROOT / "docs/results/defaults/defaults.json"
IMAGES = ROOT / "docs/results/mnist"
LSTM = ROOT / "docs/results/lstm"
FEDERATED = ROOT / "docs/results/federated/federated.json"
TABLE = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
FEATURES = ("paper", "tf-idf", "plain", "best for DP-SGD")
HEADINGS = {
    "paper": "paper's features",
    "tf-idf": "TF-IDF",
    "plain": "plain features",
    "best for DP-SGD": "best for DP-SGD",
}

Row = dict[str, Any]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--check", action="store_true", help="change nothing")
    check = options.parse_args().check
    stale = 0
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        filled = fill(text)
        stale += filled != text
        if not check:
            page.write_text(filled, encoding="utf-8")
    return int(check and stale > 0)


def fill(text: str) -> str:
    """Return the page with every table made again from its rows."""
    return TABLE.sub(lambda found: found[1] + _made(*found[2].split()) + found[3], text)


def _made(name: str, *which: str) -> str:
    if name == "defaults":
        return defaults_table()
    if name == "images":
        return images_table(*which)
    if name == "image-settings":
        return image_settings_table(*which)
    if name in ("lstm", "lstm-trials"):
        return {"lstm": lstm_table, "lstm-trials": lstm_trials}[name](*which)
    return federated_table(" ".join(which)) if name == "federated" else table(name, *which)


def federated_table(scene: str) -> str:
    """Return one line per method: accuracy and points over FedAvg for each kind of features."""
    held: list[Row] = json.loads(FEDERATED.read_text(encoding="utf-8"))
    rows = [row for row in held if row["settings"]["scene"] == scene]
    columns = list(dict.fromkeys(_features(row) for row in rows))
    heads = ["method", *(head for name in columns for head in (_named(name), "over FedAvg"))]
    found = {(row["method"], _features(row)): row for row in rows}
    plain = next(row["method"] for row in rows if row["method"].endswith("FedAvg"))
    out = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for method in dict.fromkeys(row["method"] for row in rows):
        cells = []
        for name in columns:
            row, base = found[method, name], found[plain, name]
            cells.append(f"{row['mean']:.3f} ± {row['std']:.3f}")
            cells.append("" if row is base else f"{100 * (row['mean'] - base['mean']):+.1f}")
        out.append(f"| {' | '.join([method, *cells])} |")
    return "\n".join(out) + "\n"


def images_table(experiment: str) -> str:
    """Return one line per method and epsilon, and the paper's numbers where it has any."""
    rows: list[Row] = json.loads((IMAGES / f"{experiment}.json").read_text(encoding="utf-8"))
    digits = 2 if "loss" in rows[0]["metric"] else 4
    published = any(row["paper"] is not None for row in rows)
    heads = ["method", "ε (PLD)", "ε (RDP)", rows[0]["metric"], *["paper"] * published, "runs"]
    out = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for row in rows:
        paid = [row[f"epsilon_{accountant}"] for accountant in ("pld", "rdp")]
        shown = ["–" if epsilon is None else f"{epsilon:.2f}" for epsilon in paid]
        diverged = row["mean"] is None
        shown.append("diverged" if diverged else f"{row['mean']:.{digits}f}")
        if row["seeds"] > 1 and not diverged:
            shown[-1] += f" ± {row['std']:.{digits}f}"
        if published:
            shown.append("–" if row["paper"] is None else f"{row['paper']:.{digits}f}")
        out.append(f"| {' | '.join([row['method'], *shown, str(row['seeds'])])} |")
    return "\n".join(out) + "\n"


def image_settings_table(file: str, part: str) -> str:
    """Return one line per method: how many trials it had, the best one, and the best final."""
    text = (IMAGES / f"{file}-winners.json").read_text(encoding="utf-8")
    methods: dict[str, Row] = json.loads(text)["datasets"][part]["methods"]
    heads = ["method", "trials", "best trial", "its score", "finals", "best final", "its score"]
    out = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for name, held in methods.items():
        cells = [f"`{name}`", str(len(held["trials"]))]
        cells += _best(held["trials"], held["winner of trials"])
        cells.append(str(len(held["finals"])))
        cells += _best(held["finals"], held["winner"]) if held["finals"] else ["–", "–"]
        out.append(f"| {' | '.join(cells)} |")
    return "\n".join(out) + "\n"


def _best(tried: list[tuple[dict[str, float], float]], setting: dict[str, float]) -> list[str]:
    score = next(score for other, score in tried if other == setting)
    return [", ".join(f"{name} {value:g}" for name, value in setting.items()), f"{score:.4f}"]


def lstm_table(experiment: str) -> str:
    """Return one line per method that has finished runs."""
    file = LSTM / "imdb-lstm.json"
    held: list[Row] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    rows = [row for row in held if row["experiment"] == experiment]
    if not rows:
        return "No run on the test reviews is finished.\n"
    heads = ["method", "side information", "ε (PLD)", "ε (RDP)", "test accuracy", "runs", "paper"]
    out = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for row in rows:
        paid = [row[f"epsilon_{accountant}"] for accountant in ("pld", "rdp")]
        shown = ["–" if epsilon is None else f"{epsilon:.2f}" for epsilon in paid]
        score = f"{row['mean']:.3f}" + (f" ± {row['std']:.3f}" if row["seeds"] > 1 else "")
        paper = "–" if row["paper"] is None else f"{row['paper']:.2f}"
        cells = [row["method"], row["side"], *shown, score, str(row["seeds"]), paper]
        out.append(f"| {' | '.join(cells)} |")
    return "\n".join(out) + "\n"


def lstm_trials(experiment: str) -> str:
    """Return for each method how many settings were tried, and the best one on held-out rows."""
    file = LSTM / "trials.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    trials: dict[str, list[tuple[float, str]]] = {}
    for record in map(json.loads, lines):
        if record["job"]["experiment"] == experiment:
            chosen = record["job"]["setting"]
            setting = ", ".join(f"{name} {value:g}" for name, value in chosen.items())
            score = record["values"]["accuracy"]
            trials.setdefault(record["job"]["method"], []).append((score, setting))
    if not trials:
        return "No trial is finished.\n"
    out = ["| method | trials | best accuracy | at |", "|---|---|---|---|"]
    for method, mine in trials.items():
        score, setting = max(mine)
        out.append(f"| {method} | {len(mine)} | {score:.3f} | {setting} |")
    return "\n".join(out) + "\n"


def _named(features: str) -> str:
    return "paper's features" if features.startswith("paper") else "IDF features"


def defaults_table() -> str:
    """Return one line per problem and epsilon, one column per way to choose settings."""
    rows: list[Row] = json.loads(DEFAULTS.read_text(encoding="utf-8"))
    tuned = [row for row in rows if row["settings"]["target_epsilon"] == 1]  # all lines are there
    methods = {row["method"]: row["settings"]["label"] for row in tuned}
    lines: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        place = (row["dataset"], f"{row['settings']['target_epsilon']:g}")
        lines.setdefault(place, {})[row["method"]] = row
    others = ("dp-sgd-tuned", "defaults-words", "defaults-plain", "defaults-alike")
    heads = ["problem", "ε", *methods.values(), "defaults less tuned DP-SGD", "less words"]
    heads += ["less words and embeddings", "less one share for all"]
    out = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for place, held in lines.items():
        cells = [_accuracy(held[method]) if method in held else "–" for method in methods]
        for other in others:
            known = other in held and "defaults" in held
            lead = 100 * (held["defaults"]["mean"] - held[other]["mean"]) if known else None
            cells.append("–" if lead is None else f"{lead:+.1f}")
        out.append(f"| {' | '.join([*place, *cells])} |")
    return "\n".join(out) + "\n"


def _accuracy(row: Row) -> str:
    once = row["seeds"] == 1
    return f"{row['mean']:.3f}" + ("" if once else f" ± {row['std']:.3f}")


def table(experiment: str, dataset: str, metric: str, epsilon: str, *methods: str) -> str:
    """Return one line per method, one column per kind of features."""
    held: list[Row] = json.loads((ROWS / f"{experiment}.json").read_text(encoding="utf-8"))
    rows = [
        row
        for row in held
        if row["dataset"] == dataset
        and row["metric"] == f"test {metric}"
        and row["settings"]["target_epsilon"] in (None, float(epsilon))
        and (not methods or row["method"] in methods)
    ]
    rows.sort(key=lambda row: not _aims_at_privacy(row))
    told = [row for row in rows if _aims_at_privacy(row)] or rows
    columns = [name for name in FEATURES if any(_features(row) == name for row in told)]
    rows = [row for row in rows if _features(row) in columns]
    best = {
        name: max(
            (row["mean"] for row in rows if _features(row) == name and _counts(row)), default=2
        )
        for name in columns
    }
    several = len({row["settings"]["public"] for row in rows} - {None}) > 1
    lines: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        shown = f"{row['mean']:.3f} ± {row['std']:.3f}"
        if _counts(row) and f"{row['mean']:.3f}" == f"{best[_features(row)]:.3f}":
            shown = f"**{shown}**"
        cells = lines.setdefault(_name(row, several), ["–"] * (len(columns) + 2))
        cells[columns.index(_features(row))] = shown
        cells[-2] = _epsilon(row)
        if row["paper"] is not None and f"{row['paper']:.2f}" not in cells[-1]:
            before = "" if cells[-1] == "–" else f"{cells[-1]} / "
            cells[-1] = f"{before}{row['paper']:.2f}"
    heads = ["method", "side information", *(["public data"] if several else [])]
    heads += [*(HEADINGS[name] for name in columns), "ε (PLD / RDP)", "paper"]
    out = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    out += [f"| {' | '.join([*name, *cells])} |" for name, cells in lines.items()]
    return "\n".join(out) + "\n"


def _features(row: Row) -> str:
    return str(row["settings"]["features"])


def _aims_at_privacy(row: Row) -> bool:
    """Tell whether a row has a target epsilon; those without one stand below the rest."""
    return row["settings"]["target_epsilon"] is not None


def _counts(row: Row) -> bool:
    """Tell whether a row is private and trained on private data."""
    return row["epsilon_pld"] is not None and row["epsilon_pld"] > 0


def _name(row: Row, several: bool) -> tuple[str, ...]:
    name = (row["settings"]["label"], row["side"])
    return (*name, row["settings"]["public"] or "–") if several else name


def _epsilon(row: Row) -> str:
    if row["epsilon_pld"] is None:
        return "∞"
    return f"{row['epsilon_pld']:.2f} / {row['epsilon_rdp']:.2f}"


if __name__ == "__main__":
    sys.exit(main())
