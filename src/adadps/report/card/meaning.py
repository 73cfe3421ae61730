"""What a guarantee means in plain words, what it does not cover, and what was charged for it.

docs/threat-model.md explains each gap. `card_of` is the content of a card, as a pure function of
the description of a result. The mechanism and the charges that a result records can be priced by
any accountant.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dp_accounting import DpEvent

from adadps.accounting.contract import Grouping, Sampling
from adadps.accounting.epsilon import epsilon_of
from adadps.accounting.events import composed, event_of, text_of
from adadps.accounting.samplers import SAMPLERS, Sampler
from adadps.errors import AdadpsError
from adadps.types import Accountant, Relation, Unit

WEAK_FACTOR = 1000.0
"""A factor above this is hardly a guarantee."""
_OTHERWISE = {
    Relation.ADD_OR_REMOVE_ONE.value: "had {it} not been in the data",
    Relation.ZERO_OUT.value: "had {it} been blanked out",
    Relation.REPLACE_ONE.value: "had {it} been replaced by anything else",
}


def meaning_of(privacy: Mapping[str, Any], seen: str = "this model") -> str:
    """Put (ε, δ) into words: P(conclusion) ≤ e^ε P'(conclusion) + δ, and vice versa.

    ``seen`` is what the conclusion is drawn from.

    >>> meaning_of({"epsilon": 1, "delta": 1e-5, "unit": "user", "relation": "add or remove one"})
    'For any user: the probability that somebody draws a given conclusion from this model is ...'
    """
    if privacy["epsilon"] is None:
        return "Nothing is guaranteed: this model may reveal anything that was in the data."
    unit = privacy["unit"]
    it = f"this {unit}"
    if unit.split(" ")[0] == Unit.USER.value:  # perhaps with the column that identifies them
        unit, it = Unit.USER.value, "all data of this user"
    otherwise = _OTHERWISE.get(privacy["relation"], "had the data differed in {it}").format(it=it)
    factor = factor_of(privacy["epsilon"])
    words = (
        f"For any {unit}: the probability that somebody draws a given conclusion from {seen} is at "
        f"most {factor} times (e^ε) what it would be {otherwise}, plus δ = "
        f"{privacy['delta']:.3g}; and vice versa. Anyone who guesses which of the two cases is "
        f"true, when both are equally likely, is right at most {winning(privacy)} % of the time."
    )
    little = privacy["epsilon"] > math.log(WEAK_FACTOR)
    return f"{words} A factor this large guarantees little." if little else words


def winning(privacy: Mapping[str, Any]) -> float:
    """Return (e^ε + δ)/(1 + e^ε) in percent, rounded up; guessing blindly gives 50.

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
    """Return e^ε with three digits, rounded up: a bound must not be understated.

    >>> factor_of(1.0), factor_of(0.001), factor_of(20.0), factor_of(9999.0)
    ('2.72', '1.01', '4.86e+08', '10^4343')
    """
    if epsilon > 600:
        return f"10^{math.ceil(epsilon / math.log(10))}"
    factor = math.exp(epsilon)
    place = 10.0 ** (math.floor(math.log10(factor)) - 2)
    return f"{math.ceil(factor / place) * place:.3g}"


UNCOUNTED_TRIALS = "Uncounted trials: choosing settings by looking at results on private data."
LOOKING_BETWEEN = (
    "Decisions between runs: if a run on this ledger was begun after looking at another, as in a "
    "search or by further calls of partial_fit, epsilon holds with 2 delta "
    "(docs/decisions/ledger.md)."
)
EACH_DEVICE = (
    "Participation: noise added by devices protects the data that users hold, not the fact that "
    "they take part. A device has to trust nobody else only if it keeps its own ledger."
)
SHARES = (
    "The server and the devices of a federation: the server is trusted to look at sums only, and "
    "enough devices to add their share of the noise. Participation is not protected."
)
SERVER = (
    "The server of a federation: it sees updates before noise is added and is trusted with them; "
    "epsilon protects against everyone else who sees the model."
)
HELD_OUT_RECORDS = (
    "Held-out records: epsilon does not cover them. Metrics measured on them are exact functions "
    "of these records; every given record is measured, whether or not it was also trained on."
)
SEVERAL_KEYS = (
    "People with several keys: somebody with k of them, for example because of a misspelt name, "
    "has about k times epsilon; one of several people who share a key has about twice epsilon."
)
_ALWAYS = (
    "Anything done to the data beforehand: cleaning, scaling, features, vocabularies or labels "
    "that were fitted on private data and are not declared above.",
    "Other releases about the same people: another ledger, another data set, weights trained "
    "earlier. Their costs add up.",
    "Records that depend on each other, such as those of a family or of one conversation.",
    "Facts about the whole population, which can be learnt without any single record.",
    "The machine: anyone who sees its memory, its random numbers or the timing of single steps, "
    "and the people who run the training.",
    "Floating point: noise is drawn in float64 and released on a public grid; this rests on "
    "numerical arguments, not on a proof.",
)


def what_is_not_covered(described: Mapping[str, Any]) -> list[str]:
    """Return a short list, the largest gaps first."""
    privacy = described["privacy"]
    if not described["private"]:
        return ["Everything: this run is not private."]
    unit = privacy["unit"]
    found = []
    if unit == "example":
        found.append(
            "People with several examples: epsilon is for one example; somebody with k of them has "
            "about k times epsilon, and a larger delta."
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
    """Return a sentence about metrics on held-out data, if any data is declared so.

    >>> about_held_out(["public"]), len(about_held_out(["public", "held out"]))
    ([], 1)
    """
    return [HELD_OUT_RECORDS] if "held out" in declared else []


def _trusted(method: str) -> list[str]:
    """Return who has to be trusted, which follows from where the chain adds its noise."""
    if "noise by each device" in method:
        return [EACH_DEVICE]
    if "noise in shares" in method:
        return [SHARES]
    return [SERVER] if "train_locally(" in method else []


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
            **_rounding(described["settings"]),
            **_clipping(described),
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


def _rounding(settings: Mapping[str, Any]) -> dict[str, float]:
    """The share of the clip norm that pays for sums in float32, if there is any."""
    charge = settings.get("most_rounding_charge")
    return {"most_rounding_charge": charge} if isinstance(charge, float) and charge > 0 else {}


def _clipping(described: Mapping[str, Any]) -> dict[str, Any]:
    """How gradients are clipped, where that is not by min(1, C/‖g‖), and where a moving C ends."""
    clipping = described["settings"].get("clipping")
    last = described.get("public_facts", {}).get("clip_norm_at_end")
    return {
        **({"clipping": clipping} if isinstance(clipping, str) else {}),
        **({"clip_norm_at_end": last} if isinstance(last, float) else {}),
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
    sampler = SAMPLERS[Sampling(held["sampling"])](
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

    Steps that were paid for and lost in a crash are counted from the start. So this is an upper
    bound, which is exact at the end.
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
"""Above this epsilon, a second value is not worth the minutes that PLD would take."""

OWN = "the accountant of this run"
WHOLE_BUDGET = (
    "the whole budget of a ledger with several runs, not the price of this run alone; it holds "
    "with 2δ if one run was begun after looking at another"
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
