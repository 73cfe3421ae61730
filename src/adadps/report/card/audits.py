"""The outcome of an audit on a card, if it audits the same claim."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adadps.errors import DataError
from adadps.files import parse_json

AUDIT_FILE = "audit.json"
TOLERANCE = 0.01
"""Relative tolerance, since a claim may be typed with few digits."""
_TEXTS = ("audit", "relation", "verdict")
_NUMBERS = ("claimed_epsilon", "delta", "lower_bound", "largest_bound", "confidence")
_COUNTS = ("runs", "guesses")


def fitting_audit(
    outcome: Any, described: Mapping[str, Any], where: str = "the outcome"
) -> dict[str, Any]:
    """Return the entry of a card for the JSON of ``adadps audit``, or refuse another claim.

    Epsilon and delta must agree (to one percent), and so must the relation. This is *not* an audit
    of the model itself: `adadps audit` trains its own small models with the same code.
    """
    _require_kinds(outcome, where)
    privacy = described["privacy"]
    claimed = (privacy["epsilon"], privacy["delta"], privacy["relation"])
    if privacy["epsilon"] is None:
        raise DataError(
            "Expected a private result to attach an audit to, found one without an epsilon: there "
            "is no claim to refute. Leave the audit out."
        )
    found = (outcome["claimed_epsilon"], outcome["delta"], outcome["relation"])
    same = all(
        math.isclose(one, other, rel_tol=TOLERANCE)
        for one, other in zip(found[:2], claimed[:2], strict=True)
    )
    if not same or found[2] != claimed[2]:
        raise DataError(
            f"Expected an audit of ε = {claimed[0]:.4g} at δ = {claimed[1]:.4g} ({claimed[2]}), "
            f"found one of ε = {found[0]:.4g} at δ = {found[1]:.4g} ({found[2]}). Repeat the audit "
            f"with --epsilon {claimed[0]:.6g} --delta {claimed[1]:.6g}; nothing was changed."
        )
    entries = {name: outcome[name] for name in (*_TEXTS, *_NUMBERS, *_COUNTS)}
    return {**entries, "of": _of_what(outcome.get("settings"))}


def audit_in(file: Path, described: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of a card for an audit in a file."""
    try:
        outcome = parse_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        what = "no such file" if isinstance(error, FileNotFoundError) else "something else"
        raise DataError(
            f"Expected the JSON of `adadps audit ... --json` in {file}, found {what}. Check the "
            "path, or repeat the audit."
        ) from error
    return fitting_audit(outcome, described, str(file))


def attached_audit(folder: Path, described: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the audit that was attached to the card in a folder, if there is one."""
    file = folder / AUDIT_FILE
    return audit_in(file, described) if file.exists() else None


def _of_what(settings: Any) -> str:
    held = settings if isinstance(settings, dict) else {}
    listed = ", ".join(f"{name} {value}" for name, value in sorted(held.items()))
    return (
        f"other models, trained for the audit by the same library ({listed or 'settings unknown'})"
    )


def _require_kinds(outcome: Any, where: str) -> None:
    held = outcome if isinstance(outcome, dict) else {}
    sound = (
        all(isinstance(held.get(name), str) for name in _TEXTS)
        and all(_is_number(held.get(name)) for name in _NUMBERS)
        and all(_is_number(held.get(name)) and isinstance(held[name], int) for name in _COUNTS)
    )
    if not sound or not 0 < held["confidence"] < 1 or not 0 < held["delta"] < 1:
        raise DataError(
            f"Expected the JSON of `adadps audit ... --json` with a finite claim in {where}, found "
            "something else. Write its output to a file and give that file."
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
