"""Records of runs, one JSON line each, so that no run is repeated; and checks of their content.

A file of records can be edited, merged or damaged between two commands. What a run cannot have
written is refused with an error that names the file and says how to run it again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from adadps.errors import DataError
from adadps.files import locked, parse_json

Record = dict[str, Any]
BEGIN = b'{"job": '
"""How every line begins that `RecordFile` has written."""


class RecordFile:
    """A file of records, each with a ``job`` that says what was run.

    The process that opens it locks it until the process ends. Every record is written and synced
    before the next one. An incomplete last line, as a killed process leaves it, is dropped and its
    job is run again; any other damage is an error, and the file stays unchanged.

    >>> import tempfile
    >>> record_file = RecordFile(Path(tempfile.mkdtemp()) / "runs.jsonl")
    >>> record_file.add({"job": {"seed": 0}, "value": 0.5})
    >>> RecordFile(record_file.path).find({"seed": 0})["value"]
    0.5
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        _lock(path)
        self._records = {_key(record["job"]): record for record in _read(path)}

    def __len__(self) -> int:
        return len(self._records)

    def find(self, job: Record) -> Record | None:
        """Return the record of exactly this job, if it was run."""
        return self._records.get(_key(job))

    def require(self, job: Record) -> Record:
        """Return the record of a job that has been run."""
        return self._records[_key(job)]

    def add(self, record: Record) -> None:
        """Append a record and sync it to disk."""
        ordered = {
            "job": record["job"],
            **record,
        }  # `job` first, so that the line starts with `BEGIN`
        line = json.dumps(ordered, allow_nan=False) + "\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise DataError(
                f"Expected to write {self.path}, found: {error}. Choose a writable folder; "
                "earlier records are still there."
            ) from error
        self._records[_key(record["job"])] = record


_held: dict[Path, int] = {}
"""The files that this process has locked, and their descriptors."""


def _lock(path: Path) -> None:
    """Lock out other processes, which would run the same jobs and truncate lines."""
    if path.resolve() in _held:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise DataError(
            f"Expected to write {path}, found: {error}. Choose a writable folder."
        ) from error
    if not locked(descriptor):
        os.close(descriptor)
        raise DataError(
            f"Expected to be the only process that writes {path}, found another process. Wait "
            "for it to end, or name another folder with --json."
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
    *lines, rest = content.split(b"\n")
    records = [_record(path, line, number) for number, line in enumerate(lines, start=1)]
    if _is_json(rest):  # an editor may omit the newline at the end
        records.append(_record(path, rest, len(lines) + 1))
        _mend(path, len(content), b"\n")
    elif rest:
        if not _is_begun(rest):
            raise DataError(_foreign(path, len(lines) + 1, "not JSON"))
        _mend(path, len(content) - len(rest), b"")
    return records


def _record(path: Path, line: bytes, number: int) -> Record:
    try:
        record: Any = parse_json(line.decode())
        if not isinstance(record.get("job"), dict):
            raise ValueError("no job")
    except (AttributeError, ValueError) as error:
        raise DataError(_foreign(path, number, error)) from error
    return dict(record)


def _foreign(path: Path, number: int, reason: object) -> str:
    return (
        f"Expected a record of a run on line {number} of {path}, found something else "
        f"({reason}). Delete that line, or move the file away to run everything again."
    )


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _is_begun(line: bytes) -> bool:
    """Tell whether a killed process can have left it; blocks not yet on disk read as zeros."""
    return BEGIN.startswith(line.rstrip(b"\0")[: len(BEGIN)])


def _mend(path: Path, size: int, end: bytes) -> None:
    """Remove a line that a killed process left incomplete, or terminate a complete one."""
    try:
        with path.open("r+b") as file:
            file.truncate(size)
            file.seek(size)
            file.write(end)
    except OSError as error:
        raise DataError(
            f"Expected to mend the last line of {path}, found: {error}. Choose a writable file."
        ) from error


IN_EVERY_RUN = {
    "examples",
    "noise_multiplier",
    "clip_norm",
    "private",
    "epsilon_pld",
    "epsilon_rdp",
    "seconds",
}


def valid_run(record_file: RecordFile, job: Record) -> Record:
    """Return the record of a run on text, once its accuracies, curve and costs are checked."""
    return _valid(record_file, job, _is_run)


def valid_trial(record_file: RecordFile, job: Record) -> Record:
    """Return the record of a trial on text, once its accuracy is checked.

    >>> import tempfile
    >>> from pathlib import Path
    >>> record_file = RecordFile(Path(tempfile.mkdtemp()) / "trials.jsonl")
    >>> record_file.add({"job": {"method": "adam"}, "values": {}})
    >>> valid_trial(record_file, {"method": "adam"})
    Traceback (most recent call last):
    adadps.errors.DataError: Expected the record of a run of adam in ... to run it again.
    """
    return _valid(record_file, job, lambda record: _is_share(record["values"]["accuracy"]))


def valid_toy_run(record_file: RecordFile, job: Record) -> Record:
    """Return the record of a toy run, once its losses are checked; null is an infinite loss."""
    return _valid(record_file, job, _is_toy_run)


def _valid(record_file: RecordFile, job: Record, is_whole: Callable[[Record], bool]) -> Record:
    record = record_file.require(job)
    try:
        if not is_whole(record):
            raise ValueError("a value is missing or impossible")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"Expected the record of a run of {job['method']} in {record_file.path}, found a "
            f"damaged one ({error}). Delete the line with {record['job']} to run it again."
        ) from error
    return record


def _is_run(record: Record) -> bool:
    shares = [*record["values"].values(), *(value for _, value in record["curve"])]
    return bool(record["values"]) and all(map(_is_share, shares)) and record.keys() >= IN_EVERY_RUN


def _is_toy_run(record: Record) -> bool:
    losses = [record["loss"], *(value for _, value in record["curve"])]
    steps = [step for step, _ in record["curve"]]
    ends = bool(steps) and all(type(step) is int for step in steps)
    return ends and all(loss is None or isinstance(loss, float) for loss in losses)


def _is_share(value: Any) -> bool:
    return isinstance(value, float) and 0 <= value <= 1
