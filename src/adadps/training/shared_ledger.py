"""One ledger for several processes: the first one holds it, the others wait for its word.

Nothing is drawn anywhere before the first process has recorded the payment. The others note what it
was told to charge, so that each of them can state what the run has cost without asking.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

from dp_accounting import DpEvent

from adadps.accounting.epsilon import Budget, Life
from adadps.accounting.events import event_of, text_of
from adadps.accounting.ledger import DiskLedger, Ledger, MemoryLedger, RunFacts
from adadps.engine.group import Group, Meeting
from adadps.types import Accountant, Relation


class SharedLedger:
    """The ledger of the first process, for all of a group."""

    def __init__(self, group: Group, own: Callable[[], Ledger]) -> None:
        self._group = group
        self.own = own() if group.is_first else None
        """The ledger itself, in the first process."""
        told = group.tell(Meeting.LEDGER, self._facts)
        self.identity: str = told["identity"]
        self.budget = None if told["budget"] is None else Budget(**told["budget"])
        self.is_on_disk: bool = told["is_on_disk"]
        self._noted = MemoryLedger()
        self._earlier: dict[str, tuple[tuple[tuple[DpEvent, int], ...], tuple[Life, ...]]] = {}

    def _facts(self) -> dict[str, object]:
        assert self.own is not None
        budget = self.own.budget
        return {
            "identity": self.own.identity,
            "budget": asdict(budget) if budget else None,
            "is_on_disk": isinstance(self.own, DiskLedger),
        }

    def name_of(self, name: Callable[[], str]) -> str:
        """Return the first process's name of a run, and note what that run was charged before."""

        def known() -> dict[str, object]:
            assert self.own is not None
            run = name()
            charged = [[text_of(event), count] for event, count in self.own.charged(run)]
            lives = [asdict(life) for life in self.own.lives(run)]
            return {"run": run, "charged": charged, "lives": lives}

        told = self._group.tell(Meeting.LEDGER, known)
        charged = tuple((event_of(text), count) for text, count in told["charged"])
        self._earlier[told["run"]] = charged, tuple(Life(**life) for life in told["lives"])
        return str(told["run"])

    @property
    def entries(self) -> int:
        """The number of charges; in other processes than the first, of this run alone."""
        return self._noted.entries if self.own is None else self.own.entries

    def choose_accountant(self, fitting: Sequence[Accountant]) -> Accountant:
        """Return the accountant of this ledger, or the preferred one."""
        own = self.own
        chosen = self._group.tell(
            Meeting.LEDGER, lambda: own.choose_accountant(fitting).value if own else None
        )
        return Accountant(chosen)

    def open(
        self,
        run: str,
        relation: Relation,
        accountant: Accountant,
        facts: RunFacts | None = None,
    ) -> None:
        """Begin or continue a run, once the first process has."""
        facts, own = facts or RunFacts(), self.own
        self._group.tell(
            Meeting.LEDGER, lambda: own.open(run, relation, accountant, facts) if own else None
        )
        self._noted.open(run, relation, accountant, facts)

    def authorise(
        self, event: DpEvent, *, run: str | None = None, ahead: int = 1, at_once: int = 1
    ) -> None:
        """Charge ``event`` once; all processes return when it is recorded, or none does."""
        own = self.own

        def pay() -> None:
            if own is not None:
                own.authorise(event, run=run, ahead=ahead, at_once=at_once)

        self._group.tell(Meeting.PAYMENT, pay)
        self._noted.authorise(event, run=run)

    def charged(self, run: str) -> tuple[tuple[DpEvent, int], ...]:
        """Return all charges of a run, without asking another process."""
        if self.own is not None:
            return self.own.charged(run)
        merged: dict[str, tuple[DpEvent, int]] = {}
        earlier, _ = self._earlier.get(run, ((), ()))
        for event, count in (*earlier, *self._noted.charged(run)):
            key = text_of(event)
            merged[key] = (event, merged.get(key, (event, 0))[1] + count)
        return tuple(merged.values())

    def lives(self, run: str) -> tuple[Life, ...]:
        """Return what each life of a run has been charged for."""
        if self.own is not None:
            return self.own.lives(run)
        _, earlier = self._earlier.get(run, ((), ()))
        return (*earlier, *self._noted.lives(run))

    def room(self, event: DpEvent, wanted: int) -> int:
        """Return how many of ``wanted`` such events fit now, by the first process's ledger."""
        own = self.own
        told = self._group.tell(Meeting.LEDGER, lambda: own.room(event, wanted) if own else None)
        return int(told)

    def epsilon(self, delta: float) -> float:
        """Return epsilon of all charges; in other processes than the first, of this run alone."""
        return (self._noted if self.own is None else self.own).epsilon(delta)
