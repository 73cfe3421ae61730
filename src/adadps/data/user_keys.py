"""One spelling for each user, so that nobody counts twice.

Epsilon is for one user. Somebody who is there as ``Ann``, ``ann`` and ``ANN`` would be three users
and have three times the epsilon that is stated. So keys are compared in one spelling, which
undoes what tables do to them on their way: case, blanks, forms of Unicode, marks that cannot be
seen, and the many ways to write a whole number. docs/decisions/user-level.md says why no more.
"""

from __future__ import annotations

import math
import re
import unicodedata
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

MISSING = frozenset({"nan", "null", "none", "na", "n/a", "nat", "<na>"})
"""What other programs write where there is nothing."""

TOLD_APART_BY = (
    "their key in one spelling: case, blanks, forms of Unicode and invisible marks do not count, "
    "and 7, 7.0 and 007 are one user"
)
"""As the card says it."""

_WHOLE = re.compile(r"([+-]?)0*([0-9]+)(?:\.0*)?", re.ASCII)
_AS_A_PROGRAM_WRITES_IT = re.compile(r"[+-]?[0-9](?:\.[0-9]+)?e\+?[0-9]{1,2}", re.ASCII)
_MOST_DIGITS = 300
_SELECTORS = range(0xFE00, 0xFE10)


def user_key(user: Any) -> str | None:
    """The key in its one spelling; None if nobody is named, or if it is no integer and no text.

    >>> user_key(7) == user_key(7.0) == user_key("7") == user_key(" 007 ") == user_key("7.0")
    True
    >>> user_key("Ann\u00a0 LEE") == user_key("ann lee"), user_key("Stra\u00dfe")
    (True, 'strasse')
    >>> [user_key(nobody) for nobody in (None, "", "\u200b", "NaN", float("nan"), 7.5, True)]
    [None, None, None, None, None, None, None]
    """
    if isinstance(user, str):
        key = _spelled(user)
        return None if not key or key in MISSING else _as_whole_number(key)
    if isinstance(user, bool):
        return None
    if isinstance(user, Integral):
        return str(int(user))
    if isinstance(user, Decimal) and user.is_finite() and user.adjusted() < _MOST_DIGITS:
        return str(int(user)) if user == int(user) else None
    number = float(user) if isinstance(user, Real) else math.nan
    return str(int(number)) if number.is_integer() else None


def _spelled(text: str) -> str:
    """NFKC and without case, as Unicode defines it for identifiers; blanks as one space each."""
    if not (text.isascii() and text.isprintable()):  # which nearly all are
        text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
        text = "".join(_digit(mark) for mark in text if _is_seen(mark))
    return " ".join(text.casefold().split())


def _is_seen(mark: str) -> bool:
    kind = unicodedata.category(mark)
    return mark.isspace() or not (kind in ("Cc", "Cf") or ord(mark) in _SELECTORS)


def _digit(mark: str) -> str:
    """Digits of all scripts as 0 to 9."""
    value = unicodedata.decimal(mark, None)
    return mark if value is None else str(value)


def _as_whole_number(key: str) -> str:
    if _AS_A_PROGRAM_WRITES_IT.fullmatch(key) and Decimal(key) == int(Decimal(key)):
        key = str(int(float(key)))  # as for a float, whose digits beyond its precision are its own
    found = _WHOLE.fullmatch(key)
    if found is None:
        return key
    sign, digits = found.groups()
    return f"-{digits}" if sign == "-" and digits != "0" else digits
