"""Is a stored epsilon the price of the mechanism that stands beside it?

Two things are compared: the charges of the run with what sampler, noise multiplier and steps would
be charged with; and the epsilon of these charges, computed anew, with the stored one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from adadps.accounting.epsilon import epsilon_of
from adadps.accounting.events import is_free
from adadps.accounting.ledger.event_text import event_of, text_of
from adadps.errors import AdadpsError
from adadps.report.card.comparing import ROUNDING, Difference
from adadps.report.card.epsilons import charged_event, claims_a_whole_budget
from adadps.report.card.mechanism import Mechanism, charges_of, mechanism_of
from adadps.types import Accountant, Relation


@dataclass(frozen=True)
class Checked:
    """What came out; ``agrees`` is None where nothing could be computed anew."""

    agrees: bool | None
    stored_epsilon: float | None
    recomputed_epsilon: float | None
    says: str
    differences: tuple[Difference, ...] = ()

    def describe(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**asdict(self), "differences": [asdict(one) for one in self.differences]}


def check(described: Mapping[str, Any]) -> Checked:
    """Compute epsilon anew from the recorded mechanism, where that can be done.

    A tuning, or a claim of a ledger's whole budget, costs more than the run beside it: there only
    an epsilon that is too small even for that run is found. Neither has charges of its own; where
    charges stand, they are checked, whatever else the result says.
    """
    privacy = described["privacy"]
    stored = privacy["epsilon"]
    if stored is None:
        return Checked(None, None, None, "not private: there is no epsilon to be checked")
    try:
        if privacy.get("charges") is None and privacy["tuning"] is not None:
            why = "epsilon is the price of all trials of a tuning together"
            return _at_least(privacy, stored, why)
        if claims_a_whole_budget(described):
            return _at_least(privacy, stored, str(described["settings"]["claim"]))
        return _checked(described, stored)
    except (AdadpsError, ValueError, KeyError, TypeError) as error:
        return _cannot(stored, f"the recorded mechanism cannot be priced ({error})")


def _checked(described: Mapping[str, Any], stored: float) -> Checked:
    privacy = described["privacy"]
    mechanism = mechanism_of(privacy)
    if privacy.get("charges") is not None:
        difference = _difference(described, mechanism) if mechanism else None
        if difference:
            return _differs(stored, None, difference)
        event = charged_event(privacy)
    elif mechanism is None or any(known.get("price") for known in described["side_information"]):
        return _cannot(stored, "the result does not record what was charged")
    else:
        event = mechanism.run_event(privacy["steps_paid"] or privacy["steps"])
    accountant, relation = Accountant(privacy["accountant"]), Relation(privacy["relation"])
    found = epsilon_of(event, delta=privacy["delta"], accountant=accountant, relation=relation)
    if not math.isclose(found, stored, rel_tol=ROUNDING):
        return _differs(stored, found, _of_epsilon(f"{found:.6g} by {_name(privacy)}", stored))
    said = f"epsilon computed anew by {_name(privacy)} is the stored one, {stored:.6g}"
    return Checked(True, stored, found, said)


def _at_least(privacy: Mapping[str, Any], stored: float, why: str) -> Checked:
    """Epsilon is said to pay for more than this run: it cannot be less than the run alone costs."""
    mechanism = mechanism_of(privacy)
    if mechanism is None:
        return _cannot(stored, why)
    alone = epsilon_of(
        mechanism.run_event(privacy["steps"]),
        delta=privacy["delta"],
        accountant=mechanism.accountant,
        relation=mechanism.sampler.relation,
    )
    if alone > stored * (1 + ROUNDING):
        expected = f"at least {alone:.6g} by {_name(privacy)}, the price of this run alone"
        return _differs(stored, alone, _of_epsilon(expected, stored))
    return _cannot(stored, f"{why} (this run alone costs {alone:.6g})")


def _difference(described: Mapping[str, Any], mechanism: Mechanism) -> Difference | None:
    """How the charges differ from those of the recorded sampler, noise and steps."""
    privacy = described["privacy"]
    charges, steps = charges_of(privacy), privacy["steps"]
    paid = charges.pop(text_of(mechanism.step_event()), 0)
    least = mechanism.sampler.charged_steps(steps)
    of_steps = "charges for steps with the recorded noise and sampling"
    if paid < least:
        return Difference("result.json, privacy.charges", f"{least} {of_steps}", str(paid))
    if least == steps and paid != privacy["steps_paid"]:
        found = str(privacy["steps_paid"])
        return Difference(
            "result.json, privacy.steps_paid", f"{paid}, as many as {of_steps}", found
        )
    priced = any(known.get("price") for known in described["side_information"])
    priced = priced or bool(privacy.get("measured"))
    bought = any(not is_free(event_of(text)) for text in charges)
    if bought != priced:
        words = {True: "a price", False: "no price"}
        where = "result.json, privacy.measured and side_information"
        return Difference(where, f"{words[bought]}, as charged", words[priced])
    return None


def _of_epsilon(expected: str, stored: float) -> Difference:
    return Difference("result.json, privacy.epsilon", expected, f"{stored:.6g}")


def _differs(stored: float, found: float | None, difference: Difference) -> Checked:
    return Checked(False, stored, found, f"DIFFERS: {difference}", (difference,))


def _name(privacy: Mapping[str, Any]) -> str:
    return str(privacy["accountant"]).upper()


def _cannot(stored: float, why: str) -> Checked:
    return Checked(None, stored, None, f"cannot be checked: {why}")
