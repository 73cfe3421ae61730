"""The few ratios that every commit must keep, quick enough to be looked at before each.

They are generous: twice what was measured, or more. Each compares two contenders that are measured
one after the other with one thread, by the time of the processor, which other work on the machine
changes little. What is broken is measured once more before it counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec

from adadps_experiments.bench.contenders import CONTENDERS, OURS
from adadps_experiments.bench.measure import Timing
from adadps_experiments.bench.processes import attempt
from adadps_experiments.bench.rows import Row, measured
from adadps_experiments.bench.sheets import Sheet, line, number
from adadps_experiments.bench.targets import Quantity, Target, Verdict
from adadps_experiments.bench.workloads import WORKLOADS, Workload

EXAMPLES = 20_000
"""Fewer than `adadps bench` has, as making them takes longer than the steps."""

TIMING = Timing(threads=1, seconds=2.0)

PROMISES: tuple[Target, ...] = (
    Target(workload="logreg-10k", against="torch", at_most=3, quantity=Quantity.PROCESSOR),
    Target(workload="autoencoder-64", against="torch", at_most=6, quantity=Quantity.PROCESSOR),
    Target(workload="embedding-bag", against="torch", at_most=2.5, quantity=Quantity.PROCESSOR),
    Target(
        workload="embedding-bag", against="opacus-ghost", at_least=5, quantity=Quantity.PROCESSOR
    ),
)

Measure = Callable[[Workload, str, Timing], Row]
Say = Callable[[str], object]


def check(say: Say, measure: Measure = attempt) -> list[Verdict]:
    """A verdict on every promise: kept, broken (twice), or skipped for want of a package."""
    rows: dict[tuple[str, str], Row] = {}

    def row(target: Target, contender: str) -> Row:
        key = (target.workload, contender)
        if key not in rows:
            workload = replace(WORKLOADS[target.workload], examples=EXAMPLES)
            rows[key] = measure(workload, contender, TIMING)
            say(line(rows[key]))
        return rows[key]

    found = []
    for promise in PROMISES:
        verdict = _verdict(promise, row)
        if verdict.outcome == "broken":
            say(f"{promise.workload}: {promise.compared} is {number(verdict.ratio)}, once more")
            for contender in (OURS, promise.against):
                rows.pop((promise.workload, contender))
            verdict = _verdict(promise, row)
        found.append(verdict)
    return found


def are_kept(verdicts: list[Verdict]) -> bool:
    """Is none of them broken?"""
    return all(verdict.outcome == "kept" or _is_skipped(verdict) for verdict in verdicts)


def sheet(verdicts: list[Verdict]) -> Sheet:
    """The verdicts as a table."""
    headings = ("workload", "ratio", "promised", "measured", "verdict")
    lines = [
        [
            verdict.target.workload,
            verdict.target.compared,
            verdict.target.goal,
            number(verdict.ratio),
            verdict.outcome,
        ]
        for verdict in verdicts
    ]
    return Sheet("Promises (processor time, one thread)", headings, lines)


def _verdict(promise: Target, row: Callable[[Target, str], Row]) -> Verdict:
    package = CONTENDERS[promise.against].package
    if package is not None and find_spec(package) is None:
        return Verdict(promise, None, f"{_SKIPPED}: {package} is not installed")
    ours, theirs = row(promise, OURS), row(promise, promise.against)
    for one in (ours, theirs):
        if not measured(one):
            return Verdict(promise, None, f"{one['contender']} {one['error']}")
    ratio = promise.ratio(ours, theirs)
    return Verdict(promise, ratio, "kept" if promise.met(ratio) else "broken")


_SKIPPED = "skipped"


def _is_skipped(verdict: Verdict) -> bool:
    return verdict.outcome.startswith(_SKIPPED)
