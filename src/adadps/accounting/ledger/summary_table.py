"""The summary of a ledger for a terminal: what is spent, on what, and what is left."""

from __future__ import annotations

import re
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

Summary = dict[str, Any]
NOTHING_PAID = "paid nothing: refused, or stopped before the first step"
NOTHING_LEFT = 1e-3
"""Less than this share of a budget is too little for a run."""


def as_rich(summary: Summary) -> Group:
    """Render a summary for a terminal of 80 columns or more; `summarise` returns all details."""
    whole = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, value in _facts(summary):
        whole.add_row(name, escape(value))
    parts: list[RenderableType] = [f"[bold]Ledger[/] {escape(summary['ledger'])}", whole]
    paid = [run for run in summary["runs"] if run["entries"]]
    if paid:
        parts += ["", _table_of(paid, summary)]
    unpaid = [run["run"] for run in summary["runs"] if not run["entries"]]
    if unpaid:
        parts.append(f"{len(unpaid)} more {_runs(len(unpaid))} {NOTHING_PAID} ({_named(unpaid)}).")
    if not summary["runs"]:
        parts.append("No run yet.")
    return Group(*parts)


def _facts(summary: Summary) -> list[tuple[str, str]]:
    budget, at = summary["budget"], f"at δ = {summary['delta']:.3g}"
    facts = []
    if budget:
        facts.append(("budget", f"ε = {budget['epsilon']:g} at δ = {budget['delta']:.3g}"))
    facts.append(("spent", f"{_spent(summary)} {at}"))
    if summary.get("delta_spent"):
        facts.append(("of δ itself", f"{summary['delta_spent']:.3g}, subtracted from δ"))
    facts.append(("left", _left(summary)))
    if summary["unit"]:
        facts.append(("protects", f"one {summary['unit']} ({summary['relation']})"))
        facts.append(("accountant", summary["accountant"].upper()))
    if summary["filter"]:
        facts.append(
            (
                "claim",
                f"ε = {budget['epsilon']:g} for each model: the runs were chosen one by one, so "
                "only the whole budget may be claimed (with 2δ, if one was begun after looking at "
                "another)",
            )
        )
    return facts


def _spent(summary: Summary) -> str:
    """Return what is spent; with several runs, the budget minus what the filter has left."""
    if not summary["accountant"]:
        return "nothing"
    if summary["filter"] and isinstance(summary["epsilon"].get(summary["accountant"]), float):
        return f"ε = {summary['budget']['epsilon'] - summary['left']:.4g}"
    number = _number(summary["epsilon"], summary)
    return f"ε = {number}" if number[0].isdigit() else number


def _left(summary: Summary) -> str:
    budget, left = summary["budget"], summary["left"]
    if not budget:
        return "no budget was set: charges are counted, and none is refused"
    epsilon = f"ε = {left:.4g}"
    return epsilon if left > budget["epsilon"] * NOTHING_LEFT else f"nothing ({epsilon})"


def _table_of(runs: list[dict[str, Any]], summary: Summary) -> Table:
    table = Table(
        title="What it was spent on",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        caption="ε alone: the cost if this were the only run. All details: --json",
        caption_justify="left",
    )
    for heading in ("run", "ε alone", "steps paid"):
        table.add_column(heading, no_wrap=heading != "steps paid")
    table.add_column("how", overflow="fold")
    for run in runs:
        cells = (_named([run["run"]]), _number(run["epsilon"], summary), _steps(run), _how(run))
        table.add_row(*(escape(cell) for cell in cells))
    return table


def _steps(run: dict[str, Any]) -> str:
    planned, paid = run["steps_planned"], run["steps_reserved"]
    lines = [f"{paid}" if planned is None else f"{paid} of {planned}"]
    if run["lives"] > 1:
        lines.append(f"started {run['lives']} times")
    return "\n".join(lines)


def _how(run: dict[str, Any]) -> str:
    sampler = run["sampler"]
    unit = "users" if "users" in sampler else "examples"
    lines = []
    if sampler.get(unit) and sampler.get("expected_size"):
        lines.append(f"about {_plain(sampler['expected_size'])} of {sampler[unit]} {unit} per step")
    if run["chain"]:
        lines.append(stages_of(run["chain"]))
    lines += [
        f"side information: {_short(str(side['source']))}" for side in run["side_information"]
    ]
    bought = run["entries"] - run["steps_reserved"]
    what = "side information" if run["side_information"] else "levels, classes and bounds"
    if any(charge["event"].startswith("SelfComposed") for charge in run["events"]):
        what = "the choice of features"  # steps of its trials are charged together
    lines += [f"{bought} charged for {what}"] if bought else []
    return "\n".join(lines) or "–"


def stages_of(chain: str) -> str:
    """Return the stages of a chain without their settings.

    >>> stages_of("reparametrise(wordfreq (en); A = 1) > privatize(C=1, σ=2) > sgd(0.1)")
    'reparametrise > privatize > sgd'
    """
    inner = re.compile(r"\([^()]*\)")
    while inner.search(chain):
        chain = inner.sub("", chain)
    return chain


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _short(source: str) -> str:
    """Return the source without the formula of A."""
    return source.partition("; A =")[0]


def _number(epsilons: dict[str, float | str | None], summary: Summary) -> str:
    """Return epsilon by the ledger's accountant, which decides about charges."""
    if not epsilons:
        return "–"
    value = epsilons.get(summary["accountant"])
    if value is None:
        return "∞ (not private)"
    return value if isinstance(value, str) else f"{value:.4g}"


def _named(runs: list[str]) -> str:
    return ", ".join(run[:12] for run in runs)


def _runs(count: int) -> str:
    return "run" if count == 1 else "runs"
