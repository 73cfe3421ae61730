"""The file of a ledger: a SQLite database that only grows.

::

    terms         one row: budget, relation, accountant, unit, and what sets the filter's order
    runs          one row per life of a run: its plan and the version of the code
    events        every privacy event that occurs, once
    reservations  one row per charge: which run, which event; never changed, never deleted

Every commit is on the disk before it returns (write-ahead log, synchronous = FULL). A new file is
completed beside its place and then linked to its name, so that no incomplete ledger can be found.

An intact database may still hold impossible values, because SQLite stores anything: text in place
of a number, a charge for a run that does not exist. Such a file is refused when it is opened,
before its charges are counted.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from adadps.accounting.epsilon import Budget
from adadps.accounting.events import event_of
from adadps.errors import AdadpsError, DataError
from adadps.files import LEDGER_MARK, is_ledger, parse_json, sync

FORMAT = 1
PATIENCE_IN_SECONDS = 60.0

_TABLES = """
CREATE TABLE terms (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1), identity TEXT NOT NULL,
    epsilon REAL, delta REAL, relation TEXT, accountant TEXT, unit TEXT,
    most_planned INTEGER REFERENCES events, most_planned_count INTEGER
);
CREATE TABLE runs (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL, plan_hash TEXT NOT NULL, chain TEXT NOT NULL,
    sampler TEXT NOT NULL, side_information TEXT NOT NULL, planned_steps INTEGER,
    paid_first INTEGER NOT NULL, code_version TEXT NOT NULL
);
CREATE TABLE events (id INTEGER PRIMARY KEY, content TEXT NOT NULL UNIQUE);
CREATE TABLE reservations (
    id INTEGER PRIMARY KEY,
    run INTEGER NOT NULL REFERENCES runs, event INTEGER NOT NULL REFERENCES events
);
"""
_NEVER = """
CREATE TRIGGER {table}_no_{verb} BEFORE {verb} ON {table}
BEGIN SELECT RAISE(ABORT, 'a ledger is never rolled back'); END;
"""
_GROW_ONLY = "".join(
    _NEVER.format(table=table, verb=verb)
    for table, verb in (
        ("terms", "DELETE"),
        *((table, verb) for table in ("runs", "events") for verb in ("UPDATE", "DELETE")),
        *(("reservations", verb) for verb in ("UPDATE", "DELETE")),
    )
)
_TABLE_NAMES = {"terms", "runs", "events", "reservations"}


def create(path: Path, budget: Budget | None) -> None:
    """Create a ledger at ``path``, complete or not at all; an existing one is left as it is."""
    journal = path.with_name(path.name + "-wal")
    if os.path.exists(journal) and not os.path.exists(path):
        raise DataError(
            f"Expected a complete ledger or none at {path}, found only its journal {journal}, "
            "which holds charges. Restore the ledger beside it, or choose another name."
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as folder:
            draft = Path(folder) / "ledger"
            _write(draft, budget)
            sync(draft)
            with suppress(FileExistsError):  # another process was faster
                os.link(draft, path)
        sync(path.parent)
    except (OSError, ValueError, sqlite3.Error) as error:  # a NUL in the name raises a ValueError
        raise DataError(
            f"Expected to create the ledger {path}, found: {error}. Choose a writable folder on a "
            "local disk; nothing was charged."
        ) from error


def discard_unused(path: Path) -> None:
    """Delete a ledger that this process has just created, if nothing was ever charged to it."""
    if not is_ledger(path):
        return
    with closing(connect(path)) as connection:
        connection.execute("BEGIN EXCLUSIVE")  # no other process can charge it from now on
        if connection.execute("SELECT count(*) FROM reservations").fetchone()[0] == 0:
            for ending in ("", "-wal", "-shm"):  # this process may still have it open
                path.with_name(path.name + ending).unlink(missing_ok=True)


def connect(path: Path) -> sqlite3.Connection:
    """Open a ledger for charges, after checking that it is a complete ledger."""
    with explained(path):
        connection = _connect(path, "mode=rw")
        try:
            _require_ledger(connection, path)
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            if mode != "wal":
                raise DataError(
                    f"Expected a disk that can hold a write-ahead log at {path}, found one that "
                    f"cannot (it uses '{mode}'). Put the ledger on a local disk."
                )
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("BEGIN IMMEDIATE")  # fails now if the file is read-only
            connection.execute("ROLLBACK")
            _require_whole(connection, path)
        except BaseException:
            connection.close()
            raise
        return connection


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Open a ledger for reading, which also works where nothing can be written."""
    with explained(path):
        options = "mode=ro"
        if not os.access(path.parent, os.W_OK) and not path.with_name(path.name + "-wal").exists():
            options += "&immutable=1"
        connection = _connect(path, options)
        try:
            _require_ledger(connection, path)
            _require_whole(connection, path)
        except BaseException:
            connection.close()
            raise
        return connection


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn errors of SQLite into our own."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise DataError(
                f"Expected the ledger {path} to be free within {PATIENCE_IN_SECONDS:g} seconds, "
                "found it locked by another process. Wait for that process or end it; nothing was "
                "charged, and no earlier charge is lost."
            ) from error
        raise DataError(
            f"Expected a ledger that can be read and written at {path}, found: {error}. Check the "
            "path, its permissions and the free disk space; no charge is lost."
        ) from error
    except (sqlite3.Error, UnicodeDecodeError) as error:  # messages may quote undecodable names
        raise DataError(
            f"Expected a ledger of adadps at {path}, found something unreadable ({error}). Check "
            "the path, or restore a copy; the file was not changed."
        ) from error


def _write(draft: Path, budget: Budget | None) -> None:
    with closing(sqlite3.connect(draft, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(_TABLES + _GROW_ONLY)
        held = (budget.epsilon, budget.delta) if budget else (None, None)
        connection.execute(
            "INSERT INTO terms (only_row, identity, epsilon, delta) VALUES (1, ?, ?, ?)",
            (secrets.token_hex(16), *held),
        )
        connection.execute(f"PRAGMA application_id = {LEDGER_MARK}")
        connection.execute(f"PRAGMA user_version = {FORMAT}")


def _connect(path: Path, options: str) -> sqlite3.Connection:
    if not os.path.isfile(path):  # False for impossible names, too
        found = "something else" if os.path.exists(path) else "no file"
        raise DataError(
            f"Expected a ledger at {path}, found {found}. Check the path; "
            "`DiskLedger(path, budget=...)` creates a new one."
        )
    return sqlite3.connect(
        f"file:{quote(str(path.resolve()))}?{options}",
        uri=True,
        timeout=PATIENCE_IN_SECONDS,
        isolation_level=None,  # transactions are explicit
        check_same_thread=False,  # the ledger has its own lock
    )


def _require_ledger(connection: sqlite3.Connection, path: Path) -> None:
    if connection.execute("PRAGMA application_id").fetchone()[0] != LEDGER_MARK:
        raise DataError(
            f"Expected a ledger of adadps at {path}, found another database or an empty file. "
            "Check the path; the file was not changed."
        )
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    if found != FORMAT:
        raise DataError(
            f"Expected a ledger of format {FORMAT} at {path}, found format {found}. Use the "
            "version of adadps that wrote it, or a later one; the file was not changed."
        )


def _require_whole(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a damaged file, and one from which entries were removed."""
    held = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    complaint = "" if held >= _TABLE_NAMES else "tables are missing"
    complaint = complaint or connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    complaint = complaint.splitlines()[-1]
    if complaint == "ok":
        count, last = connection.execute(
            "SELECT count(*), coalesce(max(id), 0) FROM reservations"
        ).fetchone()
        rows = connection.execute("SELECT count(*) FROM terms").fetchone()[0]
        complaint = "ok" if count == last and rows == 1 else "entries are missing"
        complaint = complaint_about(connection) or "ok" if complaint == "ok" else complaint
    if complaint != "ok":
        raise DataError(
            f"Expected a complete ledger at {path}, found a damaged one ({complaint}). Restore a "
            "copy. What it paid for can no longer be determined, so do not begin a new ledger for "
            "the same data."
        )


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
_IMPOSSIBLE = {
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
        wrong += [_IMPOSSIBLE[table]] if table in _IMPOSSIBLE else []
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
