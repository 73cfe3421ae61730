"""What noisy counts cost, how much noise they get, and how a run pays for them.

A unit adds at most 1 to one level of each of k columns of names, and 1 to two counts (an octave and
a sixteenth of one) of each of m columns of numbers: it moves all counts together by at most √(k+2m)
in L2. They are released once, with Gaussian noise of standard deviation s = σ √(k+2m), without any
amplification. Only names that occur are released, and only if their noisy count is above

    τ = 1 + s Φ⁻¹((1 - δ_τ)^(1/k)).

A name that a single unit has passes τ in any of the k columns with probability at most δ_τ. δ_τ is
charged beside the Gaussian (`DeltaDpEvent`), so that it is subtracted from delta.

Counting is paid for before it happens, and the same run never counts twice. The count is the
beginning of the run that uses it: the run is opened on its ledger under its whole plan, of which
the price is a part, so that both are fixed beforehand. The steps of the run are a further life of
it.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, replace
from typing import Protocol

from dp_accounting import ComposedDpEvent, DpEvent, GaussianDpEvent, SelfComposedDpEvent
from scipy.stats import norm

from adadps.accounting.contract import histogram_divisor
from adadps.accounting.epsilon import Budget, epsilon_of, smallest_noise
from adadps.accounting.events import DeltaDpEvent
from adadps.accounting.ledger import DiskLedger, Ledger, RunFacts
from adadps.engine.noise.randomness import grid
from adadps.errors import BudgetError, SettingError
from adadps.types import Accountant, Relation

SHARE, SHARE_OF_DELTA = 0.2, 0.1
"""The shares of epsilon (as if nothing else were released) and of delta; training gets the rest."""
MOST_LOST = 0.25
"""A count of this share of all units must stand out from the noise, or nothing is counted."""
OCCUPIED = 4.0
"""An octave counts as occupied this many standard deviations of the noise above 0. One of 123 empty
octaves looks occupied with probability 0.4 %."""


@dataclass(frozen=True)
class CountedColumns:
    """How many columns of names (levels, classes) and of numbers are counted."""

    names: int = 0
    numbers: int = 0

    def __bool__(self) -> bool:
        return self.names + self.numbers > 0

    @property
    def sensitivity(self) -> float:
        """How far adding or removing one unit moves all counts together, in L2.

        >>> CountedColumns(names=5, numbers=2).sensitivity
        3.0
        """
        return math.sqrt(self.names + 2 * self.numbers)


@dataclass(frozen=True)
class Price:
    """The noise and threshold of one count of ``columns``, and what a ledger is charged for it."""

    columns: CountedColumns
    noise_multiplier: float
    delta: float
    relation: Relation
    accountant: Accountant
    alone: float
    """Epsilon of this release by itself, at the delta of the budget."""

    @property
    def deviation(self) -> float:
        """s, the standard deviation of the noise on every count."""
        return self.noise_multiplier * self.columns.sensitivity

    @property
    def threshold(self) -> float:
        """τ, raised by one step of the public grid, so that no name passes by rounding."""
        tables = self.columns.names * (2 if self.relation is Relation.REPLACE_ONE else 1)
        if not tables:
            return math.inf
        one = -math.expm1(math.log1p(-self.delta) / tables)  # 1 - (1 - δ)^(1/k)
        return 1 + self.deviation * float(norm.isf(one)) + grid(self.deviation)

    @property
    def events(self) -> tuple[DpEvent, ...]:
        """What is charged: the Gaussian release, and the delta of the threshold."""
        divisor = histogram_divisor(self.relation, self.accountant)
        released = GaussianDpEvent(self.noise_multiplier / divisor)
        return (released, DeltaDpEvent(self.delta)) if self.delta else (released,)

    def in_words(self) -> str:
        """Describe the price for people."""
        noise = f"noise of standard deviation {self.deviation:.4g}"
        alone = f"alone it would cost ε = {self.alone:.3g}; it is composed with the training"
        release = f"one Gaussian release of counts with {noise} ({alone})"
        if not self.delta:
            return release
        named = f"names with a noisy count above {self.threshold:.4g} are released"
        return f"{release}; {named} at a cost of {self.delta:.3g}, which is subtracted from δ"


def price_of(
    columns: CountedColumns,
    *,
    units: int,
    what: str,
    budget: Budget,
    accountant: Accountant,
    relation: Relation,
) -> Price:
    """Return the price of counting ``columns`` from this budget, which is public.

    It is refused, before anything is counted, if the noise would hide a quarter of all ``units``.
    """
    delta = SHARE_OF_DELTA * budget.delta if columns.names else 0.0

    def made(noise_multiplier: float) -> Price:
        return Price(columns, noise_multiplier, delta, relation, accountant, alone=0.0)

    def spent(noise_multiplier: float) -> float:
        return epsilon_of(
            ComposedDpEvent(list(made(noise_multiplier).events)),
            delta=budget.delta,
            accountant=accountant,
            relation=relation,
        )

    sigma = smallest_noise(spent, SHARE * budget.epsilon)
    price = Price(columns, sigma, delta, relation, accountant, alone=spent(sigma))
    least = max(
        price.threshold if columns.names else 0.0,
        OCCUPIED * price.deviation if columns.numbers else 0.0,
    )
    if least > MOST_LOST * units:
        count = columns.names + columns.numbers
        raise SettingError(
            f"Expected at least {math.ceil(least / MOST_LOST)} {what} to count what is not "
            f"declared about {count} columns at epsilon = {budget.epsilon:g}, found {units}: the "
            "noise would hide most of it. Nothing was counted or spent. Declare levels, classes "
            "or bounds, or allow more epsilon."
        )
    return price


class Charged(Protocol):
    """What a run pays before its first step: counts (`Price`), or a choice (`ChoicePrice`)."""

    @property
    def relation(self) -> Relation:
        """Which data sets are neighbours."""

    @property
    def accountant(self) -> Accountant:
        """Who composes it with the steps of the run."""

    @property
    def events(self) -> tuple[DpEvent, ...]:
        """What the ledger is charged with."""


@dataclass(frozen=True)
class Paid:
    """What a run paid before its first step, under which name, and what it learnt for that."""

    run: str
    events: tuple[DpEvent, ...]
    facts: tuple[str, ...] = ()


def pay(
    ledger: Ledger,
    price: Charged,
    plan: RunFacts,
    *,
    step: DpEvent,
    charged_steps: int,
    own: bool,
    name: str | None = None,
) -> str:
    """Open a run with this plan, charge the price, and return the ``name`` of the run.

    It is refused, with nothing charged, unless all steps fit beside it. On a ledger of its ``own``,
    a run that paid before and lost its counts is continued, so that both payments are recorded.
    """
    known = None
    relation, accountant = price.relation, price.accountant
    if own and isinstance(ledger, DiskLedger):
        known = ledger.run_of(plan.plan_hash(relation, accountant))
    name = known or name or secrets.token_hex(8)
    ledger.open(name, relation, accountant, replace(plan, paid_first=len(price.events)))
    whole = ComposedDpEvent([*price.events, SelfComposedDpEvent(step, charged_steps)])
    if not known and ledger.room(whole, 1) < 1:
        assert ledger.budget is not None  # without a budget everything fits
        raise BudgetError(
            f"Expected room for a whole run on the ledger of epsilon = {ledger.budget.epsilon:g} "
            f"at delta = {ledger.budget.delta:g}, found {ledger.entries} charges on it and a plan "
            "that does not fit beside them. Nothing was measured. Give the run less epsilon; if "
            "nothing is left, no further run fits."
        )
    for event in price.events:
        ledger.authorise(event, run=name)
    return name
