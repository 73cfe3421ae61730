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
    try:
        import fcntl  # noqa: PLC0415
    except ImportError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
