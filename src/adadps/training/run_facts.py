"""What is public about a run before it begins: for its ledger, and for its result."""

from __future__ import annotations

from collections.abc import Iterable

from dp_accounting import DpEvent
from torch import nn

from adadps.accounting.epsilon import Budget, grouping_of, unit_of, units_of
from adadps.accounting.events import in_words, is_free, text_of
from adadps.accounting.ledger import DiskLedger, Ledger, MemoryLedger, RunFacts
from adadps.accounting.samplers import Sampler
from adadps.data.provenance import digest_of
from adadps.errors import ContractError
from adadps.methods.stages.chain import Chain, Informed
from adadps.training.checkpoint import Checkpoints
from adadps.types import Accountant


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


def plan_of(
    method: Chain,
    sampler: Sampler,
    steps: int,
    accountant: Accountant,
    besides: Iterable[DpEvent] = (),
) -> RunFacts:
    """What the ledger is told: all of it is public. ``besides`` was paid by the run before."""
    side = method.side_events(sampler.relation, accountant)
    return RunFacts(
        unit=unit_of(method),
        sampler=sampling_of(method, sampler),
        chain=str(method),
        side_information=side_information_of(method),
        planned_steps=steps,
        prices=(
            *(text_of(event) for event in besides),
            *(text_of(event) for event in side),
            _price_of_a_step(method, sampler, accountant),
            f"clip norm {method.release.clip_norm!r}",
        ),
        paid_first=len(side),
    )


def _price_of_a_step(method: Chain, sampler: Sampler, accountant: Accountant) -> str:
    if method.exposures:
        return "not private"
    sigma, units = method.release.noise_multiplier, units_of(method, sampler)
    return text_of(units.step_event(sigma, 1, accountant, grouping_of(method)))


def with_the_number(assumed_public: Iterable[str], sampler: Sampler) -> tuple[str, ...]:
    """What is assumed public, with the number that the sampler draws from, said once.

    >>> from adadps.accounting.samplers import poisson
    >>> with_the_number(["two classes"], poisson(examples=100, expected_size=10))
    ('the number of examples, declared as 100', 'two classes')
    """
    counted, facts = f"the number of {sampler.unit.value}s", tuple(assumed_public)
    if f"{counted}, read off the data: {sampler.examples}" in facts:
        return facts
    return (f"{counted}, declared as {sampler.examples}", *facts)


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


def frozen_part_of(model: nn.Module, assumed_public: Iterable[str] = ()) -> str:
    """A hash of what a run may not change: frozen parameters, buffers, and what is assumed public.

    >>> frozen_part_of(nn.Linear(2, 1)) == frozen_part_of(nn.Linear(2, 1))
    True
    """
    fixed = [(name, p) for name, p in model.named_parameters() if not p.requires_grad]
    parts = [part for pair in (*fixed, *model.named_buffers()) for part in pair]
    return digest_of([*parts, *assumed_public])
