"""What a run asks of a ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dp_accounting import DpEvent

from adadps.accounting import Budget
from adadps.ledger.facts import RunFacts
from adadps.types import Accountant, Relation


class Ledger(Protocol):
    """Where privacy is paid for."""

    @property
    def budget(self) -> Budget | None:
        """What may be spent in all; None if charges are only counted."""

    @property
    def entries(self) -> int:
        """How many charges there are."""

    def choose_accountant(self, fitting: Sequence[Accountant]) -> Accountant:
        """The accountant for a run that names none; ``fitting`` has its favourite first."""

    def open(
        self,
        run: str,
        relation: Relation,
        accountant: Accountant,
        facts: RunFacts = ...,
    ) -> None:
        """Begin a run; refuse one whose terms differ from those of the ledger."""

    def authorise(self, event: DpEvent, *, ahead: int = 1) -> None:
        """Charge ``event``, or raise `BudgetError`; called before anything is drawn.

        ``ahead`` is how many such events are planned from here on; it saves computation, and the
        event that the first run plans most of sets the order of the Rényi filter.
        """

    def room(self, event: DpEvent, wanted: int) -> int:
        """How many of ``wanted`` such events fit now; charges nothing."""

    def epsilon(self, delta: float) -> float:
        """What all charged events cost together."""
