"""What the guarantee does not cover; docs/threat-model.md says more about each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from adadps.report.card.epsilons import claims_a_whole_budget
from adadps.types import Unit

UNCOUNTED_TRIALS = (
    "Trials that were not counted: settings chosen by looking at results on private data."
)
LOOKING_BETWEEN = (
    "Looking between runs: if one on this ledger was begun after looking at another, as in a "
    "search or by further calls of partial_fit, epsilon holds with 2 delta "
    "(docs/decisions/ledger.md)."
)
EACH_DEVICE = (
    "Who takes part: noise of devices protects what users hold, not that they are there. And "
    "nobody but the device has to be trusted only if it keeps a ledger of its own."
)
SHARES = (
    "The server and the devices of a federation: the server is trusted to look at sums alone, "
    "enough devices to add their share of the noise. Who takes part is not protected."
)
SERVER = (
    "The server of a federation: it sees updates before their noise, and is trusted with them; "
    "epsilon is for everybody who sees the model."
)
HELD_OUT_RECORDS = (
    "Held-out records: they are outside of epsilon. Numbers measured on them are exact functions "
    "of those records; all that were given are measured, whether or not they were trained on too."
)
SEVERAL_KEYS = (
    "People under several keys: somebody with k of them, a misspelt name among them, has about k "
    "times epsilon; one of several people who share a key has about twice epsilon."
)
_ALWAYS = (
    "Whatever was done to the data before: cleaning, scaling, features, vocabularies or labels "
    "that were fitted on private data and are not declared above.",
    "Other releases about the same people: another ledger, another data set, weights trained "
    "before. What they cost adds up.",
    "Records that depend on each other, such as those of a family or of one conversation.",
    "Facts about the whole population, which can be learnt without any single record.",
    "The machine: whoever sees its memory, its random numbers or the time of single steps, and the "
    "people who run the training.",
    "Floating point: noise is drawn in float64 and released on a public grid, which is an argument "
    "with numbers and not a proof.",
)


def what_is_not_covered(described: Mapping[str, Any]) -> list[str]:
    """A short list, the largest gaps first."""
    privacy = described["privacy"]
    if not described["private"]:
        return ["Everything: this run is not private."]
    unit = privacy["unit"]
    found = []
    if unit == "example":
        found.append(
            "People with several examples: epsilon is for one example; somebody with k of them has "
            "about k times epsilon, and more than delta."
        )
    if unit.startswith(Unit.USER.value):
        found.append(SEVERAL_KEYS)
    found += _trusted(described["method"])
    if claims_a_whole_budget(described):
        found.append(LOOKING_BETWEEN)
    if privacy["tuning"] is None and privacy["tuning_trials"] != 0:
        found.append(UNCOUNTED_TRIALS)
    found += about_held_out(entry["declared"] for entry in described["history"])
    return [*found, *_ALWAYS]


def about_held_out(declared: Iterable[str]) -> list[str]:
    """A sentence about numbers on data that is so declared, if some of it is held out.

    >>> about_held_out(["public"]), len(about_held_out(["public", "held out"]))
    ([], 1)
    """
    return [HELD_OUT_RECORDS] if "held out" in declared else []


def _trusted(method: str) -> list[str]:
    """Who has to be, as the chain says where its noise is added."""
    if "noise by each device" in method:
        return [EACH_DEVICE]
    if "noise in shares" in method:
        return [SHARES]
    return [SERVER] if "train_locally(" in method else []
