"""Paid first, counted then, and never counted again by the same run.

The count is the beginning of the run that uses it: the run is opened on its ledger under its whole
plan, of which the price is a part, so that both were fixed beforehand. Its steps are a further life
of it.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace

from dp_accounting import ComposedDpEvent, DpEvent, SelfComposedDpEvent

from adadps.accounting.ledger import DiskLedger, Ledger, RunFacts
from adadps.accounting.measured.price import Price
from adadps.errors import BudgetError


@dataclass(frozen=True)
class Paid:
    """What a run has paid before its first step, under which name, and what was found for it."""

    run: str
    events: tuple[DpEvent, ...]
    facts: tuple[str, ...] = ()


def pay(
    ledger: Ledger, price: Price, plan: RunFacts, *, step: DpEvent, charged_steps: int, own: bool
) -> str:
    """Open a run with this plan and charge the price; returns the run's name.

    Refused, with nothing charged, unless all steps fit beside it. On a ledger of its ``own`` a run
    that has paid before and lost what it found is continued, so that it pays twice and knows it.
    """
    known = None
    relation, accountant = price.relation, price.accountant
    if own and isinstance(ledger, DiskLedger):
        known = ledger.run_of(plan.plan_hash(relation, accountant))
    name = known or secrets.token_hex(8)
    ledger.open(name, relation, accountant, replace(plan, paid_first=len(price.events)))
    whole = ComposedDpEvent([*price.events, SelfComposedDpEvent(step, charged_steps)])
    if not known and ledger.room(whole, 1) < 1:
        assert ledger.budget is not None  # without one there is room for everything
        raise BudgetError(
            f"Expected room for a whole run on the ledger of epsilon = {ledger.budget.epsilon:g} "
            f"at delta = {ledger.budget.delta:g}, found {ledger.entries} charges on it and a plan "
            "that does not fit beside them. Nothing was counted. Give the run less epsilon; where "
            "nothing is left, no further run fits."
        )
    for event in price.events:
        ledger.authorise(event, run=name)
    return name
