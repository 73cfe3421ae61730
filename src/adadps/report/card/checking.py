"""Checks of a stored result and its card.

`check` asks whether the stored epsilon is the price of the recorded mechanism. It compares the
charges of the run with those that its sampler, noise multiplier and steps imply, and the stored
epsilon with the one recomputed from these charges.

`differences_in` asks whether the card in a folder is the one that would be written there now. It
compares everything word for word; only numbers may differ in their last digits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from adadps.accounting.epsilon import epsilon_of
from adadps.accounting.events import event_of, is_free, text_of
from adadps.errors import AdadpsError, DataError
from adadps.files import parse_json
from adadps.report.card.meaning import (
    Mechanism,
    charged_event,
    charges_of,
    claims_a_whole_budget,
    mechanism_of,
)
from adadps.report.card.rendering import CARD_JSON, CARD_MARKDOWN, markdown_of, title_of
from adadps.types import Accountant, Relation

ROUNDING, LONGEST = 1e-6, 80
UNREADABLE = "something that cannot be read"
_ABSENT = object()


@dataclass(frozen=True)
class Difference:
    """A field whose content is not the expected one."""

    field: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.field}: expected {self.expected}, found {self.found}"


def differences_in(folder: Path, made: Mapping[str, Any]) -> list[Difference]:
    """Return where ``card.json`` and ``card.md`` in a folder differ from a rebuilt card."""
    try:
        held: Any = parse_json((folder / CARD_JSON).read_text(encoding="utf-8"))
    except (OSError, ValueError, DataError) as error:
        found = [Difference(CARD_JSON, "a card in JSON", _unread(error))]
    else:
        found = [
            replace(
                one,
                field=f"{CARD_JSON}, {one.field}",
                expected=f"{one.expected} (from result.json)",
            )
            for one in differences_of_cards(held, made)
        ]
    # the text may have the numbers of card.json, which agree except for their last digits
    return [*found, *_differences_of_texts(folder, made if found else held)]


def differences_of_cards(held: Any, made: Mapping[str, Any]) -> list[Difference]:
    """Return the fields of a stored card that differ from those of a rebuilt one.

    >>> [str(one) for one in differences_of_cards({"format": 1, "seal": 9}, {"format": 1})]
    ['seal: expected nothing, found 9']
    """
    if not isinstance(held, dict):
        return [Difference("the card", "a JSON object", "something else")]
    return _differences("", held, dict(made))


def name_on(folder: Path) -> str | None:
    """Return the name of the model in ``card.md``, if it is not the name of the folder."""
    first = (folder / CARD_MARKDOWN).read_text(encoding="utf-8").splitlines()[0]
    own = title_of(folder.resolve().name)
    return None if first == own else first.removeprefix(title_of("")).removeprefix(" of ")


def _differences_of_texts(folder: Path, card: Mapping[str, Any]) -> list[Difference]:
    """Compare line by line, except for the name of the model, which may not be the folder's."""
    try:
        held = (folder / CARD_MARKDOWN).read_bytes().decode("utf-8").split("\n")
    except (OSError, ValueError) as error:
        return [Difference(CARD_MARKDOWN, "a card in Markdown", _unread(error))]
    made = markdown_of(card).split("\n")
    if held[0].startswith(title_of("")):
        made[0] = held[0]
    for number, (one, other) in enumerate(zip(held, made, strict=False), 1):
        if one != other:
            return [Difference(f"{CARD_MARKDOWN}, line {number}", _shown(other), _shown(one))]
    if len(held) == len(made):
        return []
    return [Difference(CARD_MARKDOWN, f"{len(made)} lines", str(len(held)))]


def _differences(name: str, held: Any, made: Any) -> list[Difference]:
    """Compare field by field, and descend wherever both have fields."""
    if isinstance(held, dict) and isinstance(made, dict):
        return [
            found
            for inner in sorted(held.keys() | made.keys())
            for found in _differences(
                f"{name}.{inner}" if name else inner,
                held.get(inner, _ABSENT),
                made.get(inner, _ABSENT),
            )
        ]
    if isinstance(held, list) and isinstance(made, list) and len(held) == len(made):
        return [
            found
            for number, (one, other) in enumerate(zip(held, made, strict=True), 1)
            for found in _differences(f"{name}[{number}]", one, other)
        ]
    return [] if _alike(held, made) else [Difference(name, _shown(made), _shown(held))]


def _alike(held: Any, made: Any) -> bool:
    if isinstance(held, float) and isinstance(made, int | float):
        return math.isclose(held, made, rel_tol=ROUNDING)
    return type(held) is type(made) and bool(held == made)


def _shown(value: Any) -> str:
    if value is _ABSENT:
        return "nothing"
    if isinstance(value, float):
        return f"{value:.9g}"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _unread(error: Exception) -> str:
    return "no such file" if isinstance(error, FileNotFoundError) else UNREADABLE


@dataclass(frozen=True)
class Checked:
    """The outcome of a check; ``agrees`` is None where nothing could be recomputed."""

    agrees: bool | None
    stored_epsilon: float | None
    recomputed_epsilon: float | None
    says: str
    differences: tuple[Difference, ...] = ()

    def describe(self) -> dict[str, Any]:
        """Return the outcome, ready for JSON."""
        return {**asdict(self), "differences": [asdict(one) for one in self.differences]}


def check(described: Mapping[str, Any]) -> Checked:
    """Recompute epsilon from the recorded mechanism, where that is possible.

    A tuning, or a claim of the whole budget of a ledger, costs more than the run itself. For these,
    the check only detects an epsilon that is too small even for the run alone, because neither has
    charges of its own. Recorded charges are always checked, whatever else the result says.
    """
    privacy = described["privacy"]
    stored = privacy["epsilon"]
    if stored is None:
        return Checked(None, None, None, "not private: there is no epsilon to check")
    try:
        if privacy.get("charges") is None and privacy["tuning"] is not None:
            why = "epsilon is the price of all tuning trials together"
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
    agreement = f"epsilon recomputed by {_name(privacy)} equals the stored one, {stored:.6g}"
    return Checked(True, stored, found, agreement)


def _at_least(privacy: Mapping[str, Any], stored: float, why: str) -> Checked:
    """Check a claim that covers more than this run: it cannot be below the price of the run."""
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
    """Return how the charges differ from those of the recorded sampler, noise and steps."""
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
