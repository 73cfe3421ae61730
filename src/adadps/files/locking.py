"""Keep other processes away from an open file, where the system can."""

from __future__ import annotations


def locked(descriptor: int) -> bool:
    """Take the file for this process until it is closed; False if another process has it.

    Windows and some network disks have no such locks. There the answer is always True, and two
    processes at once are for the user to avoid.

    >>> import tempfile
    >>> with tempfile.TemporaryFile() as file:
    ...     locked(file.fileno())
    True
    """
    return _lock(descriptor) is not False


def surely_locked(descriptor: int) -> bool:
    """The same where there are locks; False where there are none."""
    return _lock(descriptor) is True


def _lock(descriptor: int) -> bool | None:
    """Did this process get the lock? None where there are none."""
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
