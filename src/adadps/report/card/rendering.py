"""A card as sections of facts, as Markdown, and as the files beside a result."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from importlib.resources import files
from pathlib import Path
from typing import Any

from adadps.types import Unit

NOT_PRIVATE = "NOT PRIVATE: ε = ∞"
MEASURED = "Measured on private data, and paid for"


@dataclass(frozen=True)
class CardSection:
    """A heading with named facts and the points of a list."""

    title: str
    facts: Sequence[tuple[str, str]] = ()
    points: Sequence[str] = ()


def headline_of(card: Mapping[str, Any]) -> str:
    """Return the guarantee in one line.

    >>> headline_of({"private": False})
    'NOT PRIVATE: ε = ∞'
    """
    if not card["private"]:
        return NOT_PRIVATE
    held = card["guarantee"]
    return f"ε = {digits(held['epsilon'])} at δ = {held['delta']:.3g}, per {held['unit']}"


def sections_of(card: Mapping[str, Any]) -> list[CardSection]:
    """Return the whole card, in reading order."""
    guarantee, audit = card["guarantee"], card["audit"]
    reasons = guarantee["not_private_because"]
    return [
        *([CardSection("Why it is not private", points=reasons)] if reasons else []),
        CardSection("What this means", points=[guarantee["in_words"]]),
        *([CardSection("Model", points=[card["model"]])] if card["model"] else []),
        CardSection("Guarantee", _guarantee(guarantee)),
        CardSection("Mechanism", _mechanism(card["mechanism"])),
        CardSection(
            "Side information",
            points=[_side(known) for known in card["side_information"]] or ["none"],
        ),
        *([CardSection(MEASURED, points=card["measured"])] if card.get("measured") else []),
        CardSection("Assumed public", points=card["assumed_public"] or ["nothing is declared"]),
        CardSection("Choice of settings", [("trials", card["tuning"]["in_words"])]),
        CardSection("Metrics and their data", points=_numbers(card["numbers"])),
        CardSection("Audit", _audit(audit) if audit else [("bound", "none attached")]),
        CardSection("Not covered by this guarantee", points=card["not_covered"]),
    ]


def digits(epsilon: float | None) -> str:
    """Return epsilon with three decimals, rounded up as a bound must be; ∞ for None.

    >>> digits(1.25), digits(2.0004), digits(0.00123), digits(None)
    ('1.250', '2.001', '0.0013', '∞')
    """
    return "∞" if epsilon is None else _rounded(epsilon, ROUND_CEILING)


def readable(name: str) -> str:
    """Return a name as people write it.

    >>> readable("top_label_accuracy")
    'top label accuracy'
    """
    return name.replace("_", " ")


def measured_on(data: str, declared: str) -> str:
    """Return the data of a metric and how it is declared, unless its name says so.

    The name says so only if it begins that way: not everything with "public" in it is public.

    >>> measured_on("June", "held out"), measured_on("held-out rows", "held out")
    ('June (held out)', 'held-out rows')
    >>> measured_on("republican voters", "public"), measured_on("public_html", "public")
    ('republican voters (public)', 'public_html (public)')
    """
    says_it = re.match(rf"{re.escape(declared)}(?!\w)", data.replace("-", " "))
    return data if says_it else f"{data} ({declared})"


def _rounded(bound: float, direction: str) -> str:
    """Round the decimal form of a number, so that 1.1 becomes 1.100."""
    exact = Decimal(repr(float(bound)))
    if exact >= Decimal("0.01"):
        return str(exact.quantize(Decimal("0.001"), rounding=direction))
    return f"{float(Context(prec=2, rounding=direction).plus(exact)):.2g}"


def _guarantee(held: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = [
        ("who is protected", f"one {held['unit']}"),
        *_users(held["unit"]),
        ("neighbouring relation", held["relation"]),
        ("δ", f"{held['delta']:.6g}"),
    ]
    for name, priced in held["by_accountant"].items():
        own = name == held["accountant"]
        number = digits(priced["epsilon"]) if own or priced["epsilon"] is not None else "–"
        note = f" ({priced['note']})" if priced["note"] else ""
        facts.append((f"ε by {name.upper()}", f"{number}{note}"))
    return facts


def _users(unit: str) -> list[tuple[str, str]]:
    if not unit.startswith(Unit.USER.value):
        return []
    from adadps.data.users import TOLD_APART_BY  # which imports torch: no other card needs it

    return [("users are identified by", TOLD_APART_BY)]


def _rounding(held: Mapping[str, Any]) -> str:
    charge = held.get("most_rounding_charge")
    if not charge:
        return ""
    return f" (up to {100 * charge:.2g} % of it pays for the rounding of sums in float32)"


def _clip_norm(held: Mapping[str, Any]) -> str:
    first, last = _plain(held["clip_norm"]), held.get("clip_norm_at_end")
    return first if last is None else f"{first} at the first step, {_plain(last)} after the last"


def _mechanism(held: Mapping[str, Any]) -> list[tuple[str, str]]:
    sampling = ", ".join(f"{readable(name)}: {_plain(v)}" for name, v in _sampling(held))
    paid = held["steps_paid"]
    clip = held["clip_norm"]
    return [
        ("method, stage by stage", held["chain"]),
        ("sampling", sampling),
        ("noise multiplier σ", _plain(held["noise_multiplier"])),
        (
            "clip norm C",
            "∞ (nothing is clipped)" if clip is None else _clip_norm(held) + _rounding(held),
        ),
        *([("clipping", held["clipping"])] if "clipping" in held else []),
        ("steps", str(held["steps"])),
        ("steps paid", "not recorded" if paid is None else str(paid)),
    ]


def _sampling(held: Mapping[str, Any]) -> list[tuple[str, Any]]:
    names = {"sampling": "scheme", "expected_size": "expected batch size"}
    return [
        (names.get(name, name), value)
        for name, value in held["sampling"].items()
        if name != "relation"
    ]


def _side(known: Mapping[str, str | None]) -> str:
    digest = known["digest_of_what_is_public"]
    hashed = f"; SHA-256 of the public data: {digest[:16]}…" if digest else ""
    return (
        f"{known['source']}. Public because: {known['public_because']}. "
        f"Cost: {known['cost']}{hashed}"
    )


def _numbers(numbers: list[dict[str, Any]]) -> list[str]:
    return [
        f"{readable(one['metric'])} = {_plain(one['value'])} after step {one['step']}, on "
        f"{measured_on(one['data'], one['declared'])}"
        for one in numbers
    ] or ["nothing was measured: no held-out or public rows were given"]


def _audit(held: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        ("verdict", held["verdict"]),
        (
            "lower bound",
            f"ε ≥ {_rounded(held['lower_bound'], ROUND_FLOOR)} with confidence "
            f"{held['confidence']:g}, against a claim of "
            f"{digits(held['claimed_epsilon'])} at δ = {held['delta']:.3g}",
        ),
        ("how", f"{held['audit']}: {held['runs']} runs, {held['guesses']} guesses"),
        ("what was audited", held["of"]),
    ]


def _plain(value: Any) -> str:
    if value is None:
        return "not a number"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


_SPECIAL = re.compile(r"([\\`*_\[\]<>|#&~])")


def markdown_of(card: Mapping[str, Any], name: str = "") -> str:
    """Return the whole card of the model called ``name`` as Markdown.

    Texts from elsewhere are escaped: nothing in them is taken for markup.
    """
    headline = headline_of(card)
    lines = [title_of(name), "", f"## {headline}" if card["private"] else f"# {headline}", ""]
    for section in sections_of(card):
        lines += [f"## {section.title}", ""]
        lines += [f"- **{as_text(name)}:** {as_text(value)}" for name, value in section.facts]
        lines += [f"- {as_text(point)}" for point in section.points]
        lines.append("")
    return "\n".join([*lines, f"Made with {as_text(card['made_with'])}.", ""])


def title_of(name: str) -> str:
    """Return the first line.

    >>> title_of("reviews"), title_of("")
    ('# Privacy card of reviews', '# Privacy card')
    """
    return f"# Privacy card of {as_text(name)}" if name else "# Privacy card"


def as_text(text: str) -> str:
    r"""Return the text on one line, with markup escaped.

    >>> as_text("f_max *\n<b>")
    'f\\_max \\* \\<b\\>'
    """
    return _SPECIAL.sub(r"\\\1", " ".join(str(text).split()))


CARD_JSON, CARD_MARKDOWN = "card.json", "card.md"


def schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of ``card.json``.

    >>> schema()["title"]
    'adadps privacy card'
    """
    text = files("adadps.report.card").joinpath("card_schema.json").read_text(encoding="utf-8")
    held: dict[str, Any] = json.loads(text)
    return held


def json_of(card: Mapping[str, Any]) -> str:
    """Return the card as the text of ``card.json``."""
    return json.dumps(card, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def write_card(card: Mapping[str, Any], folder: Path) -> None:
    """Write both forms of the card into a folder that is being created under its final name."""
    (folder / CARD_JSON).write_text(json_of(card), encoding="utf-8")
    (folder / CARD_MARKDOWN).write_text(markdown_of(card, folder.name), encoding="utf-8")
