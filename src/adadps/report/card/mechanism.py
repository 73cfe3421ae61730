"""The recorded mechanism of a run: its sampler again, and what part of its charges is for steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dp_accounting import DpEvent

from adadps.accounting.contract import Grouping, Sampling
from adadps.accounting.epsilon import epsilon_of
from adadps.accounting.events import composed
from adadps.accounting.ledger.event_text import event_of, text_of
from adadps.accounting.samplers import FixedSize, Poisson, Sampler, Shuffled
from adadps.errors import AdadpsError
from adadps.types import Accountant, Relation, Unit

_SAMPLERS: dict[Sampling, type[Sampler]] = {
    kind.sampling: kind for kind in (Poisson, FixedSize, Shuffled)
}


@dataclass(frozen=True)
class Mechanism:
    """Sampler, noise, and who accounts, as a result records them."""

    sampler: Sampler
    noise_multiplier: float
    accountant: Accountant
    grouping: Grouping

    def step_event(self) -> DpEvent:
        """What a step is charged with, if it is charged at all."""
        return self.sampler.step_event(self.noise_multiplier, 1, self.accountant, self.grouping)

    def run_event(self, steps: int) -> DpEvent:
        """What a run of so many steps is charged with, beside its side information."""
        return self.sampler.run_event(self.noise_multiplier, steps, self.accountant, self.grouping)


def mechanism_of(privacy: Mapping[str, Any]) -> Mechanism | None:
    """The mechanism of a statement; None for groups drawn as wholes, whose size is not recorded."""
    held = privacy["sampler"]
    grouping = Grouping(held["grouping"])
    if grouping is Grouping.IN_ADVANCE:
        return None
    unit = Unit.USER if grouping.by_user else Unit.EXAMPLE
    sampler = _SAMPLERS[Sampling(held["sampling"])](
        examples=held[f"{unit.value}s"],
        unit=unit,
        expected_size=held["expected_size"],
        relation=Relation(held["relation"]),
    )
    accountant = Accountant(privacy["accountant"])
    return Mechanism(sampler, privacy["noise_multiplier"], accountant, grouping)


def charges_of(privacy: Mapping[str, Any]) -> dict[str, int]:
    """How often every event was charged, by its text."""
    found: dict[str, int] = {}
    for charge in privacy["charges"]:
        text = text_of(event_of(charge["event"]))
        found[text] = found.get(text, 0) + charge["count"]
    return found


def epsilon_after(privacy: Mapping[str, Any], step: int) -> float | None:
    """Epsilon when ``step`` steps were taken, by the run's own accountant; None if unknown.

    Steps that were paid for and lost in a crash are counted from the beginning on: an upper bound,
    and exact at the end.
    """
    if privacy["epsilon"] is None or privacy["tuning"] is not None:
        return None
    if privacy.get("charges") is None:
        return None
    if step == privacy["steps"]:
        return float(privacy["epsilon"])
    try:
        mechanism = mechanism_of(privacy)
        if mechanism is None:
            return None
        charges, charged = charges_of(privacy), mechanism.sampler.charged_steps
        of_a_step = text_of(mechanism.step_event())
        later = charged(privacy["steps"]) - charged(step)
        charges[of_a_step] = charges[of_a_step] - later
        return epsilon_of(
            composed((event_of(text), count) for text, count in charges.items() if count > 0),
            delta=privacy["delta"],
            accountant=mechanism.accountant,
            relation=mechanism.sampler.relation,
        )
    except (AdadpsError, ValueError, KeyError, TypeError):
        return None
