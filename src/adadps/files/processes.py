"""This process and others: noticing forks, and locking open files against other processes.

An object that must not be used on both sides of a fork (a source of noise, a ledger, a run) holds
the `process` that made it, and compares it when it is used.
"""

from __future__ import annotations

import os
from collections.abc import Callable

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
