"""The mechanism and the charges that a result records, and their price by any accountant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dp_accounting import DpEvent

from adadps.accounting.contract import Grouping, Sampling
from adadps.accounting.epsilon import epsilon_of
from adadps.accounting.events import composed, event_of, text_of
from adadps.accounting.samplers import FixedSize, Poisson, Sampler, Shuffled
from adadps.errors import AdadpsError
from adadps.types import Accountant, Relation, Unit

_SAMPLERS: dict[Sampling, type[Sampler]] = {
    kind.sampling: kind for kind in (Poisson, FixedSize, Shuffled)
}


@dataclass(frozen=True)
class Mechanism:
    """The sampler, noise and accountant that a result records."""

    sampler: Sampler
    noise_multiplier: float
    accountant: Accountant
    grouping: Grouping

    def step_event(self) -> DpEvent:
        """Return the event of a step, if the step is charged at all."""
        return self.sampler.step_event(self.noise_multiplier, 1, self.accountant, self.grouping)

    def run_event(self, steps: int) -> DpEvent:
        """Return the event of a run of ``steps`` steps, without its side information."""
        return self.sampler.run_event(self.noise_multiplier, steps, self.accountant, self.grouping)


def mechanism_of(privacy: Mapping[str, Any]) -> Mechanism | None:
    """Return the recorded mechanism; None for groups drawn as one, whose size is not recorded."""
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
    """Return how often each event was charged, by its text."""
    found: dict[str, int] = {}
    for charge in privacy["charges"]:
        text = text_of(event_of(charge["event"]))
        found[text] = found.get(text, 0) + charge["count"]
    return found


def epsilon_after(privacy: Mapping[str, Any], step: int) -> float | None:
    """Return epsilon after ``step`` steps, by the accountant of the run; None if unknown.

    Steps that were paid for and lost in a crash are counted from the beginning: an upper bound that
    is exact at the end.
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


Priced = tuple[float | None, str | None]
"""An epsilon, and a note where one is needed."""

MOST_BY_PLD = 20.0
"""Above this epsilon, a second number is not worth the minutes that PLD would take."""

OWN = "the accountant of this run"
WHOLE_BUDGET = (
    "the whole budget of a ledger with several runs, not the price of this run alone; it holds "
    "with 2δ, if one was begun after looking at another"
)


def epsilons_by_accountant(described: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return ``{"pld": {"epsilon": ..., "note": ...}, "rdp": ...}``."""
    privacy = described["privacy"]
    several = claims_a_whole_budget(described)
    own = WHOLE_BUDGET if several and privacy["epsilon"] is not None else OWN
    found: dict[str, dict[str, Any]] = {}
    for accountant in Accountant:
        if accountant.value == privacy["accountant"]:
            priced: Priced = privacy["epsilon"], own
        elif privacy["epsilon"] is None:
            priced = None, "not private"
        elif several:
            priced = None, "not computed: the other runs are not recorded here"
        else:
            priced = _by_another(privacy, accountant)
        found[accountant.value] = dict(zip(("epsilon", "note"), priced, strict=True))
    return found


def claims_a_whole_budget(described: Mapping[str, Any]) -> bool:
    """Return whether epsilon is the budget of a ledger with several runs.

    Such a result records no charges.
    """
    return (
        described["settings"].get("claim") is not None
        and described["privacy"].get("charges") is None
    )


def charged_event(privacy: Mapping[str, Any]) -> DpEvent:
    """Return all charges of a run as one event."""
    return composed((event_of(charge["event"]), charge["count"]) for charge in privacy["charges"])


def _by_another(privacy: Mapping[str, Any], accountant: Accountant) -> Priced:
    if privacy["tuning"] is not None:
        return None, "not computed: the trials are composed by the accountant of the run"
    if privacy.get("charges") is None:
        return None, "not computed: the result does not record what was charged"
    if privacy["relation"] == Relation.REPLACE_ONE.value:
        return None, "not computed: under this relation it does not apply or prices other events"
    if accountant is Accountant.PLD and privacy["epsilon"] > MOST_BY_PLD:
        return None, f"not computed above epsilon = {MOST_BY_PLD:g}"
    try:
        event, relation = charged_event(privacy), Relation(privacy["relation"])
        delta = privacy["delta"]
        return epsilon_of(event, delta=delta, accountant=accountant, relation=relation), None
    except (AdadpsError, ValueError) as error:
        return None, f"cannot be computed: {type(error).__name__}"
