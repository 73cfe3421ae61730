"""The content of a card, as a pure function of a result's description."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adadps.report.card.charges import epsilons_by_accountant
from adadps.report.card.meaning import meaning_of, what_is_not_covered

FORMAT = 1
UNKNOWN = "unknown: an earlier version of adadps"


def card_of(described: Mapping[str, Any], audit: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the privacy card of a result, given as `Result.describe()`.

    ``audit`` is the outcome of an audit as `adadps.report.card.audits.fitting_audit` returns it.
    Nothing on the card is computed from private data: it repeats what the result states, adds
    epsilon by the other accountant from the events that were charged, and lists what epsilon does
    not cover.
    """
    privacy, model = described["privacy"], described["settings"].get("model")
    return {
        "format": FORMAT,
        "made_with": described.get("public_facts", {}).get("made_with", UNKNOWN),
        "private": described["private"],
        "guarantee": {
            "epsilon": privacy["epsilon"],
            "delta": privacy["delta"],
            "accountant": privacy["accountant"],
            "unit": privacy["unit"],
            "relation": privacy["relation"],
            "by_accountant": epsilons_by_accountant(described),
            "in_words": meaning_of(privacy),
            "not_private_because": list(privacy["not_private_because"]),
        },
        "model": model if isinstance(model, str) else None,
        "mechanism": {
            "chain": described["method"],
            "sampling": dict(privacy["sampler"]),
            "noise_multiplier": privacy["noise_multiplier"],
            "clip_norm": privacy["clip_norm"],
            "steps": privacy["steps"],
            "steps_paid": privacy["steps_paid"],
        },
        "side_information": [_side(known) for known in described["side_information"]],
        **({"measured": list(found)} if (found := privacy.get("measured")) else {}),
        "assumed_public": list(privacy["assumed_public"]),
        "tuning": _tuning(privacy),
        "numbers": _last_numbers(described["history"]),
        "audit": dict(audit) if audit is not None else None,
        "not_covered": what_is_not_covered(described),
    }


def _side(known: Mapping[str, str | None]) -> dict[str, str | None]:
    return {
        "source": known.get("source"),
        "public_because": known.get("public_because"),
        "digest_of_what_is_public": known.get("digest"),
        "cost": known.get("price") or "nothing",
    }


def _tuning(privacy: Mapping[str, Any]) -> dict[str, Any]:
    """Return how many settings were tried, and whether epsilon includes their cost."""
    held = privacy["tuning"]
    if held is not None:
        return {
            "trials": privacy["tuning_trials"],
            "in_epsilon": True,
            "in_words": f"{held.get('trials')}, all of them included in epsilon",
        }
    trials = privacy["tuning_trials"]
    if trials is None:
        words = "not declared; choosing settings on private data would NOT be included in epsilon"
    elif trials == 0:
        words = "none on private data, as declared"
    else:
        words = f"{trials} declared, NOT included in epsilon"
    return {"trials": trials, "in_epsilon": False, "in_words": words}


def _last_numbers(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the last value of every metric, with the data that it was measured on."""
    last = {(entry["metric"], entry["data"], entry["declared"]): entry for entry in history}
    names = ("metric", "value", "data", "declared", "step")
    return [{name: entry[name] for name in names} for entry in last.values()]
