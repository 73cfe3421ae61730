"""Checks of the values in a ledger: an intact database may still hold impossible values.

SQLite stores any value: text in place of a number, a charge for a run that does not exist. Such a
file is refused when it is opened, before its charges are counted.
"""

from __future__ import annotations

import sqlite3

from adadps.accounting.events import event_of
from adadps.errors import AdadpsError
from adadps.files.strict_json import parse_json

MOST_EXAMPLES = 10**18
_INTEGER, _REAL, _TEXT = "'integer'", "'real'", "'text'"
_OR_NOTHING = ", 'null'"
_KINDS = {
    "terms": {
        "identity": _TEXT,
        "epsilon": _REAL + _OR_NOTHING,
        "delta": _REAL + _OR_NOTHING,
        "relation": _TEXT + _OR_NOTHING,
        "accountant": _TEXT + _OR_NOTHING,
        "unit": _TEXT + _OR_NOTHING,
        "most_planned": _INTEGER + _OR_NOTHING,
        "most_planned_count": _INTEGER + _OR_NOTHING,
    },
    "runs": {
        "name": _TEXT,
        "plan_hash": _TEXT,
        "chain": _TEXT,
        "sampler": _TEXT,
        "side_information": _TEXT,
        "planned_steps": _INTEGER + _OR_NOTHING,
        "paid_first": _INTEGER,
        "code_version": _TEXT,
    },
    "events": {"content": _TEXT},
    "reservations": {"run": _INTEGER, "event": _INTEGER},
}
_NEVER = {
    "terms": "(epsilon IS NULL) != (delta IS NULL) OR (relation IS NULL) != (accountant IS NULL) "
    "OR (relation IS NULL) != (unit IS NULL) OR (most_planned IS NULL) != "
    "(most_planned_count IS NULL) OR most_planned_count < 1 "
    "OR (relation IS NULL) != ((SELECT count(*) FROM runs) = 0)",
    "runs": "planned_steps < 0 OR paid_first < 0",
}


def complaint_about(connection: sqlite3.Connection) -> str:
    """Return what is wrong with the values of a ledger; empty if nothing is.

    The structure of the file has been checked before.
    """
    for table, columns in _KINDS.items():
        wrong = [f"typeof({name}) NOT IN ({kinds})" for name, kinds in columns.items()]
        wrong += [_NEVER[table]] if table in _NEVER else []
        if _count(connection, f"{table} WHERE {' OR '.join(wrong)}"):
            return f"impossible values in the table {table}"
    if connection.execute("PRAGMA foreign_key_check").fetchone() is not None:
        return "entries refer to missing ones"
    for table in ("runs", "reservations"):
        count, first, last = connection.execute(
            f"SELECT count(*), coalesce(min(id), 1), coalesce(max(id), 0) FROM {table}"
        ).fetchone()
        if (first, last) != (1, count):
            return "entries are missing"
    return _complaint_about_texts(connection)


def _complaint_about_texts(connection: sqlite3.Connection) -> str:
    try:
        for (event,) in connection.execute("SELECT content FROM events"):
            event_of(event)
        for sampler, side in connection.execute("SELECT sampler, side_information FROM runs"):
            if not _is_sampler(parse_json(sampler)) or not _is_side(parse_json(side)):
                return "runs with an unreadable description"
    except AdadpsError as error:
        return str(error)
    return ""


def _is_sampler(held: object) -> bool:
    if not isinstance(held, dict):
        return False
    declared = [held.get("examples", 1), held.get("users", 1)]
    return all(isinstance(units, int) and 1 <= units <= MOST_EXAMPLES for units in declared)


def _is_side(held: object) -> bool:
    return isinstance(held, list) and all(
        isinstance(source, dict)
        and isinstance(source.get("source"), str)
        and isinstance(source.get("public_because"), str)
        for source in held
    )


def _count(connection: sqlite3.Connection, what: str) -> int:
    (count,) = connection.execute(f"SELECT count(*) FROM {what}").fetchone()
    return int(count)
