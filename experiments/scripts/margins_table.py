"""Write the tables of docs/where-to-use-what.md: what each kind of side information gained.

    python experiments/scripts/margins_table.py          # fill the tables in
    python experiments/scripts/margins_table.py --check  # exit 1 if a table differs from the rows

A margin is a difference of two means in points of accuracy, both from rows below docs/results. A
line whose rows are not there says "not finished".
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterable

from paper_page import MISSING, TABLE
from paper_rows import RESULTS, ROOT, Find, Row, rows_in, text, trained

PAGE = ROOT / "docs/where-to-use-what.md"
PROBLEMS = {
    "so-titles": "titles of questions, 100 tags",
    "debian-sections": "descriptions of packages, 58 sections",
    "debian-tags": "descriptions of packages, 598 tags",
    "amazon": "reviews of goods",
    "imdb": "reviews of films",
}
Line = tuple[str, str, str, float | None, float | None]
"""What was compared, with what, on what; the two means."""


def defaults(problem: str, method: str, epsilon: float = 1.0) -> float | None:
    """Return the mean accuracy of a line of the comparison of default settings."""
    for row in rows_in("defaults"):
        if (row.get("dataset"), row.get("method")) == (problem, method) and row["settings"][
            "target_epsilon"
        ] in (epsilon, None):
            return float(row["mean"])
    return None


def with_public_texts(problem: str, epsilon: float, public: str) -> float | None:
    """Return the mean accuracy of the defaults with public texts of the same kind."""
    file = RESULTS / "defaults/public-texts.json"
    held: list[Row] = json.loads(file.read_text(encoding="utf-8"))
    found = [
        row["accuracy"]
        for row in held
        if (row["problem"], row["epsilon"]) == (problem, epsilon) and row["public"] == public
    ]
    return statistics.fmean(found) if found else None


def federated(scene: str, features: str, method: str) -> float | None:
    """Return the mean accuracy of a federated line with privacy."""
    for row in rows_in("federated"):
        settings = row["settings"]
        if (
            settings["scene"] == scene
            and settings["features"].startswith(features)
            and row["method"] == method
        ):
            return float(row["mean"])
    return None


def _mean(find: Find, method: str) -> float | None:
    row = find(method)
    return None if row is None or row["mean"] is None else float(row["mean"])


def words_table() -> str:
    """IDF in the features of words, nothing tuned, over DP-SGD that was tuned without it."""
    return _table(
        (name, "IDF, nothing tuned", "DP-SGD, tuned", defaults(problem, "defaults-words"),
         defaults(problem, "dp-sgd-tuned"))
        for problem, name in PROBLEMS.items()
    )  # fmt: skip


def embeddings_table() -> str:
    """Embeddings beside words, over words alone; nothing was tuned."""
    return _table(
        (f"{name}, ε = {epsilon:g}", "words and embeddings", "words alone",
         defaults(problem, "defaults-plain", epsilon),
         defaults(problem, "defaults-words", epsilon))
        for problem, name in PROBLEMS.items()
        for epsilon in (1.0, 8.0)
    )  # fmt: skip


def public_texts_table() -> str:
    """Public texts of the same kind, over the defaults without them; both on plain words."""
    films = "unlabelled reviews of films"
    return _table(
        (f"{PROBLEMS[problem]}, ε = {epsilon:g}", public, "without public texts",
         with_public_texts(problem, epsilon, public), defaults(problem, "defaults-plain", epsilon))
        for problem, public in (("imdb", films), ("amazon", films), ("amazon", "imdb, labelled"))
        for epsilon in (0.5, 1.0)
        if with_public_texts(problem, epsilon, public) is not None
    )  # fmt: skip


def dense_table() -> str:
    """Whitening and AdaDPS over DP-SGD on dense inputs, by the depth of the model."""
    models = (
        ("autoencoder, ε = 1.6 (loss × 100)", trained("mnist", "mnist-ae", 1.6)),
        ("MNIST, small network, ε = 1.25", trained("mnist", "mnist", 1.25)),
        ("LSTM on public vectors, ε = 2.8", trained("lstm", "imdb-lstm-vectors", 2.8)),
        ("LSTM of the paper, ε = 2.8", trained("lstm", "imdb-lstm", 2.8)),
        ("MNIST, linear on wavelets, ε = 1.25", trained("mnist", "mnist-wavelets", 1.25)),
        ("Fashion-MNIST, linear on wavelets, ε = 1", trained("mnist", "fashion-mnist", 1.0)),
    )
    return _table(
        (name, label, "DP-SGD", _mean(find, method), _mean(find, "dp-sgd"))
        for name, find in models
        for method, label in (("whitened", "whitened"), ("adadps-public", "AdaDPS (RMSProp)"))
    )


def users_table() -> str:
    """AdaDPS on the device, alone and with the same after the noise, over DP-FedAvg."""
    kinds = {"paper": "the paper's features", "best for DP-SGD": "IDF features"}
    return _table(
        (f"{scene}, {kinds[features]}", label, "DP-FedAvg", federated(scene, features, method),
         federated(scene, features, "DP-FedAvg"))
        for scene in ("400 users", "all users")
        for features in kinds
        for method, label in (
            ("AdaDPS, on the device", "on the device"),
            ("AdaDPS, on the device and after the noise", "two-sided"),
        )
    )  # fmt: skip


def doors_table() -> str:
    """The doors for word frequencies, on plain features of words."""
    problems = (
        ("reviews of films, ε = 1.5", text("imdb", "imdb", "plain", 1.5)),
        ("titles, ε = 0.84", text("stackoverflow", "so-titles", "plain", 0.84)),
        ("tags of packages, ε = 0.84", text("stackoverflow", "debian-tags", "plain", 0.84)),
    )
    return _table(
        (name, label, "DP-SGD", _mean(find, method), _mean(find, "dp-sgd"))
        for name, find in problems
        for method, label in (
            ("adadps", "before the clip"),
            ("adadps-two-sided", "two-sided"),
            ("dp-sgd-weighted", "in the features"),
        )
    )


def _table(lines: Iterable[Line]) -> str:
    out = ["| data | with | instead of | points |", "|---|---|---|---|"]
    for name, what, other, mean, base in lines:
        if mean is None or base is None:
            out.append(f"| {name} | {what} | {other} | {MISSING} |")
            continue
        shown = f"{mean:.3f}", f"{base:.3f}", f"{round(100 * (mean - base), 1) + 0.0:+.1f}"
        if "loss" in name:
            shown = f"{mean:.2f}", f"{base:.2f}", f"{mean - base:+.2f}"
        out.append(f"| {name} | {what}: {shown[0]} | {other}: {shown[1]} | {shown[2]} |")
    return "\n".join(out) + "\n"


TABLES: dict[str, Callable[[], str]] = {
    "words": words_table,
    "doors": doors_table,
    "embeddings": embeddings_table,
    "public-texts": public_texts_table,
    "dense": dense_table,
    "users": users_table,
}


def fill(page: str) -> str:
    """Return the page with every table made again."""
    return TABLE.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], page)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--check", action="store_true", help="change nothing")
    check = options.parse_args().check
    held = PAGE.read_text(encoding="utf-8")
    filled = fill(held)
    if not check:
        PAGE.write_text(filled, encoding="utf-8")
    return int(check and filled != held)


if __name__ == "__main__":
    sys.exit(main())
