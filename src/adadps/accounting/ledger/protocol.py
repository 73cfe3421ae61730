"""What a run asks of a ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dp_accounting import DpEvent

from adadps.accounting.epsilon import Budget, Life
from adadps.accounting.ledger.facts import RunFacts
from adadps.types import Accountant, Relation


class Ledger(Protocol):
    """Where privacy is paid for."""

    @property
    def identity(self) -> str:
        """A random name that no other ledger has; a run that is resumed wants the one it had."""

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
        """Begin a run, or a further life of one; refuse terms that differ from the ledger's.

        A name that the ledger knows continues that run, under the same plan.
        """

    def authorise(
        self, event: DpEvent, *, run: str | None = None, ahead: int = 1, at_once: int = 1
    ) -> None:
        """Charge ``event``, or raise `BudgetError`; called before anything is drawn.

        ``run`` is who pays (default: the run that was opened last). ``ahead`` is how many such
        events are planned from here on; it saves computation, and the event that the first run
        plans most of sets the order of the Rényi filter. A ledger may charge up to ``at_once`` of
        them now and ask nobody the next times.
        """

    def charged(self, run: str) -> tuple[tuple[DpEvent, int], ...]:
        """All charges of a run in all its lives, each with how often it was made."""

    def lives(self, run: str) -> tuple[Life, ...]:
        """What each life of a run has been charged for; empty if the run is not known."""

    def room(self, event: DpEvent, wanted: int) -> int:
        """How many of ``wanted`` such events fit now; charges nothing."""

    def epsilon(self, delta: float) -> float:
        """What all charged events cost together."""
