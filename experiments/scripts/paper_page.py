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
from collections.abc import Sequence

from paper_rows import LABELS, RESULTS, Row, rows_in, text
from paper_sheets import CONVEX, SO, TABLES, Sheet

from adadps.files import write_json
from adadps_experiments.reproduce.published import RUNS, PublishedRun

TABLE = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
MISSING = "not finished"


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
    if row["mean"] is None:
        return "diverged"
    return f"{row['mean']:.{digits}f}"


def _epsilon_of(rows: Sequence[Row | None]) -> str:
    held = [row for row in rows if row is not None]
    if not held:
        return MISSING
    paid = [row["epsilon_pld"] for row in held if row["epsilon_pld"] is not None]
    return f"{paid[0]:.2f}" if paid else "∞"


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
            if any(row is None or row["mean"] is None for row in rows.values()):
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
    absent = [LABELS[name] for name, row in rows.items() if row is None or row["mean"] is None]
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
