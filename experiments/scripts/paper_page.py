"""Write the tables of docs/results/paper.md: every table and figure of the paper beside ours.

    python experiments/scripts/paper_page.py            # fill the tables in
    python experiments/scripts/paper_page.py --check    # exit 1 if a table differs from the rows
    python experiments/scripts/paper_page.py --budgets  # compute the costs of published settings

Our numbers are read from the rows below docs/results, and a line whose rows are not there says so.
A table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``; names are keys of `TABLES`,
``budgets`` and ``claim``. The budgets are in docs/results/paper.json, which ``--budgets`` writes.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from adadps.files import write_json
from adadps_experiments.reproduce.published import RUNS, PublishedRun

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs/results"
TABLE = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
MISSING = "not finished"
ONE_PERCENT = "1.00% of the training texts"

Row = dict[str, Any]
Find = Callable[[str], Row | None]
"""Returns the row of a method, if there is one."""

LABELS = {
    "dp-sgd": "DP-SGD", "dp-adam": "DP-Adam", "dp-rmsprop": "DP-RMSProp",
    "adadps-public": "AdaDPS (RMSProp)", "adadps-public-adam": "AdaDPS (Adam)",
    "pda-dpmd": "PDA-DPMD", "warm-start": "DP-SGD, warm start", "dp-adam-pub": "DP-Adam-Pub",
    "dp-r-pub": "DP-R-Pub", "ideal": "ideal", "sgd": "SGD", "adam": "Adam",
    "adas-public": "AdaS", "whitened": "whitened", "warm-whitened": "warm start, whitened",
}  # fmt: skip
"""What the methods are called in the rows of images and of the LSTM."""


@cache
def rows_in(folder: str) -> tuple[Row, ...]:
    """Return the rows in all files of a folder of docs/results."""
    found: list[Row] = []
    for file in sorted((RESULTS / folder).glob("*.json")):
        held = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(held, list):
            found += held
    return tuple(found)


def text(
    experiment: str, dataset: str, features: str, epsilon: float | None, public: str = ONE_PERCENT
) -> Find:
    """Find rows of the experiments on text, with this public data if any."""

    def find(method: str) -> Row | None:
        for row in rows_in("text"):
            settings = row["settings"]
            if (
                (row["experiment"], row["dataset"], row["method"]) == (experiment, dataset, method)
                and row["metric"] == "test accuracy"
                and settings["features"] == features
                and settings["target_epsilon"] in (epsilon, None)
                and settings["public"] in (public, None)
            ):
                return row
        return None

    return find


def trained(folder: str, experiment: str, epsilon: float | None) -> Find:
    """Find rows of the experiments on images, or on the LSTM."""

    def find(method: str) -> Row | None:
        for row in rows_in(folder):
            paid = row["epsilon_pld"]
            near = paid is None or epsilon is None or abs(paid - epsilon) < 0.05
            if row["experiment"] == experiment and row["method"] == LABELS.get(method) and near:
                return row
        return None

    return find


@dataclass(frozen=True)
class Ours:
    """One line of ours: what it is trained on, and where its rows are."""

    name: str
    find: Find


@dataclass(frozen=True)
class Part:
    """One data set of a table: the published values, and our lines."""

    name: str
    published: tuple[str, ...]
    ours: tuple[Ours, ...]


@dataclass(frozen=True)
class Sheet:
    """A table of the paper: its methods with the headings of their columns, and its parts."""

    methods: dict[str, str]
    parts: tuple[Part, ...]
    digits: int = 3


def made(sheet: Sheet) -> str:
    """Return the table: a line for the paper and lines for ours, for each data set."""
    out = [f"| data set | whose | {' | '.join(sheet.methods.values())} | ε |"]
    out.append("|" + "---|" * (len(sheet.methods) + 3))
    for part in sheet.parts:
        out.append(f"| {part.name} | paper | {' | '.join(part.published)} | |")
        for line in part.ours:
            rows = [line.find(method) for method in sheet.methods]
            cells = [_cell(row, sheet.digits) for row in rows]
            out.append(f"| | ours, {line.name} | {' | '.join(cells)} | {_epsilon_of(rows)} |")
    return "\n".join(out) + "\n"


def _cell(row: Row | None, digits: int) -> str:
    if row is None:
        return "–"
    return f"{row['mean']:.{digits}f}"


def _epsilon_of(rows: Sequence[Row | None]) -> str:
    held = [row for row in rows if row is not None]
    if not held:
        return MISSING
    paid = [row["epsilon_pld"] for row in held if row["epsilon_pld"] is not None]
    return f"{paid[0]:.2f}" if paid else "∞"


def _imdb(experiment: str, epsilon: float | None = 1.5) -> tuple[Ours, ...]:
    return (
        Ours("the paper's features", text(experiment, "imdb", "paper", epsilon)),
        Ours("weighted features", text(experiment, "imdb", "best for DP-SGD", epsilon)),
    )


def _tags(epsilon: float = 0.84) -> tuple[Ours, ...]:
    features = (("plain features", "plain"), ("weighted", "best for DP-SGD"))
    return (
        Ours("titles, the paper's features", text("stackoverflow", "so-titles", "paper", 3.0)),
        *(
            Ours(f"{name}, {kind}", text("stackoverflow", dataset, known, epsilon))
            for name, dataset in (("titles", "so-titles"), ("packages", "debian-tags"))
            for kind, known in features
        ),
    )


AUTOENCODER = (Ours("whole data", trained("mnist", "mnist-ae", 1.6)),)
LSTM = (
    Ours("the paper's model", trained("lstm", "imdb-lstm", 2.8)),
    Ours("public vectors", trained("lstm", "imdb-lstm-vectors", 2.8)),
)
MNIST = (
    Ours("the paper's kind of model", trained("mnist", "mnist", 1.25)),
    Ours("wavelet features", trained("mnist", "mnist-wavelets", 1.25)),
)
SO, CONVEX, AE = "Stack Overflow", "IMDB (convex)", "MNIST (autoencoder), loss × 100"

TABLES = {
    "all_methods": Sheet(
        {name: LABELS[name] for name in (
            "dp-sgd", "dp-adam", "dp-rmsprop", "adadps-public", "adadps-public-adam",
        )},
        (
            Part(CONVEX, ("0.63", "0.69", "0.67", "0.80", "0.80"), _imdb("imdb")),
            Part("IMDB (LSTM)", ("0.70", "0.69", "0.69", "0.73", "0.73"), LSTM),
            Part(SO, ("0.28", "0.30", "0.31", "0.40", "0.40"), _tags()),
            Part(AE, ("5.013", "3.697", "3.636", "3.566", "3.443"), AUTOENCODER),
            Part("MNIST (classification)",
                 ("0.9273", "0.9333", "0.9314", "0.9377", "0.9541"), MNIST),
        ),
        digits=4,
    ),
    "mnist_ae": Sheet(
        {name: LABELS[name] for name in ("dp-sgd", "dp-adam", "adadps-public")},
        (
            Part("σ = 1, ε = 1.6", ("5.013", "3.697", "3.566"), AUTOENCODER),
            Part("σ = 0.75, ε = 3", ("3.792", "3.286", "3.158"),
                 (Ours("whole data", trained("mnist", "mnist-ae", 3.0)),)),
        ),
    ),
    "compare_PDA-DPMD": Sheet(
        {"pda-dpmd": "PDA-DPMD", "adadps-public": "AdaDPS, public data",
         "adadps": "AdaDPS, frequencies"},
        (
            Part("IMDB", ("0.62", "0.80", "0.75"), _imdb("imdb")),
            Part(SO, ("0.33", "0.40", "0.41"), _tags()),
            Part(AE, ("3.9", "3.6", "–"), AUTOENCODER),
        ),
    ),
    "compare_public_pretrain": Sheet(
        {"dp-sgd": "DP-SGD", "warm-start": "DP-SGD, warm start",
         "adadps-public": "AdaDPS, public data"},
        (
            Part(CONVEX, ("0.63", "0.73", "0.80"), _imdb("imdb")),
            Part(SO, ("0.28", "0.33", "0.40"), _tags()),
            Part(AE, ("5.0", "4.9", "3.6"), AUTOENCODER),
        ),
    ),
    "compare_dp-adam-pub": Sheet(
        {"dp-sgd": "DP-SGD", "dp-adam-pub": "DP-Adam-Pub", "adadps-public": "AdaDPS, public data"},
        (
            Part(CONVEX, ("0.63", "0.74", "0.80"), _imdb("imdb")),
            Part(SO, ("0.28", "0.31", "0.40"), _tags()),
            Part(AE, ("5.0", "6.4", "3.6"), AUTOENCODER),
        ),
    ),
    "imdb_tf-idf": Sheet(
        {"dp-sgd": "DP-SGD", "dp-adam": "DP-Adam", "adadps-tfidf": "AdaDPS", "ideal": "ideal"},
        (
            Part("BoW", ("0.62", "0.68", "0.75", "0.82"),
                 (Ours("the paper's features", text("imdb-tfidf", "imdb", "paper", 1.5)),)),
            Part("TF-IDF", ("0.68", "0.65", "0.80", "0.83"),
                 (Ours("TF-IDF", text("imdb-tfidf", "imdb", "tf-idf", 1.5)),)),
        ),
    ),
    "OOD-public-data": Sheet(
        {"dp-sgd": "DP-SGD", "adadps-public": "AdaDPS, public data"},
        (
            Part("IMDB, other texts", ("0.63", "0.79"), (
                Ours("250 Amazon reviews",
                     text("ood", "imdb", "paper", 1.5, "250 texts of another source")),
            )),
            Part("IMDB, same source", ("0.63", "0.80"), (
                Ours("1 % of the training texts",
                     text("ood", "imdb", "paper", 1.5, ONE_PERCENT)),
            )),
            Part(f"{SO}, other users", ("0.28", "0.40"), (
                Ours("packages, 1 % of the users",
                     text("ood", "debian-tags", "paper", 3.0, "1.00% of the users")),
            )),
            Part(f"{SO}, same source", ("0.28", "0.40"), (
                Ours("packages, 1 % of the texts",
                     text("ood", "debian-tags", "paper", 3.0, ONE_PERCENT)),
            )),
        ),
    ),
    "dp-side_non_private": Sheet(
        {"sgd": "SGD", "adam": "Adam", "adas-public": "AdaS, public data",
         "adas": "AdaS, frequencies"},
        (
            Part(CONVEX, ("0.66", "0.88", "0.88", "0.88"), _imdb("non-private", None)),
            Part("IMDB (LSTM)", ("0.88", "0.88", "0.88", "0.88"), LSTM),
            Part(SO, ("0.38", "0.64", "0.64", "0.64"), (
                Ours("titles, the paper's features",
                     text("non-private", "so-titles", "paper", None)),
                Ours("titles, weighted",
                     text("non-private", "so-titles", "best for DP-SGD", None)),
            )),
            Part(AE, ("5.013", "1.151", "1.805", "–"), AUTOENCODER),
        ),
    ),
    "motivation": Sheet(
        {"sgd": "SGD", "adam": "Adam", "adas": "AdaS", "dp-sgd": "DP-SGD", "dp-adam": "DP-Adam",
         "adadps": "AdaDPS"},
        (Part("IMDB", ("curve",) * 6, _imdb("imdb")),),
    ),
    "with-public-private": Sheet(
        {"dp-sgd": "DP-SGD", "dp-adam": "DP-Adam", "dp-r-pub": "DP-R-Pub",
         "adadps-public": "AdaDPS, public data"},
        (
            Part(SO, ("curve",) * 4, _tags()),
            Part("IMDB, ε = 2.8", ("curve",) * 4, _imdb("imdb", 2.8)[:1]),
        ),
    ),
    "without-public-private": Sheet(
        {"dp-sgd": "DP-SGD", "dp-adam": "DP-Adam", "adadps": "AdaDPS, frequencies"},
        (
            Part(SO, ("curve",) * 3, _tags()),
            Part("IMDB, ε = 2.8", ("curve",) * 3, _imdb("imdb", 2.8)[:1]),
        ),
    ),
}  # fmt: skip
"""The tables and figures of the paper by label, with its numbers."""


def sizes_table() -> str:
    """Return the paper's table of public data sizes, whose columns are sizes."""
    sizes = ("1.00%", "0.20%", "0.04%")
    out = ["| data set | whose | ideal | 1 % public | 5 × less | 25 × less | ε |", "|" + "---|" * 7]
    for name, published, dataset, epsilon in (
        (CONVEX, ("0.82", "0.80", "0.80", "0.75"), "imdb", 1.5),
        (SO, ("0.41", "0.40", "0.40", "0.39"), "so-titles", 3.0),
    ):
        out.append(f"| {name} | paper | {' | '.join(published)} | |")
        for kind, features in (("the paper's features", "paper"), ("weighted", "best for DP-SGD")):
            rows = [text("public-size", dataset, features, epsilon)("ideal")] + [
                text("public-size", dataset, features, epsilon, f"{size} of the training texts")(
                    "adadps-public"
                )
                for size in sizes
            ]
            cells = " | ".join(_cell(row, 3) for row in rows)
            where = "titles, " if dataset == "so-titles" else ""
            out.append(f"| | ours, {where}{kind} | {cells} | {_epsilon_of(rows)} |")
    return "\n".join(out) + "\n"


def toy_table() -> str:
    """Return the training losses of the paper's figure of the toy problem."""
    rows: list[Row] = json.loads((RESULTS / "toy.json").read_text(encoding="utf-8"))
    out = ["| method | published code | ours | ε (PLD / RDP) |", "|---|---|---|---|"]
    for row in rows:
        published = "–" if row["paper"] is None else f"{row['paper']:.2f}"
        paid = "∞"
        if row["epsilon_pld"] is not None:
            paid = f"{row['epsilon_pld']:.2f} / {row['epsilon_rdp']:.2f}"
        out.append(f"| {row['method']} | {published} | {row['mean']:.3g} | {paid} |")
    return "\n".join(out) + "\n"


def federated_table() -> str:
    """Return the paper's figure of federations: gains over DP-FedAvg, in points."""
    out = ["| whose | ε (PLD) | DP-FedAvg | DP-FedAdam | AdaDPS, on the device | gain |"]
    out += ["|---|---|---|---|---|---|", "| paper | 34 (RDP) | curve | curve | curve | about +5 |"]
    lines: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows_in("federated"):
        if row["epsilon_pld"] is not None:
            place = (row["settings"]["scene"], row["settings"]["features"])
            lines.setdefault(place, {})[row["method"]] = row
    names = ("DP-FedAvg", "DP-FedAdam", "AdaDPS, on the device")
    for place, held in lines.items():
        means = [held[name]["mean"] for name in names]
        cells = " | ".join(f"{mean:.3f}" for mean in means)
        epsilon = f"{held[names[0]]['epsilon_pld']:.1f}"
        gain = f"{100 * (means[2] - means[0]):+.1f}"
        out.append(f"| ours, {', '.join(place)} | {epsilon} | {cells} | {gain} |")
    return "\n".join(out) + "\n"


def claim_table() -> str:
    """Return the claim of 7.7 points: AdaDPS less the best of DP-SGD, DP-Adam and DP-RMSProp."""
    baselines = ("dp-sgd", "dp-adam", "dp-rmsprop")
    out = ["| data set | paper | ours on | best baseline | AdaDPS (RMSProp) | points |"]
    out.append("|" + "---|" * 6)
    sheet, margins = TABLES["all_methods"], []
    for part in sheet.parts[:3]:
        values = [float(value) for value in part.published]
        margins.append(100 * (values[3] - max(values[:3])))
        for index, line in enumerate(part.ours):
            rows = {name: line.find(name) for name in (*baselines, "adadps-public")}
            told = f"{margins[-1]:+.0f}" if index == 0 else ""
            first = part.name if index == 0 else ""
            if any(row is None for row in rows.values()):
                out.append(f"| {first} | {told} | {line.name} | – | – | {_partly(rows)} |")
                continue
            means = {name: row["mean"] for name, row in rows.items() if row is not None}
            best = max(baselines, key=means.__getitem__)
            gain = 100 * (means["adadps-public"] - means[best])
            out.append(
                f"| {first} | {told} | {line.name} | {means[best]:.3f} ({LABELS[best]}) | "
                f"{means['adadps-public']:.3f} | {gain:+.1f} |"
            )
    out.append(f"| mean | {sum(margins) / len(margins):+.1f} | | | | |")
    return "\n".join(out) + "\n"


def _partly(rows: dict[str, Row | None]) -> str:
    absent = [LABELS[name] for name, row in rows.items() if row is None]
    return MISSING if len(absent) == len(rows) else f"not run: {', '.join(absent)}"


def budgets_table() -> str:
    """Return what the published settings claim and cost, from docs/results/paper.json."""
    held: list[Row] = json.loads((RESULTS / "paper.json").read_text(encoding="utf-8"))
    out = [
        "| experiment | n | b | σ | steps | ε as claimed (RDP) | ε by PLD | "
        "groups as published, if batches were Poisson (PLD / RDP) | as published: shuffled (PLD) |",
        "|" + "---|" * 9,
    ]
    for row in held:
        cost = row["cost"]
        steps = int(row["epochs"] * row["examples"] / row["batch"])
        groups = row["group"] > 1
        poisson = (
            f"{cost['published_epsilon_if_poisson']:.1f} / "
            f"{cost['published_epsilon_if_poisson_by_rdp']:.1f}"
            if groups
            else "–"
        )
        shuffled = f"{cost['published_epsilon_as_is']:.0f}" if groups else "–"
        out.append(
            f"| {row['name']} | {row['examples']:,} | {row['batch']} | "
            f"{row['noise_multiplier']:g} | {steps:,} | {cost['published_epsilon_claimed']:.2f} | "
            f"{cost['published_epsilon_claimed_by_pld']:.2f} | {poisson} | {shuffled} |"
        )
    return "\n".join(out) + "\n"


def budget_of(run: PublishedRun) -> Row:
    """Return the settings of a published run and what they cost."""
    return {
        "name": run.name,
        "examples": run.examples,
        "batch": run.batch,
        "epochs": run.epochs,
        "noise_multiplier": run.noise_multiplier,
        "group": run.group,
        "cost": run.cost(),
    }


def fill(page: str) -> str:
    """Return the page with every table made again."""
    return TABLE.sub(lambda found: found[1] + _named(found[2]) + found[3], page)


def _named(name: str) -> str:
    others = {
        "budgets": budgets_table, "claim": claim_table, "public-data-size": sizes_table,
        "toy": toy_table, "so_fed": federated_table,
    }  # fmt: skip
    return others[name]() if name in others else made(TABLES[name])


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--check", action="store_true", help="change nothing")
    options.add_argument("--budgets", action="store_true", help="compute the costs, in a minute")
    given = options.parse_args()
    if given.budgets:
        write_json(RESULTS / "paper.json", [budget_of(run) for run in RUNS])
    page = RESULTS / "paper.md"
    held = page.read_text(encoding="utf-8")
    filled = fill(held)
    if not given.check:
        page.write_text(filled, encoding="utf-8")
    return int(given.check and filled != held)


if __name__ == "__main__":
    sys.exit(main())
