"""Who each row belongs to, and which rows each user has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from adadps.data.declared_reads import DeclaredRead, declared_read
from adadps.data.user_keys import user_key
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


class RowsOfUsers:
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

        >>> rows = RowsOfUsers(torch.tensor([0, 1, 0]), torch.tensor([True, True, True]))
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
