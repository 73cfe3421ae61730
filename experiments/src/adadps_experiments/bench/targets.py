"""Ratios that the engine is to reach (targets) and those that every commit must keep (promises).

Ours is `adadps`, AdaDPS with one entry of A per weight, unless a target names another contender.
Promises are generous, about twice what was measured or is aimed at, and quick to check: each
compares two contenders, one after the other with one thread, by processor time, which other load on
the machine hardly changes. A broken promise is measured once more before it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from importlib.util import find_spec

from adadps_experiments.bench.contenders import CONTENDERS, OURS
from adadps_experiments.bench.measure import Timing, measure_contender
from adadps_experiments.bench.rows import Row, find, measured, one_line, readable
from adadps_experiments.bench.workloads import WORKLOADS, Workload


class Quantity(Enum):
    """The quantity that is compared."""

    TIME = "time"
    MEMORY = "memory"
    TIME_PER_ROW = "time per touched row"
    PROCESSOR = "processor time"

    def of(self, row: Row) -> float:
        """Return its value in a row."""
        if self is Quantity.MEMORY:
            return float(row["peak_mb"])
        if self is Quantity.PROCESSOR:
            return float(row["cpu_ms_per_step"])
        rows = float(row["touched_rows"]) if self is Quantity.TIME_PER_ROW else 1.0
        return float(row["ms_per_step"]) / rows


@dataclass(frozen=True, kw_only=True)
class RatioTarget:
    """A bound on a ratio: theirs ÷ ours ``at_least``, or ours ÷ theirs ``at_most``."""

    workload: str
    against: str
    at_least: float | None = None
    at_most: float | None = None
    quantity: Quantity = Quantity.TIME
    on: str | None = None
    """Their workload, if it differs from ours."""
    ours: str = OURS
    """The contender of ours."""

    @property
    def compared(self) -> str:
        """Return the ratio in words."""
        theirs = self.against if self.on is None else f"{self.against} on {self.on}"
        ratio = (theirs, self.ours) if self.at_most is None else (self.ours, theirs)
        return f"{self.quantity.value}: {' ÷ '.join(ratio)}"

    @property
    def goal(self) -> str:
        """Return the bound in words."""
        return f"≥ {self.at_least:g}" if self.at_most is None else f"≤ {self.at_most:g}"

    def compared_row(self, rows: Sequence[Row]) -> Row | None:
        """Return the row that ours is compared with, if it was measured."""
        return find(rows, self.on or self.workload, self.against)

    def ratio(self, ours: Row, theirs: Row) -> float:
        """Return the ratio of two rows."""
        own, other = self.quantity.of(ours), self.quantity.of(theirs)
        return other / max(own, 1e-9) if self.at_most is None else own / max(other, 1e-9)

    def met(self, ratio: float) -> bool:
        """Tell whether the ratio is within the bound."""
        if self.at_most is not None:
            return ratio <= self.at_most
        return self.at_least is not None and ratio >= self.at_least


@dataclass(frozen=True, kw_only=True)
class MemoryTarget:
    """A bound on our own peak of memory, in MB."""

    workload: str
    at_most: float
    ours: str = OURS
    compared: str = f"MB: {OURS}"

    @property
    def goal(self) -> str:
        """Return the bound in words."""
        return f"≤ {self.at_most:,g}"

    def ratio(self, ours: Row, _: Row) -> float:
        """Return our memory, which is compared with nobody's."""
        return Quantity.MEMORY.of(ours)

    def met(self, megabytes: float) -> bool:
        """Tell whether our memory is within the bound."""
        return megabytes <= self.at_most


@dataclass(frozen=True)
class RatioVerdict:
    """A target, the measured ratio (or MB), and the outcome in words."""

    target: RatioTarget | MemoryTarget
    ratio: float | None
    outcome: str


def _autoencoder(workload: str, torch: float) -> tuple[RatioTarget, ...]:
    return (
        RatioTarget(workload=workload, against="opacus-hooks", at_least=20),
        RatioTarget(workload=workload, against="opacus-ghost", at_least=2),
        RatioTarget(workload=workload, against="torch", at_most=torch),
    )


def _network(workload: str, torch: float, opacus: float) -> tuple[RatioTarget, ...]:
    """Return the targets against torch, and against the better of Opacus' two: against both."""
    return (
        RatioTarget(workload=workload, against="torch", at_most=torch),
        RatioTarget(workload=workload, against="opacus-hooks", at_least=opacus),
        RatioTarget(workload=workload, against="opacus-ghost", at_least=opacus),
    )


TARGETS: tuple[RatioTarget | MemoryTarget, ...] = (
    RatioTarget(workload="logreg-10k", against="opacus-hooks", at_least=400),
    RatioTarget(
        workload="logreg-10k", against="opacus-hooks", at_least=5, quantity=Quantity.MEMORY
    ),
    RatioTarget(workload="logreg-10k", against="opacus-ghost", at_least=25),
    RatioTarget(workload="logreg-10k", against="torch-sparse", at_most=2.5),
    RatioTarget(
        workload="logreg-1m-50",
        against=OURS,
        on="logreg-10k-50",
        at_most=1.2,
        quantity=Quantity.TIME_PER_ROW,
    ),
    *_autoencoder("autoencoder-64", torch=1.8),
    *_autoencoder("autoencoder-256", torch=1.6),
    RatioTarget(
        workload="autoencoder-256",
        against="adadps-dp-sgd",
        at_most=1.5,
        ours="adadps-whitened",
    ),
    RatioTarget(workload="embedding-bag", against="opacus-hooks", at_least=20),
    RatioTarget(workload="embedding-bag", against="opacus-ghost", at_least=5),
    RatioTarget(workload="embedding-bag", against="torch", at_most=1.5),
    *_network("lstm", torch=1.6, opacus=4),
    MemoryTarget(workload="lstm", at_most=1024),
    *_network("gru", torch=1.8, opacus=2),
    *_network("transformer", torch=2, opacus=1.7),
    *_network("bert-tiny", torch=2, opacus=1),
    *_network("lora", torch=2, opacus=1),
    *_network("cnn", torch=1.6, opacus=1),
)


def verdicts(rows: Sequence[Row]) -> list[RatioVerdict]:
    """Return a verdict on every target of the workloads in ``rows``."""
    seen = {row["workload"] for row in rows}
    return [_verdict(target, rows) for target in TARGETS if target.workload in seen]


def _verdict(target: RatioTarget | MemoryTarget, rows: Sequence[Row]) -> RatioVerdict:
    ours = find(rows, target.workload, target.ours)
    theirs = ours if isinstance(target, MemoryTarget) else target.compared_row(rows)
    if ours is None or theirs is None:
        return RatioVerdict(target, None, "not measured")
    for row in (ours, theirs):
        if not measured(row):
            return RatioVerdict(target, None, f"{row['contender']} cannot run")
    ratio = target.ratio(ours, theirs)
    return RatioVerdict(target, ratio, "met" if target.met(ratio) else "missed")


EXAMPLES = 20_000
"""Fewer than in `adadps bench`, because generating them takes longer than the steps."""

TIMING = Timing(threads=1, seconds=2.0)

PROMISES: tuple[RatioTarget, ...] = (
    RatioTarget(workload="logreg-10k", against="torch", at_most=3, quantity=Quantity.PROCESSOR),
    RatioTarget(workload="autoencoder-64", against="torch", at_most=6, quantity=Quantity.PROCESSOR),
    RatioTarget(
        workload="autoencoder-256",
        against="adadps-dp-sgd",
        at_most=3,
        quantity=Quantity.PROCESSOR,
        ours="adadps-whitened",
    ),
    RatioTarget(
        workload="embedding-bag", against="torch", at_most=2.5, quantity=Quantity.PROCESSOR
    ),
    RatioTarget(
        workload="embedding-bag", against="opacus-ghost", at_least=5, quantity=Quantity.PROCESSOR
    ),
    RatioTarget(workload="lstm", against="torch", at_most=3.2, quantity=Quantity.PROCESSOR),
    RatioTarget(workload="cnn", against="torch", at_most=3.2, quantity=Quantity.PROCESSOR),
    RatioTarget(workload="transformer", against="torch", at_most=4, quantity=Quantity.PROCESSOR),
)

Measure = Callable[[Workload, str, Timing], Row]
Say = Callable[[str], object]


def check_promises(say: Say, measure: Measure = measure_contender) -> list[RatioVerdict]:
    """Return a verdict on every promise: kept, broken twice, or skipped for lack of a package."""
    rows: dict[tuple[str, str], Row] = {}

    def row(target: RatioTarget, contender: str) -> Row:
        key = (target.workload, contender)
        if key not in rows:
            workload = replace(WORKLOADS[target.workload], examples=EXAMPLES)
            rows[key] = measure(workload, contender, TIMING)
            say(one_line(rows[key]))
        return rows[key]

    found = []
    for promise in PROMISES:
        verdict = _promise_verdict(promise, row)
        if verdict.outcome == "broken":
            ratio = readable(verdict.ratio)
            say(f"{promise.workload}: {promise.compared} is {ratio}; measuring again")
            for contender in (promise.ours, promise.against):
                rows.pop((promise.workload, contender))
            verdict = _promise_verdict(promise, row)
        found.append(verdict)
    return found


def all_kept(verdicts: list[RatioVerdict]) -> bool:
    """Tell whether every promise was kept or skipped."""
    return all(verdict.outcome == "kept" or _is_skipped(verdict) for verdict in verdicts)


def _promise_verdict(promise: RatioTarget, row: Callable[[RatioTarget, str], Row]) -> RatioVerdict:
    package = CONTENDERS[promise.against].package
    if package is not None and find_spec(package) is None:
        return RatioVerdict(promise, None, f"{_SKIPPED}: {package} is not installed")
    ours, theirs = row(promise, promise.ours), row(promise, promise.against)
    for one in (ours, theirs):
        if not measured(one):
            return RatioVerdict(promise, None, f"{one['contender']} {one['error']}")
    ratio = promise.ratio(ours, theirs)
    return RatioVerdict(promise, ratio, "kept" if promise.met(ratio) else "broken")


_SKIPPED = "skipped"


def _is_skipped(verdict: RatioVerdict) -> bool:
    return verdict.outcome.startswith(_SKIPPED)
