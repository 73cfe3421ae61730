"""A ledger on disk, shared by runs and by processes.

A charge is *reserved* before the step begins: in one write transaction the ledger reads what all
processes have spent, checks the budget, writes the reservation, and waits for the disk. A process
that is killed afterwards has paid; charges are never rolled back.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from dp_accounting import DpEvent

from adadps.accounting.epsilon import Budget, Life
from adadps.accounting.events import event_of, text_of
from adadps.accounting.ledger.file import connect, create, explained
from adadps.accounting.ledger.spending import Spending, known_payer
from adadps.accounting.ledger.terms import (
    LedgerTerms,
    RunFacts,
    canonical,
    require_another_run,
    require_same_plan,
    terms_of,
)
from adadps.errors import ContractError, DataError
from adadps.files import process
from adadps.types import Accountant, Relation


class DiskLedger:
    """A ledger in a file, which is created if it does not exist.

    ``budget`` is fixed when the file is created; leave it out to continue under the stored one.
    Several processes may use the same file, each with its own `DiskLedger`.

    >>> import tempfile
    >>> from dp_accounting import GaussianDpEvent
    >>> path = Path(tempfile.mkdtemp()) / "reviews.ledger"
    >>> with DiskLedger(path, budget=Budget(epsilon=1.0, delta=1e-5)) as ledger:
    ...     ledger.open("first", Relation.ADD_OR_REMOVE_ONE, Accountant.RDP)
    ...     ledger.authorise(GaussianDpEvent(10.0))
    >>> with DiskLedger(path) as ledger:
    ...     ledger.entries, ledger.budget
    (1, Budget(epsilon=1.0, delta=1e-05))
    """

    def __init__(self, path: str | Path, *, budget: Budget | None = None) -> None:
        self.path = Path(path)
        self._lock = threading.RLock()
        self._process = process()
        if not os.path.exists(self.path):  # False for impossible names, too
            create(self.path, budget)
        self._place = _place(self.path)
        self._connection = connect(self.path)
        try:
            with explained(self.path):
                self._begin(budget)
        except BaseException:
            self._connection.close()
            raise

    def _begin(self, budget: Budget | None) -> None:
        held = self._read_budget()
        if budget is not None and budget != held:
            raise ContractError(
                f"Expected the budget that the ledger {self.path} began with ({_words(held)}), "
                f"found another ({_words(budget)}). Give the same one, or none, to continue, or "
                "begin a new ledger for other data."
            )
        self._spending = Spending(held)
        (self.identity,) = self._connection.execute("SELECT identity FROM terms").fetchone()
        self._events: dict[int, DpEvent] = {}
        self._event_numbers: dict[str, int] = {}
        self._seen = 0
        self._lives: dict[str, int] = {}  # ids of the runs opened by this object
        self._latest: str | None = None
        self._reserved: dict[tuple[str, str], int] = {}  # paid for, and not used yet
        with self._transaction("DEFERRED"):
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; all charges stay recorded."""
        if process() == self._process:
            self._connection.close()

    @property
    def budget(self) -> Budget | None:
        """The budget of all runs together; None if charges are only counted."""
        return self._spending.budget

    @property
    def entries(self) -> int:
        """The number of charges, by all runs and processes."""
        with self._transaction("DEFERRED"):
            return self._spending.entries

    def choose_accountant(self, fitting: Sequence[Accountant]) -> Accountant:
        """Return the accountant of this ledger if it has one, else RDP, so that runs compose."""
        with self._transaction("DEFERRED"):
            held = self._spending.terms
        wanted = held.accountant if held else Accountant.RDP
        return wanted if wanted in fitting else fitting[0]

    def open(
        self,
        run: str,
        relation: Relation,
        accountant: Accountant,
        facts: RunFacts | None = None,
    ) -> None:
        """Begin or continue a run under this ledger's relation, accountant and unit."""
        facts = facts or RunFacts()
        terms, plan = (
            LedgerTerms(relation, accountant, facts.unit),
            facts.plan_hash(relation, accountant),
        )
        with self._transaction("IMMEDIATE"):
            (self._spending.terms or terms).require_same(terms)
            known = self._connection.execute(
                "SELECT plan_hash FROM runs WHERE name = ? LIMIT 1", (run,)
            ).fetchone()
            if known is None:
                require_another_run(terms, self._spending.runs)
            else:
                require_same_plan(run, known[0], plan)
            self._connection.execute(
                "UPDATE terms SET relation = ?, accountant = ?, unit = ?",
                (relation.value, accountant.value, facts.unit),
            )
            written = self._connection.execute(
                "INSERT INTO runs (name, plan_hash, chain, sampler, side_information, "
                "planned_steps, paid_first, code_version) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    run,
                    plan,
                    facts.chain,
                    canonical(dict(facts.sampler)),
                    canonical([dict(source) for source in facts.side_information]),
                    facts.planned_steps,
                    facts.paid_first,
                    facts.code_version,
                ),
            )
            number = int(written.lastrowid or 0)
        self._lives[run], self._latest = number, run

    def authorise(
        self, event: DpEvent, *, run: str | None = None, ahead: int = 1, at_once: int = 1
    ) -> None:
        """Reserve ``event`` on disk if the budget allows it; it is paid once this returns.

        Up to ``at_once`` events are reserved in one transaction, and the following calls use these.
        After a crash all of them count as spent.
        """
        text = text_of(event)
        with self._lock:
            self._require_own_process()
            payer = known_payer(run, self._latest, self._lives)
            in_stock = self._reserved.get((payer, text), 0)
            if in_stock:
                self._reserved[payer, text] = in_stock - 1
                return
            with self._transaction("IMMEDIATE"):
                self._spending.require_room(event, ahead)
                count = min(at_once, ahead)
                count = max(1, self._spending.room(event, count)) if count > 1 else 1
                number = self._event_number(text)
                is_planned_most = self._spending.is_planned_most(event, ahead)
                if is_planned_most:
                    self._connection.execute(
                        "UPDATE terms SET most_planned = ?, most_planned_count = ?",
                        (number, ahead),
                    )
                self._connection.executemany(
                    "INSERT INTO reservations (run, event) VALUES (?, ?)",
                    [(self._lives[payer], number)] * count,
                )
                (last,) = self._connection.execute("SELECT max(id) FROM reservations").fetchone()
            self._events[number], self._event_numbers[text] = event, number
            if is_planned_most:
                self._spending.most_planned = (event, ahead)
            self._spending.charge(
                event, count
            )  # an interruption here counts it twice, never loses it
            self._seen = last
            self._reserved[payer, text] = count - 1

    def charged(self, run: str) -> tuple[tuple[DpEvent, int], ...]:
        """Return all charges of a run, by all processes."""
        with self._transaction("DEFERRED"):
            held = self._connection.execute(
                "SELECT event, count(*) FROM reservations "
                "WHERE run IN (SELECT id FROM runs WHERE name = ?) GROUP BY event ORDER BY min(id)",
                (run,),
            ).fetchall()
            return tuple((self._event(number), count) for number, count in held)

    def run_of(self, plan_hash: str) -> str | None:
        """Return the latest run with this plan, if there is one."""
        with self._transaction("DEFERRED"):
            held = self._connection.execute(
                "SELECT name FROM runs WHERE plan_hash = ? ORDER BY id DESC LIMIT 1", (plan_hash,)
            ).fetchone()
        return None if held is None else str(held[0])

    def lives(self, run: str) -> tuple[Life, ...]:
        """Return what each life of a run has been charged for, by all processes."""
        with self._transaction("DEFERRED"):
            held = self._connection.execute(
                "SELECT (SELECT count(*) FROM reservations WHERE run = runs.id), paid_first "
                "FROM runs WHERE name = ? ORDER BY id",
                (run,),
            ).fetchall()
        return tuple(Life.of(charges, paid_first) for charges, paid_first in held)

    def room(self, event: DpEvent, wanted: int) -> int:
        """Return how many of ``wanted`` such events fit now; another process may use the room."""
        with self._transaction("DEFERRED"):
            return self._spending.room(event, wanted)

    def epsilon(self, delta: float) -> float:
        """Return epsilon of all charges so far, by all runs; infinite if something was exposed."""
        with self._transaction("DEFERRED"):
            return self._spending.epsilon(delta)

    @contextmanager
    def _transaction(self, kind: str) -> Iterator[None]:
        """Run a transaction on the state of all processes; IMMEDIATE takes the write lock."""
        self._require_own_process()
        with self._lock, explained(self.path):
            try:
                self._connection.execute(f"BEGIN {kind}")
                moved = self._place is None or _place(self.path) != self._place
                if kind == "IMMEDIATE" and moved:
                    raise DataError(
                        f"Expected the ledger {self.path} to stay in its place, found it moved, "
                        "removed or replaced. Put it back; nothing was charged."
                    )
                self._catch_up()
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def _catch_up(self) -> None:
        """Add what other processes have charged in the meantime."""
        last, runs = self._connection.execute(
            "SELECT (SELECT max(id) FROM reservations), (SELECT count(DISTINCT name) FROM runs)"
        ).fetchone()
        if runs != self._spending.runs:
            terms = self._read_terms()
            while self._spending.runs < runs:
                self._spending.begin_run(terms)
        if last is not None and last != self._seen:
            added = self._connection.execute(
                "SELECT event, count(*) FROM reservations WHERE id > ? AND id <= ? "
                "GROUP BY event ORDER BY min(id)",
                (self._seen, last),
            ).fetchall()
            charges = [(self._event(number), count) for number, count in added]
            self._spending.most_planned = self._read_most_planned()
            for event, count in charges:
                self._spending.charge(event, count)
            self._seen = last

    def _read_budget(self) -> Budget | None:
        epsilon, delta = self._connection.execute("SELECT epsilon, delta FROM terms").fetchone()
        return None if epsilon is None else Budget(epsilon, delta)

    def _read_terms(self) -> LedgerTerms:
        relation, accountant, unit = self._connection.execute(
            "SELECT relation, accountant, unit FROM terms"
        ).fetchone()
        return terms_of(relation, accountant, unit)

    def _read_most_planned(self) -> tuple[DpEvent, int] | None:
        number, count = self._connection.execute(
            "SELECT most_planned, most_planned_count FROM terms"
        ).fetchone()
        return None if number is None else (self._event(number), count)

    def _event(self, number: int) -> DpEvent:
        if number not in self._events:
            (text,) = self._connection.execute(
                "SELECT content FROM events WHERE id = ?", (number,)
            ).fetchone()
            self._events[number] = event_of(text)
        return self._events[number]

    def _event_number(self, text: str) -> int:
        """Return the id of an event in the file, which is written if it is new."""
        if text in self._event_numbers:
            return self._event_numbers[text]
        event_of(text)  # an event that could not be read back must not be written
        self._connection.execute("INSERT OR IGNORE INTO events (content) VALUES (?)", (text,))
        (number,) = self._connection.execute(
            "SELECT id FROM events WHERE content = ?", (text,)
        ).fetchone()
        return int(number)

    def _require_own_process(self) -> None:
        if process() != self._process:
            raise ContractError(
                "Expected a ledger in the process that opened it, found a fork of that process. "
                "Open it again in the child process: `DiskLedger(path)`."
            )


def _place(path: Path) -> tuple[int, int] | None:
    """Return the identity of the file at ``path``; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _words(budget: Budget | None) -> str:
    return f"epsilon = {budget.epsilon:g} at delta = {budget.delta:g}" if budget else "none"
