"""How many fits an estimator and its clones have made, each with a budget of its own."""

from __future__ import annotations

from typing import Any, Self


class Siblings:
    """A count that clones in one process share; another process has a copy and counts for itself.

    >>> family = Siblings()
    >>> family.fits = 3
    >>> family.trials(None, itself=False), family.trials(0, itself=False)
    (4, 4)
    """

    fits = 0
    elsewhere = False
    """Was an estimator sent to where nobody counts for us, as by a search with n_jobs > 1?"""

    def trials(self, declared: int | None, *, itself: bool) -> int | None:
        """How many fits epsilon does not cover there were, the present one included.

        ``itself`` says that the present one is among those that were counted. None is unknown:
        there may be others that nobody has counted.
        """
        others = self.fits - itself
        if others:
            return max(declared or 0, others + 1)
        return None if declared == 0 and self.elsewhere else declared

    def __deepcopy__(self, _memo: dict[int, Any]) -> Self:
        return self

    def __getstate__(self) -> dict[str, Any]:
        self.elsewhere = True
        return {"fits": self.fits, "elsewhere": True}
