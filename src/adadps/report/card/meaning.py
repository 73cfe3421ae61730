"""What a guarantee means in plain words, and what it does not cover.

docs/threat-model.md says more about each gap.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from adadps.report.card.charges import claims_a_whole_budget
from adadps.types import Relation, Unit

LITTLE = 1000.0
"""A factor above this is hardly a promise."""
_OTHERWISE = {
    Relation.ADD_OR_REMOVE_ONE.value: "had {it} not been in the data",
    Relation.ZERO_OUT.value: "had {it} been emptied",
    Relation.REPLACE_ONE.value: "had {it} been replaced by anything else",
}


def meaning_of(privacy: Mapping[str, Any], seen: str = "this model") -> str:
    """(ε, δ) in a sentence or two: P(conclusion) ≤ e^ε P'(conclusion) + δ, and the other way round.

    ``seen`` is what the conclusion is drawn from.

    >>> meaning_of({"epsilon": 1, "delta": 1e-5, "unit": "user", "relation": "add or remove one"})
    'For any user: whatever somebody concludes from this model, the chance that they do is ...'
    """
    if privacy["epsilon"] is None:
        return "Nothing is promised to anybody: what was in the data may be read off this model."
    unit = privacy["unit"]
    it = f"this {unit}"
    if unit.split(" ")[0] == Unit.USER.value:  # perhaps with the column that tells them apart
        unit, it = Unit.USER.value, "all data of this user"
    otherwise = _OTHERWISE.get(privacy["relation"], "had the data differed in {it}").format(it=it)
    factor = factor_of(privacy["epsilon"])
    said = (
        f"For any {unit}: whatever somebody concludes from {seen}, the chance that they do is at "
        f"most {factor} times (e^ε) what it would be {otherwise}, plus δ = "
        f"{privacy['delta']:.3g}; and the other way round. Whoever bets on which of the two it "
        f"was, as if a coin had been tossed, wins at most {winning(privacy)} % of the time."
    )
    little = privacy["epsilon"] > math.log(LITTLE)
    return f"{said} A factor this large promises little." if little else said


def winning(privacy: Mapping[str, Any]) -> float:
    """(e^ε + δ)/(1 + e^ε) in percent, rounded up: a coin alone wins 50.

    >>> winning({"epsilon": 1.0, "delta": 1e-5}), winning({"epsilon": 900.0, "delta": 1e-5})
    (73.2, 100.0)
    >>> winning({"epsilon": 8.0, "delta": 1e-5})
    99.97
    """
    unlikely = math.exp(-float(privacy["epsilon"]))
    wins = (1 + float(privacy["delta"]) * unlikely) / (1 + unlikely)
    rounded = (math.ceil(100 * wins * 10**digits) / 10**digits for digits in (1, 2, 3, 4))
    return next((percent for percent in rounded if percent < 100), 100.0)


def factor_of(epsilon: float) -> str:
    """e^ε with three digits, rounded up: a bound must not be understated.

    >>> factor_of(1.0), factor_of(0.001), factor_of(20.0), factor_of(9999.0)
    ('2.72', '1.01', '4.86e+08', '10^4343')
    """
    if epsilon > 600:
        return f"10^{math.ceil(epsilon / math.log(10))}"
    factor = math.exp(epsilon)
    place = 10.0 ** (math.floor(math.log10(factor)) - 2)
    return f"{math.ceil(factor / place) * place:.3g}"


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
