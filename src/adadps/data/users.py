"""The user of each row, and the rows of each user.

Epsilon is for one user. Somebody who appears as ``Ann``, ``ann`` and ``ANN`` would be three users
and have three times the stated epsilon. So keys are compared in one spelling (`user_key`), which
undoes what tables do to them: case, blanks, Unicode forms, invisible characters, and the many ways
to write an integer. docs/decisions/user-level.md explains why it undoes no more.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from adadps.data.provenance import DeclaredRead, declared_read
from adadps.errors import DataError

Numbers = npt.NDArray[np.int64]


def user_numbers(users: Any, rows: int) -> Tensor:
    """Number the users of rows from 0; users with the same key (`user_key`) have one number.

    The integers or texts themselves are not stored.

    >>> user_numbers(["ann", "bob", "Ann "], 3), user_numbers([7, 7.0, "007"], 3)
    (tensor([0, 1, 0]), tensor([0, 0, 0]))
    """
    if isinstance(users, str | bytes) or not isinstance(users, Iterable):
        raise DataError(
            "Expected a list with the user of each row, found something else. Give one integer or "
            "text per row."
        )
    held = users.tolist() if hasattr(users, "tolist") else list(users)
    if len(held) != rows:
        raise DataError(
            f"Expected one user per row, found {len(held)} for {rows} rows. Check that both come "
            "from the same table."
        )
    keys = [user_key(user) for user in held]
    if None in keys:
        raise DataError(
            "Expected integers, or texts that are not empty, as users, found a missing one or "
            "another type. Leave out rows without a user, or give each of them its own user: "
            "several people under one name would be protected as one, and none of them alone."
        )
    numbers: dict[str | None, int] = {}
    return torch.tensor([numbers.setdefault(key, len(numbers)) for key in keys], dtype=torch.int64)


class UserRows:
    """The rows of each user, in order; users whose rows are all left out still count."""

    @declared_read(DeclaredRead.USERS)
    def __init__(self, users: Tensor, kept: Tensor) -> None:
        _, numbers = np.unique(users.cpu().numpy(), return_inverse=True)
        self.count = int(numbers.max()) + 1 if len(numbers) else 0
        rows = np.flatnonzero(kept.cpu().numpy())
        order = np.argsort(numbers[rows], kind="stable")
        self._rows: Numbers = rows[order].astype(np.int64)
        sizes = np.bincount(numbers[rows], minlength=self.count)
        self._offsets = np.concatenate([[0], np.cumsum(sizes)])

    def of(self, users: Numbers, most: int, rng: np.random.Generator) -> tuple[Numbers, Numbers]:
        """Return a uniform subset of at most ``most`` rows of each given user, and their owners.

        Owners are positions in ``users``. Subsets are drawn independently.

        >>> rows = UserRows(torch.tensor([0, 1, 0]), torch.tensor([True, True, True]))
        >>> [part.tolist() for part in rows.of(np.array([1, 0]), 2, np.random.default_rng())]
        [[1, 0, 2], [0, 1, 1]]
        """
        chosen = [self._some(int(user), most, rng) for user in users]
        owners = np.repeat(np.arange(len(chosen)), [len(rows) for rows in chosen])
        return np.concatenate([np.empty(0, np.int64), *chosen]), owners

    def _some(self, user: int, most: int, rng: np.random.Generator) -> Numbers:
        rows = self._rows[self._offsets[user] : self._offsets[user + 1]]
        if len(rows) <= most:
            return rows
        return rows[np.sort(rng.choice(len(rows), most, replace=False, shuffle=False))]


MISSING = frozenset({"nan", "null", "none", "na", "n/a", "nat", "<na>"})
"""What other programs write for a missing value."""

TOLD_APART_BY = (
    "their key in one spelling: case, blanks, Unicode forms and invisible characters do not count, "
    "and 7, 7.0 and 007 are one user"
)
"""How users are told apart, as stated on the card."""

_WHOLE = re.compile(r"([+-]?)0*([0-9]+)(?:\.0*)?", re.ASCII)
_AS_A_PROGRAM_WRITES_IT = re.compile(r"[+-]?[0-9](?:\.[0-9]+)?e\+?[0-9]{1,2}", re.ASCII)
_MOST_DIGITS = 300
_SELECTORS = range(0xFE00, 0xFE10)


def user_key(user: Any) -> str | None:
    """Return the key in its one spelling; None if it is missing, or no integer and no text.

    >>> user_key(7) == user_key(7.0) == user_key("7") == user_key(" 007 ") == user_key("7.0")
    True
    >>> user_key("Ann\u00a0 LEE") == user_key("ann lee"), user_key("Stra\u00dfe")
    (True, 'strasse')
    >>> [user_key(missing) for missing in (None, "", "\u200b", "NaN", float("nan"), 7.5, True)]
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
    """NFKC without case, as Unicode defines it for identifiers; each run of blanks is one space."""
    if not (text.isascii() and text.isprintable()):  # as nearly all keys are
        text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
        text = "".join(_digit(mark) for mark in text if _is_seen(mark))
    return " ".join(text.casefold().split())


def _is_seen(mark: str) -> bool:
    kind = unicodedata.category(mark)
    return mark.isspace() or not (kind in ("Cc", "Cf") or ord(mark) in _SELECTORS)


def _digit(mark: str) -> str:
    """Digits of all scripts become 0 to 9."""
    value = unicodedata.decimal(mark, None)
    return mark if value is None else str(value)


def _as_whole_number(key: str) -> str:
    if _AS_A_PROGRAM_WRITES_IT.fullmatch(key) and Decimal(key) == int(Decimal(key)):
        key = str(int(float(key)))  # like a float, with its digits beyond precision
    found = _WHOLE.fullmatch(key)
    if found is None:
        return key
    sign, digits = found.groups()
    return f"-{digits}" if sign == "-" and digits != "0" else digits
