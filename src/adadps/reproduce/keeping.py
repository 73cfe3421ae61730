"""Records of runs, one JSON line each, kept as they end: what is there is not run again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from adadps.data.strict_json import parse_json
from adadps.errors import DataError
from adadps.locking import locked

Record = dict[str, Any]


class Kept:
    """A file of records, each with a ``job`` that says what was run.

    A process that has opened it is alone with it until it ends. A record is written whole and
    synced before the next one begins. A last line that was cut short, as a killed process leaves
    it, is dropped and its job is run again; any other damage is an error.

    >>> import tempfile
    >>> kept = Kept(Path(tempfile.mkdtemp()) / "runs.jsonl")
    >>> kept.add({"job": {"seed": 0}, "value": 0.5})
    >>> Kept(kept.path).find({"seed": 0})["value"]
    0.5
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        _lock(path)
        self._records = {_key(record["job"]): record for record in _read(path)}

    def __len__(self) -> int:
        return len(self._records)

    def find(self, job: Record) -> Record | None:
        """The record of exactly this job, if it was run."""
        return self._records.get(_key(job))

    def require(self, job: Record) -> Record:
        """The record of a job that has been run."""
        return self._records[_key(job)]

    def add(self, record: Record) -> None:
        """Append a record, and wait until it is on the disk."""
        line = json.dumps(record, allow_nan=False) + "\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise DataError(
                f"Expected to write {self.path}, found: {error}. Choose a folder that can be "
                "written to; what was kept before is still there."
            ) from error
        self._records[_key(record["job"])] = record


_held: dict[Path, int] = {}
"""The files that this process has locked, with their descriptors."""


def _lock(path: Path) -> None:
    """Hold the file against other processes, which would run the same jobs and cut lines off."""
    if path.resolve() in _held:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise DataError(
            f"Expected to write {path}, found: {error}. Choose a folder that can be written to."
        ) from error
    if not locked(descriptor):
        os.close(descriptor)
        raise DataError(
            f"Expected to be alone with {path}, found another process that runs into it. Wait for "
            "it to end, or name another folder with --json."
        )
    _held[path.resolve()] = descriptor


def _key(job: Record) -> str:
    return json.dumps(job, sort_keys=True, allow_nan=False)


def _read(path: Path) -> list[Record]:
    try:
        content = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise DataError(
            f"Expected to read {path}, found: {error}. Choose another file with --json."
        ) from error
    whole, newline, rest = content.rpartition(b"\n")
    if rest:
        _cut(path, len(whole) + len(newline))
    records = []
    for number, line in enumerate(whole.split(b"\n") if newline else [], start=1):
        try:
            record = parse_json(line.decode())
            if not isinstance(record.get("job"), dict):
                raise ValueError("no job")
        except (AttributeError, ValueError) as error:
            raise DataError(
                f"Expected a record of a run on line {number} of {path}, found something else "
                f"({error}). Delete that line, or move the file away to run everything again."
            ) from error
        records.append(record)
    return records


def _cut(path: Path, size: int) -> None:
    """Take off a line that a killed process has left half-written."""
    try:
        with path.open("r+b") as file:
            file.truncate(size)
    except OSError as error:
        raise DataError(
            f"Expected to take a half-written line off {path}, found: {error}. Choose a file that "
            "can be written to."
        ) from error
