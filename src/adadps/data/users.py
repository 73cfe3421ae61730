"""Who each row belongs to, and which rows each user has."""

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

from adadps.data.declared_reads import DeclaredRead, declared_read
from adadps.errors import DataError

Numbers = npt.NDArray[np.int64]


def user_numbers(users: Any, rows: int) -> Tensor:
    """A number from 0 for each row; equal for rows whose users have the same key (`user_key`).

    The integers or texts themselves are not kept.

    >>> user_numbers(["ann", "bob", "Ann "], 3), user_numbers([7, 7.0, "007"], 3)
    (tensor([0, 1, 0]), tensor([0, 0, 0]))
    """
    if isinstance(users, str | bytes) or not isinstance(users, Iterable):
        raise DataError(
            "Expected a list with the user of each row, found something else. Give one integer or "
            "text a row."
        )
    held = users.tolist() if hasattr(users, "tolist") else list(users)
    if len(held) != rows:
        raise DataError(
            f"Expected one user a row, found {len(held)} for {rows} rows. Check that both come "
            "from the same table."
        )
    keys = [user_key(user) for user in held]
    if None in keys:
        raise DataError(
            "Expected integers, or texts that are not empty, as users, found a missing one or "
            "another kind. Leave out rows without a user, or give each of them a user of its own: "
            "several people under one name would be protected as one, and none of them alone."
        )
    known: dict[str | None, int] = {}
    return torch.tensor([known.setdefault(key, len(known)) for key in keys], dtype=torch.int64)


class UserRows:
    """The rows of each user, in order; users whose rows are all left out still count."""

    @declared_read(DeclaredRead.USERS)
    def __init__(self, users: Tensor, kept: Tensor) -> None:
        _, numbers = np.unique(users.cpu().numpy(), return_inverse=True)
        self.count = int(numbers.max()) + 1
        rows = np.flatnonzero(kept.cpu().numpy())
        order = np.argsort(numbers[rows], kind="stable")
        self._rows: Numbers = rows[order].astype(np.int64)
        sizes = np.bincount(numbers[rows], minlength=self.count)
        self._offsets = np.concatenate([[0], np.cumsum(sizes)])

    def of(self, users: Numbers, most: int, rng: np.random.Generator) -> tuple[Numbers, Numbers]:
        """At most ``most`` rows of each given user, a uniform subset of theirs, and whose they are.

        Whose: places in ``users``. One user's subset is drawn independently of all others.

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
