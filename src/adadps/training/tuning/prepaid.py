"""A ledger for a trial that the tuning has paid for already."""

from __future__ import annotations

from collections.abc import Sequence

from dp_accounting import DpEvent

from adadps.accounting.events import is_free
from adadps.accounting.ledger import MemoryLedger
from adadps.errors import BudgetError


class PrepaidLedger(MemoryLedger):
    """Lets through the events that were paid for, as often as they were, and nothing else.

    >>> from dp_accounting import GaussianDpEvent
    >>> from adadps.types import Accountant, Relation
    >>> ledger = PrepaidLedger([(GaussianDpEvent(2.0), 1)])
    >>> ledger.open("trial", Relation.ADD_OR_REMOVE_ONE, Accountant.RDP)
    >>> ledger.authorise(GaussianDpEvent(2.0))
    >>> ledger.authorise(GaussianDpEvent(2.0))
    Traceback (most recent call last):
    adadps.errors.BudgetError: Expected a charge that the tuning has paid for, found ...
    """

    def __init__(self, allowance: Sequence[tuple[DpEvent, int]]) -> None:
        super().__init__()
        self._allowed: dict[str, int] = {}
        for event, count in allowance:
            self._allowed[repr(event)] = self._allowed.get(repr(event), 0) + count

    def authorise(
        self, event: DpEvent, *, run: str | None = None, ahead: int = 1, at_once: int = 1
    ) -> None:
        """Let ``event`` through if it was paid for and not used yet."""
        if not is_free(event):
            left = self._allowed.get(repr(event), 0)
            if left == 0:
                raise BudgetError(
                    f"Expected a charge that the tuning has paid for, found {event} beyond it. "
                    "Let `make` depend on its setting alone, and do not prolong a trial."
                )
            self._allowed[repr(event)] = left - 1
        super().authorise(event, run=run, ahead=ahead, at_once=at_once)
