"""Epsilon by every accountant that can price what a run was charged with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dp_accounting import DpEvent

from adadps.accounting.epsilon import epsilon_of
from adadps.accounting.events import composed
from adadps.accounting.ledger.event_text import event_of
from adadps.errors import AdadpsError
from adadps.types import Accountant, Relation

Priced = tuple[float | None, str | None]
"""An epsilon, and a note where something has to be said."""

MOST_BY_PLD = 20.0
"""Above this epsilon a second number is not worth the minutes that PLD would take."""

OWN = "the run's own: what it paid by"
WHOLE_BUDGET = (
    "the whole budget of a ledger with several runs, not the price of this one; with 2δ, if one "
    "was begun after looking at another"
)


def epsilons_by_accountant(described: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """``{"pld": {"epsilon": ..., "note": ...}, "rdp": ...}``; where there is no number, a note."""
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
    """Is epsilon the budget of a ledger with several runs? Then no charges of one are recorded."""
    return (
        described["settings"].get("claim") is not None
        and described["privacy"].get("charges") is None
    )


def charged_event(privacy: Mapping[str, Any]) -> DpEvent:
    """All charges of a run as one event."""
    return composed((event_of(charge["event"]), charge["count"]) for charge in privacy["charges"])


def _by_another(privacy: Mapping[str, Any], accountant: Accountant) -> Priced:
    if privacy["tuning"] is not None:
        return None, "not computed: the trials are composed by the run's own accountant"
    if privacy.get("charges") is None:
        return None, "not computed: the result does not record what was charged"
    if privacy["relation"] == Relation.REPLACE_ONE.value:
        return None, "does not apply, or would price other events, under this relation"
    if accountant is Accountant.PLD and privacy["epsilon"] > MOST_BY_PLD:
        return None, f"not computed above epsilon = {MOST_BY_PLD:g}"
    try:
        event, relation = charged_event(privacy), Relation(privacy["relation"])
        delta = privacy["delta"]
        return epsilon_of(event, delta=delta, accountant=accountant, relation=relation), None
    except (AdadpsError, ValueError) as error:
        return None, f"cannot be computed: {type(error).__name__}"
