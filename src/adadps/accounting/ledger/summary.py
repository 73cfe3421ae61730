"""The summary of a ledger on disk."""

from __future__ import annotations

import json
import math
import os
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from dp_accounting import DpEvent

from adadps.accounting.epsilon import Budget, Life, epsilon_of
from adadps.accounting.events import (
    composed,
    default_delta,
    delta_of,
    event_of,
    require_delta,
    require_small_delta,
)
from adadps.accounting.ledger.file import FORMAT, connect_to_read, explained
from adadps.accounting.ledger.spending import Spending
from adadps.accounting.ledger.terms import LedgerTerms, terms_of
from adadps.errors import AdadpsError, SettingError
from adadps.types import Accountant, Relation, Unit

_RUN_COLUMNS = "name, plan_hash, chain, sampler, side_information, planned_steps"

Charges = list[tuple[DpEvent, int]]


def summarise(path: str | Path, delta: float | None = None) -> dict[str, Any]:
    """Return the content of a ledger, ready for JSON; the file is only read.

    ``path`` may be the folder of a run that holds its ledger. ``delta`` defaults to the one of the
    budget, or to 1/(10 n) without a budget.
    """
    source = Path(path)
    if os.path.isfile(source / "ledger"):
        source /= "ledger"
    with closing(connect_to_read(source)) as connection, explained(source):
        connection.execute("BEGIN")  # one snapshot, even while others write
        return _Reader(connection, delta).summary(source)


class _Reader:
    def __init__(self, connection: sqlite3.Connection, delta: float | None) -> None:
        self._connection = connection
        epsilon, held_delta, relation, accountant, unit, planned = self._rows(
            "SELECT epsilon, delta, relation, accountant, unit, most_planned FROM terms"
        )[0]
        self._budget = None if epsilon is None else Budget(epsilon, held_delta)
        self._terms = None if relation is None else terms_of(relation, accountant, unit)
        self._events = {
            number: event_of(text) for number, text in self._rows("SELECT id, content FROM events")
        }
        self._most_planned = None if planned is None else self._events[planned]
        self._delta = self._chosen_delta(delta)

    def summary(self, source: Path) -> dict[str, Any]:
        """Return the whole ledger."""
        runs = [
            self._run(*row)
            for row in self._rows(
                f"SELECT {_RUN_COLUMNS}, code_version FROM runs "
                "WHERE id IN (SELECT min(id) FROM runs GROUP BY name) ORDER BY id"
            )
        ]
        return {
            "ledger": str(source),
            "format": FORMAT,
            "relation": self._terms.relation.value if self._terms else None,
            "accountant": self._terms.accountant.value if self._terms else None,
            "unit": self._terms.unit if self._terms else None,
            "budget": {"epsilon": self._budget.epsilon, "delta": self._budget.delta}
            if self._budget
            else None,
            "entries": sum(run["entries"] for run in runs),
            "delta": self._delta,
            "delta_spent": delta_of(composed(self._charges())),
            "epsilon": self._epsilons(self._charges(), len(runs)),
            **self._left(len(runs)),
            "runs": runs,
        }

    def _run(
        self,
        name: str,
        plan_hash: str,
        chain: str,
        sampler: str,
        side_information: str,
        planned_steps: int | None,
        code_version: str,
    ) -> dict[str, Any]:
        charges = self._charges(name)
        lives = self._lives(name)
        return {
            "run": name,
            "chain": chain,
            "sampler": json.loads(sampler),
            "side_information": json.loads(side_information),
            "entries": sum(count for _, count in charges),
            "steps_reserved": sum(life.steps for life in lives),
            "steps_planned": planned_steps,
            "lives": len(lives),
            "epsilon": self._epsilons(charges, 1),
            "events": [{"event": repr(event), "count": count} for event, count in charges],
            "plan_hash": plan_hash,
            "code_version": code_version,
        }

    def _charges(self, run: str | None = None) -> Charges:
        which = "" if run is None else "WHERE run IN (SELECT id FROM runs WHERE name = ?)"
        grouped = (
            f"SELECT event, count(*) FROM reservations {which} GROUP BY event ORDER BY min(id)"
        )
        values = () if run is None else (run,)
        return [(self._events[number], count) for number, count in self._rows(grouped, values)]

    def _lives(self, run: str) -> list[Life]:
        held = self._rows(
            "SELECT (SELECT count(*) FROM reservations WHERE run = runs.id), paid_first "
            "FROM runs WHERE name = ? ORDER BY id",
            (run,),
        )
        return [Life.of(charges, paid_first) for charges, paid_first in held]

    def _epsilons(self, charges: Charges, runs: int) -> dict[str, float | str | None]:
        """Return epsilon by every accountant that applies; null means infinite."""
        if self._terms is None:
            return {}
        return {
            accountant.value: _epsilon(charges, self._delta, accountant, self._terms.relation)
            for accountant in _accountants(self._terms, runs)
        }

    def _left(self, runs: int) -> dict[str, float | bool | None]:
        if self._budget is None:
            return {"left": None, "filter": False}
        spending = Spending(self._budget)
        for _ in range(runs):
            assert self._terms is not None
            spending.begin_run(self._terms)
        for event, count in self._charges():
            spending.charge(event, count)
        if self._most_planned is not None:
            spending.most_planned = (self._most_planned, 1)
        return {"left": spending.left(), "filter": spending.filters}

    def _chosen_delta(self, delta: float | None) -> float:
        samplers = [json.loads(text) for (text,) in self._rows("SELECT sampler FROM runs")]
        declared = [held.get("examples") or held.get("users") for held in samplers]
        known = [units for units in declared if units]
        if delta is not None:
            require_delta(delta)
            unit = Unit.USER if any(held.get("users") for held in samplers) else Unit.EXAMPLE
            require_small_delta(delta, max(known, default=1), unit, warn=True)
            return delta
        if self._budget is not None:
            return self._budget.delta
        if not known and declared:
            raise SettingError(
                "Expected a delta, found a ledger without a budget and runs that declare no number "
                "of examples or users. Give --delta."
            )
        return default_delta(max(known, default=1_000_000))

    def _rows(self, question: str, values: Iterable[Any] = ()) -> list[Any]:
        return self._connection.execute(question, tuple(values)).fetchall()


def _accountants(terms: LedgerTerms, runs: int) -> tuple[Accountant, ...]:
    """Return the ledger's accountant, and the other one where it prices the same events."""
    alike = terms.relation is not Relation.REPLACE_ONE
    return tuple(Accountant) if runs == 1 and alike else (terms.accountant,)


def _epsilon(
    charges: Charges, delta: float, accountant: Accountant, relation: Relation
) -> float | str | None:
    if not charges:
        return 0.0
    try:
        found = epsilon_of(composed(charges), delta=delta, accountant=accountant, relation=relation)
    except AdadpsError:
        return "not computable"
    return found if math.isfinite(found) else None
