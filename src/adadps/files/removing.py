"""Removing and replacing files: only our own, by their exact names, and never a ledger.

Everything that adadps removes from a disk, or replaces, goes through this module. A ledger records
what was spent on people's data; nobody can compute it again. It is recognised by its content, so
that neither a name that looks like one of ours nor ``--force`` can cost one. Files that are not
surely ours stay: a leftover file harms nobody.

Drafts are folders with random names. While its process lives, a draft holds a lock, which the
system releases when the process ends, however it ends. A process number would say less: it means
nothing in another container or on another host, and is used again.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from adadps.errors import DataError
from adadps.files.processes import surely_locked

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
