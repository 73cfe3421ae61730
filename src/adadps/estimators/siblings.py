"""How many fits an estimator and its clones have made, and from which ledger each was paid."""

from __future__ import annotations

import os
from collections import Counter
from threading import Lock
from typing import Any, Self

_COUNTING = Lock()
_forks = 0


def _note_a_fork() -> None:
    global _forks  # noqa: PLW0603  (a fact about this process)
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_parent=_note_a_fork, after_in_child=_note_a_fork)


class Siblings:
    """A count that clones in one process share; what another process does is not known here.

    >>> family = Siblings()
    >>> for ledger in ("a", "b", "b"):
    ...     family.count(ledger)
    >>> family.trials(None, ledger="b"), family.trials(0, ledger="c")
    (2, 4)
    """

    def __init__(self, fits: Counter[str] | None = None, *, sent: bool = False) -> None:
        self.fits = Counter(fits)
        self._sent = sent
        self._forks = _forks

    def count(self, ledger: str) -> None:
        """One fit more that this ledger has paid; searches may fit in several threads at once."""
        with _COUNTING:
            self.fits[ledger] += 1

    @property
    def elsewhere(self) -> bool:
        """May others of the family be fitted in another process, as by a search with n_jobs > 1?

        What was pickled may be anywhere, on either side of it; so is what was there at a fork.
        """
        return self._sent or self._forks != _forks

    def trials(self, declared: int | None, *, ledger: str) -> int | None:
        """How many fits epsilon does not cover there were, the present one included.

        Covered are those that the same ``ledger`` has paid, and no others. None is unknown: there
        may be some that nobody has counted. Never fewer than were counted: a number that is
        declared is believed unless it is smaller.
        """
        with _COUNTING:
            others = self.fits.total() - self.fits[ledger]
        counted = others + 1 if others else 0
        if self.elsewhere:
            return declared if declared and declared >= counted else None
        return max(declared or 0, counted) if counted else declared

    def __deepcopy__(self, _memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        self._sent = True
        return _arrived, (dict(self.fits),)


def _arrived(fits: dict[str, int]) -> Siblings:
    return Siblings(Counter(fits), sent=True)
