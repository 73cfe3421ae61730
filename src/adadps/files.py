"""Files: written whole or not at all, read strictly, removed only if they are ours.

*Writing.* A new file or folder is made beside its place, synchronised with the disk and then
renamed, so that nobody finds a half-written one. After an error nothing is left: no draft, and no
folder that was created only to hold it.

*Removing.* Everything that adadps removes from a disk, or replaces, goes through this module. A
ledger records what was spent on people's data; nobody can compute it again. It is recognised by its
content, so that neither a name that looks like one of ours nor ``--force`` can cost one. Files that
are not surely ours stay: a leftover file harms nobody.

Drafts are folders with random names. While its process lives, a draft holds a lock, which the
system releases when the process ends, however it ends. A process number would say less: it means
nothing in another container or on another host, and is used again.

*JSON* has no duplicate names, no NaN, nothing that could not be written again.

*Processes.* An object that must not be used on both sides of a fork (a source of noise, a ledger, a
run) holds the `process` that made it, and compares it when it is used.
"""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from adadps.errors import DataError


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Give a draft folder to fill; on success it becomes ``target``, which must not exist yet.

    The draft has the name of the target, in a temporary folder beside it.

    >>> place = Path(tempfile.mkdtemp()) / "model"
    >>> with new_folder(place) as draft:
    ...     _ = (draft / "weights").write_text("1 2 3")
    >>> draft.name, [file.name for file in place.iterdir()]
    ('model', ['weights'])
    """
    with _explained(target), _parents(target):
        _require_absent(target, "Choose another name")
        with draft_folder(target.parent) as around:
            draft = around / target.name
            draft.mkdir()
            yield draft
            for file in draft.iterdir():
                file.chmod(0o644)
                sync(file)
            draft.chmod(0o755)
            sync(draft)
            _require_absent(target, "Choose another name")
            replace(draft, target)
        sync(target.parent)


@contextmanager
def new_file(target: Path, *, overwrite: bool) -> Iterator[Path]:
    """Give a draft file to fill; on success it becomes ``target``.

    >>> place = Path(tempfile.mkdtemp()) / "table.csv"
    >>> with new_file(place, overwrite=False) as draft:
    ...     _ = draft.write_text("name")
    >>> place.read_text()
    'name'
    """
    with _explained(target):
        if target.is_dir():
            raise DataError(
                f"Expected the name of a file, found the folder {target}. Name a file in it; "
                "nothing was overwritten."
            )
        with _parents(target):
            if not (overwrite and target.is_file()):
                _require_absent(target, "Choose another name, or add --force")
            require_no_ledger(target)
            descriptor, name = tempfile.mkstemp(prefix=".adadps-", dir=target.parent)
            os.close(descriptor)
            draft = Path(name)
            try:
                yield draft
                draft.chmod(0o644)
                sync(draft)
                if not overwrite:
                    _require_absent(target, "Choose another name, or add --force")
                replace(draft, target)
            except BaseException:
                remove_file(draft)
                raise


@contextmanager
def _parents(target: Path) -> Iterator[None]:
    """Create the folders above; after an error, remove those that did not exist before."""
    missing = [folder for folder in target.parents if not folder.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for folder in missing:
            remove_if_empty(folder)  # someone else may have put something there
        raise


def _require_absent(target: Path, cure: str) -> None:
    """Refuse a name that is taken, or impossible, before any work is done for it."""
    if "\0" in str(target):
        raise DataError(
            "Expected the name of a file or folder, found one with a NUL character. Remove the NUL."
        )
    try:
        os.lstat(target)
    except FileNotFoundError:
        return
    raise DataError(
        f"Expected a name that does not exist yet, found {target}. {cure}; nothing was overwritten."
    )


@contextmanager
def _explained(target: Path) -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except OSError as error:
        raise DataError(
            f"Expected to write {target}, found: {error}. Choose a place that can be written to; "
            "nothing was overwritten."
        ) from error


def sync(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON for other programs to read."""
    write_file(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def write_file(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all, and create its folder."""
    with new_file(path, overwrite=True) as draft:
        draft.write_bytes(content)


LEDGER_MARK = 0x61445053  # "aDPS", where SQLite keeps the kind of a database
_SQLITE, _MARK_AT = b"SQLite format 3\0", slice(68, 72)
_JOURNALS = ("-wal", "-shm", "-journal")
_DRAFT, _LOCK = ".adadps-draft-", ".adadps-lock"
_DRAFT_NAME = re.compile(re.escape(_DRAFT) + r"[a-z0-9_]{8}", re.ASCII)


def is_ledger(path: Path) -> bool:
    """Is it a ledger, a journal of one, or something that may be one?

    >>> file = Path(tempfile.mkdtemp()) / "reviews.ledger"
    >>> _ = file.write_bytes(_SQLITE.ljust(68, b"-") + b"aDPS")
    >>> is_ledger(file), is_ledger(Path(f"{file}-wal")), is_ledger(file.parent)
    (True, True, False)
    """
    for ending in _JOURNALS:
        if path.name.endswith(ending) and path.name != ending:
            of = path.with_name(path.name.removesuffix(ending))
            return is_ledger(of) or (path.is_file() and not of.exists())
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            head = file.read(_MARK_AT.stop)
    except OSError:
        return True
    return head.startswith(_SQLITE) and head[_MARK_AT] == LEDGER_MARK.to_bytes(4, "big")


def require_no_ledger(path: Path) -> None:
    """Refuse to write over a ledger."""
    if is_ledger(path):
        raise DataError(
            f"Expected a file that may be replaced, found a ledger at {path}, which is never "
            "replaced: it records what was spent. Choose another name; nothing was overwritten."
        )


def remove_file(path: Path) -> None:
    """Remove a file of ours, if it exists and is not a ledger."""
    if not is_ledger(path):
        path.unlink(missing_ok=True)


def remove_folder(folder: Path, files: Collection[str]) -> None:
    """Remove these files of ours, and the folder if nothing else is in it."""
    if not folder.is_dir() or folder.is_symlink():
        return
    for name in files:
        with suppress(OSError):  # a folder of that name is not ours
            remove_file(folder / name)
    remove_if_empty(folder)


def remove_if_empty(folder: Path) -> None:
    """Remove a folder of ours if it is empty."""
    with suppress(OSError):
        folder.rmdir()


def replace(draft: Path, target: Path) -> None:
    """Rename a draft to ``target``, replacing what was there unless it is a ledger."""
    require_no_ledger(target)
    os.replace(draft, target)


def move_ledger(ledger: Path, folder: Path) -> bool:
    """Move a ledger that is not in use into another folder, if its name is free there."""
    target = folder / ledger.name
    in_use = any(ledger.with_name(ledger.name + ending).exists() for ending in _JOURNALS)
    if in_use or not is_ledger(ledger):
        return False
    try:
        os.link(ledger, target)  # fails if something is there
    except OSError:
        return False
    ledger.unlink()
    return True


@contextmanager
def draft_folder(beside: Path) -> Iterator[Path]:
    """Give a new folder to fill; afterwards it is removed with everything left in it.

    >>> place = Path(tempfile.mkdtemp())
    >>> with draft_folder(place) as draft:
    ...     _ = (draft / "half").write_text("made")
    ...     remove_abandoned(place, re.compile(".*"), ["half"])  # its process lives
    ...     (draft / "half").exists()
    True
    >>> list(place.iterdir())
    []
    """
    folder = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=beside))
    descriptor = os.open(folder / f"{_LOCK}-new", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        if surely_locked(descriptor):  # named only when it is locked: no race
            os.rename(folder / f"{_LOCK}-new", folder / _LOCK)
        yield folder
    finally:
        os.close(descriptor)
        _remove_all(folder)


def remove_abandoned(beside: Path, inner: re.Pattern[str], files: Collection[str]) -> None:
    """Remove drafts of dead processes: these files, in folders whose names match ``inner``."""
    for draft in beside.iterdir():
        if _DRAFT_NAME.fullmatch(draft.name) and not draft.is_symlink():
            with suppress(OSError):  # without a lock, its process may still live
                descriptor = os.open(draft / _LOCK, os.O_RDWR)
                try:
                    if surely_locked(descriptor):
                        for folder in draft.iterdir():
                            if inner.fullmatch(folder.name):
                                remove_folder(folder, files)
                        remove_folder(draft, (_LOCK,))
                finally:
                    os.close(descriptor)


def _remove_all(folder: Path) -> None:
    for place, folders, files in os.walk(folder, topdown=False):
        for name in (*files, *folders):
            path = Path(place) / name
            with suppress(OSError):
                if path.is_dir() and not path.is_symlink():
                    path.rmdir()
                else:
                    remove_file(path)
    remove_if_empty(folder)


def parse_json(text: str) -> Any:
    """Return the content of a JSON text, or raise a `DataError` with the reason.

    Unlike `json.loads` it refuses duplicate names, NaN and numbers beyond float64, lone surrogates,
    and nesting that is too deep to traverse.

    >>> parse_json('{"format": 1}')
    {'format': 1}
    >>> parse_json('{"format": 1, "format": 2}')
    Traceback (most recent call last):
    adadps.errors.DataError: Expected JSON, found the name 'format' twice. ...
    """
    try:
        held = json.loads(
            text,
            object_pairs_hook=_without_repetition,
            parse_float=_finite,
            parse_constant=_no_number,
        )
        json.dumps(held, ensure_ascii=False).encode("utf-8")  # finds lone surrogates
    except DataError:
        raise
    except (RecursionError, MemoryError) as error:
        raise DataError(
            "Expected JSON, found nesting that is too deep. Restore the file as it was written."
        ) from error
    except ValueError as error:
        raise DataError(
            f"Expected JSON, found something else ({error}). Restore the file as it was written."
        ) from error
    return held


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    held = dict(pairs)
    if len(held) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(
            f"Expected JSON, found the name '{twice}' twice. Restore the file as it was written."
        )
    return held


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _no_number(text)


def _no_number(text: str) -> NoReturn:
    raise DataError(
        f"Expected finite numbers in JSON, found {text[:40]}. Restore the file as it was written."
    )


_forks = 0
_forks_above = 0


def process() -> tuple[int, int]:
    """Return what tells this process from its parents, even if a process number is used again.

    >>> process() == process()
    True
    """
    return os.getpid(), _forks_above


def forks() -> int:
    """Return how many forks this process has seen, as the parent or as the child."""
    return _forks


def after_fork_in_child(action: Callable[[], None]) -> None:
    """Call ``action`` in every child that this process forks; some systems cannot fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=action)


def _count_in_parent() -> None:
    global _forks  # noqa: PLW0603  (a fact about this process)
    _forks += 1


def _count_in_child() -> None:
    global _forks, _forks_above  # noqa: PLW0603
    _forks += 1
    _forks_above += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_parent=_count_in_parent, after_in_child=_count_in_child)


def locked(descriptor: int) -> bool:
    """Lock an open file for this process until it is closed; False if another process has it.

    Windows and some network disks have no such locks. There the answer is always True, and it is
    up to the user not to run two processes at once.

    >>> import tempfile
    >>> with tempfile.TemporaryFile() as file:
    ...     locked(file.fileno())
    True
    """
    return _lock(descriptor) is not False


def surely_locked(descriptor: int) -> bool:
    """Lock an open file as `locked` does, but return False where there are no locks."""
    return _lock(descriptor) is True


def _lock(descriptor: int) -> bool | None:
    """Whether this process got the lock; None where there are no locks."""
    try:
        import fcntl
    except ImportError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
