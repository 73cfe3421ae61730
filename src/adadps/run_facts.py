"""What is public about a run before it begins: for its ledger, and for its result."""

from __future__ import annotations

from adadps.accounting import grouping_of
from adadps.events import is_free
from adadps.ledger import RunFacts
from adadps.sampling import Sampler
from adadps.stages.chain import Chain

UNIT = "example"
"""Whose data epsilon protects."""


def side_information_of(method: Chain) -> tuple[dict[str, str | None], ...]:
    """Where the side information of ``method`` comes from."""
    informed = {stage.provenance for stage in method.informed}
    return tuple(p.describe() for p in sorted(informed, key=lambda p: p.source))


def sampling_of(method: Chain, sampler: Sampler) -> dict[str, object]:
    """How batches are drawn, and what is clipped."""
    return {**sampler.describe(), "grouping": grouping_of(method).value}


def plan_of(method: Chain, sampler: Sampler, steps: int) -> RunFacts:
    """What the ledger is told: all of it is public."""
    return RunFacts(
        unit=UNIT,
        sampler=sampling_of(method, sampler),
        chain=str(method),
        side_information=side_information_of(method),
        planned_steps=steps,
        paid_first=sum(not is_free(stage.event) for stage in method.informed),
    )
