"""What is public about a run before it begins: for its ledger, and for its result."""

from __future__ import annotations

from adadps.accounting import Budget, grouping_of
from adadps.checkpoint import Checkpoints
from adadps.errors import ContractError
from adadps.events import in_words, is_free
from adadps.ledger import DiskLedger, Ledger, MemoryLedger, RunFacts
from adadps.sampling import Sampler
from adadps.stages.chain import Chain, Informed
from adadps.types import Accountant

UNIT = "example"
"""Whose data epsilon protects."""


def side_information_of(method: Chain) -> tuple[dict[str, str | None], ...]:
    """Where the side information of ``method`` comes from, and the price of what was not free."""
    informed = {(stage.provenance, price_of(stage)) for stage in method.informed}
    return tuple(
        {**provenance.describe(), **({"price": price} if price else {})}
        for provenance, price in sorted(informed, key=lambda known: known[0].source)
    )


def price_of(stage: Informed) -> str | None:
    """What a stage's side information cost, in words; None if it is public."""
    return None if is_free(stage.event) else in_words(stage.event)


def sampling_of(method: Chain, sampler: Sampler) -> dict[str, object]:
    """How batches are drawn, and what is clipped."""
    return {**sampler.describe(), "grouping": grouping_of(method).value}


def plan_of(method: Chain, sampler: Sampler, steps: int, accountant: Accountant) -> RunFacts:
    """What the ledger is told: all of it is public."""
    return RunFacts(
        unit=UNIT,
        sampler=sampling_of(method, sampler),
        chain=str(method),
        side_information=side_information_of(method),
        planned_steps=steps,
        paid_first=len(method.side_events(sampler.relation, accountant)),
    )


def ledger_for(
    ledger: Ledger | None, budget: Budget | None, checkpoints: Checkpoints | None
) -> Ledger:
    """The given ledger; else one beside the checkpoints, or in memory, with this budget."""
    if ledger is not None and budget is not None:
        raise ContractError(
            "Expected a ledger or a budget, found both. A ledger carries its own budget."
        )
    if ledger is not None:
        return ledger
    return DiskLedger(checkpoints.ledger, budget=budget) if checkpoints else MemoryLedger(budget)
