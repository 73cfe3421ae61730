"""Is a stored epsilon the price of the mechanism that stands beside it?

Two things are compared: the charges of the run with what sampler, noise multiplier and steps would
be charged with; and the epsilon of these charges, computed anew, with the stored one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from adadps.accounting import epsilon_of
from adadps.card.epsilons import charged_event
from adadps.card.mechanism import Mechanism, charges_of, mechanism_of
from adadps.errors import AdadpsError
from adadps.events import is_free
from adadps.ledger.event_text import event_of, text_of
from adadps.types import Accountant, Relation

ROUNDING = 1e-6


@dataclass(frozen=True)
class Checked:
    """What came out; ``agrees`` is None where nothing could be computed anew."""

    agrees: bool | None
    stored_epsilon: float | None
    recomputed_epsilon: float | None
    says: str

    def describe(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def check(described: Mapping[str, Any]) -> Checked:
    """Compute epsilon anew from the recorded mechanism, where that can be done."""
    privacy = described["privacy"]
    stored = privacy["epsilon"]
    if stored is None:
        return Checked(None, None, None, "not private: there is no epsilon to be checked")
    if privacy["tuning"] is not None:
        return _cannot(stored, "epsilon is the price of all trials of a tuning together")
    claim = described["settings"].get("claim")
    if claim is not None:
        return _cannot(stored, str(claim))
    try:
        return _checked(described, stored)
    except (AdadpsError, ValueError, KeyError, TypeError) as error:
        return _cannot(stored, f"the recorded mechanism cannot be priced ({error})")


def states_the_same(held: Any, made: Mapping[str, Any]) -> bool:
    """Does a stored card make the statements of one that was made anew?

    Words of explanation may differ between versions; numbers may, in their last digits.
    """
    if not isinstance(held, dict):
        return False
    names = ("private", "guarantee", "mechanism", "side_information", "assumed_public", "numbers")
    return all(_alike(held.get(name), made[name]) for name in names)


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        names = (one.keys() | other.keys()) - {"note"}
        return all(name in one and name in other for name in names) and all(
            _alike(one[name], other[name]) for name in names
        )
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=ROUNDING)
    return bool(one == other)


def _checked(described: Mapping[str, Any], stored: float) -> Checked:
    privacy = described["privacy"]
    mechanism = mechanism_of(privacy)
    if privacy.get("charges") is not None:
        difference = _difference(described, mechanism) if mechanism else None
        if difference:
            return Checked(False, stored, None, f"DIFFERS: {difference}")
        event = charged_event(privacy)
    elif mechanism is None or any(known.get("price") for known in described["side_information"]):
        return _cannot(stored, "the result does not record what was charged")
    else:
        event = mechanism.run_event(privacy["steps_paid"] or privacy["steps"])
    accountant, relation = Accountant(privacy["accountant"]), Relation(privacy["relation"])
    found = epsilon_of(event, delta=privacy["delta"], accountant=accountant, relation=relation)
    agrees = math.isclose(found, stored, rel_tol=ROUNDING)
    said = "agrees with" if agrees else "DIFFERS from"
    return Checked(
        agrees,
        stored,
        found,
        f"epsilon computed anew by {accountant.value.upper()} {said} the stored one: {found:.6g} "
        f"and {stored:.6g}",
    )


def _difference(described: Mapping[str, Any], mechanism: Mechanism) -> str | None:
    """How the charges differ from those of the recorded sampler, noise and steps."""
    privacy = described["privacy"]
    charges, steps = charges_of(privacy), privacy["steps"]
    paid = charges.pop(text_of(mechanism.step_event()), 0)
    least = mechanism.sampler.charged_steps(steps)
    if paid < least:
        return f"{paid} charges for steps with this noise and sampling, expected {least}"
    if least == steps and paid != privacy["steps_paid"]:
        return f"{paid} charges for steps, and {privacy['steps_paid']} steps that were paid"
    priced = any(known.get("price") for known in described["side_information"])
    if any(not is_free(event_of(text)) for text in charges) != priced:
        return "charges beside those for steps do not fit the side information"
    return None


def _cannot(stored: float, why: str) -> Checked:
    return Checked(None, stored, None, f"cannot be checked: {why}")
