"""What the engine is meant to reach: targets as data, and a verdict on measured rows.

Ours is always `adadps`: AdaDPS with a number of A for every weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from adadps_experiments.bench.contenders import OURS
from adadps_experiments.bench.rows import Row, find, measured


class Quantity(Enum):
    """What is compared."""

    TIME = "time"
    MEMORY = "memory"
    TIME_PER_ROW = "time per touched row"
    PROCESSOR = "processor time"

    def of(self, row: Row) -> float:
        """Its value in a row."""
        if self is Quantity.MEMORY:
            return float(row["peak_mb"])
        if self is Quantity.PROCESSOR:
            return float(row["cpu_ms_per_step"])
        rows = float(row["touched_rows"]) if self is Quantity.TIME_PER_ROW else 1.0
        return float(row["ms_per_step"]) / rows


@dataclass(frozen=True, kw_only=True)
class Target:
    """Theirs ÷ ours is ``at_least`` a number, or ours ÷ theirs ``at_most`` one."""

    workload: str
    against: str
    at_least: float | None = None
    at_most: float | None = None
    quantity: Quantity = Quantity.TIME
    on: str | None = None
    """Their workload, if it is another one."""

    @property
    def compared(self) -> str:
        """The ratio in words."""
        theirs = self.against if self.on is None else f"{self.against} on {self.on}"
        ratio = (theirs, OURS) if self.at_most is None else (OURS, theirs)
        return f"{self.quantity.value}: {' ÷ '.join(ratio)}"

    @property
    def goal(self) -> str:
        """The bound in words."""
        return f"≥ {self.at_least:g}" if self.at_most is None else f"≤ {self.at_most:g}"

    def ratio(self, ours: Row, theirs: Row) -> float:
        """The ratio of two rows."""
        own, other = self.quantity.of(ours), self.quantity.of(theirs)
        return other / max(own, 1e-9) if self.at_most is None else own / max(other, 1e-9)

    def met(self, ratio: float) -> bool:
        """Does the ratio keep the bound?"""
        if self.at_most is not None:
            return ratio <= self.at_most
        return self.at_least is not None and ratio >= self.at_least


@dataclass(frozen=True)
class Verdict:
    """A target, the measured ratio, and whether it was met."""

    target: Target
    ratio: float | None
    outcome: str


def _dense(workload: str) -> tuple[Target, ...]:
    return (
        Target(workload=workload, against="opacus-hooks", at_least=20),
        Target(workload=workload, against="opacus-ghost", at_least=2),
        Target(workload=workload, against="torch", at_most=2),
    )


TARGETS: tuple[Target, ...] = (
    Target(workload="logreg-10k", against="opacus-hooks", at_least=400),
    Target(workload="logreg-10k", against="opacus-hooks", at_least=5, quantity=Quantity.MEMORY),
    Target(workload="logreg-10k", against="opacus-ghost", at_least=25),
    Target(workload="logreg-10k", against="torch-sparse", at_least=1),
    Target(
        workload="logreg-1m-50",
        against=OURS,
        on="logreg-10k-50",
        at_most=1.2,
        quantity=Quantity.TIME_PER_ROW,
    ),
    *_dense("autoencoder-64"),
    *_dense("autoencoder-256"),
    Target(workload="embedding-bag", against="opacus-hooks", at_least=20),
    Target(workload="embedding-bag", against="opacus-ghost", at_least=5),
    Target(workload="embedding-bag", against="torch", at_most=1.5),
)


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """A verdict on every target of the workloads in ``rows``."""
    seen = {row["workload"] for row in rows}
    return [_verdict(target, rows) for target in TARGETS if target.workload in seen]


def _verdict(target: Target, rows: Sequence[Row]) -> Verdict:
    ours = find(rows, target.workload, OURS)
    theirs = find(rows, target.on or target.workload, target.against)
    if ours is None or theirs is None:
        return Verdict(target, None, "not measured")
    for row in (ours, theirs):
        if not measured(row):
            return Verdict(target, None, f"{row['contender']} cannot run")
    ratio = target.ratio(ours, theirs)
    return Verdict(target, ratio, "met" if target.met(ratio) else "missed")
