"""How many fits an estimator and its clones have made, each with a budget of its own."""

from __future__ import annotations

import os
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
    >>> for _ in range(3):
    ...     family.count()
    >>> family.trials(None, itself=False), family.trials(0, itself=False)
    (4, 4)
    """

    def __init__(self, fits: int = 0, *, sent: bool = False) -> None:
        self.fits = fits
        self._sent = sent
        self._forks = _forks

    def count(self) -> None:
        """One fit more; searches may fit in several threads at once."""
        with _COUNTING:
            self.fits += 1

    @property
    def elsewhere(self) -> bool:
        """May others of the family be fitted in another process, as by a search with n_jobs > 1?

        What was pickled may be anywhere, on either side of it; so is what was there at a fork.
        """
        return self._sent or self._forks != _forks

    def trials(self, declared: int | None, *, itself: bool) -> int | None:
        """How many fits epsilon does not cover there were, the present one included.

        ``itself`` says that the present one is among those that were counted. None is unknown:
        there may be others that nobody has counted. Never fewer than were counted: a number that
        is declared is believed unless it is smaller.
        """
        others = self.fits - itself
        counted = others + 1 if others else 0
        if self.elsewhere:
            return declared if declared and declared >= counted else None
        return max(declared or 0, counted) if counted else declared

    def __deepcopy__(self, _memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        self._sent = True
        return _arrived, (self.fits,)


def _arrived(fits: int) -> Siblings:
    return Siblings(fits, sent=True)
