"""The cores of this machine, and how much of them other work takes."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

_STAT = Path("/proc/stat")
_IDLE = (3, 4)  # columns of /proc/stat: idle, and waiting for a disk


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


class Others:
    """What other processes take, from now on, of the cores that ``threads`` threads would use."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._start = (_busy(), time.process_time(), time.perf_counter())

    def share(self) -> float | None:
        """Their share, between 0 and 1; None where the system does not say."""
        busy, own, start = self._start
        now = _busy()
        if busy is None or now is None:
            return None
        spent = (now - busy) - (time.process_time() - own)
        taken = spent / (time.perf_counter() - start)
        spare = (os.cpu_count() or 1) - self._threads
        return min(1.0, max(0.0, (taken - spare) / self._threads))


def _busy() -> float | None:
    """Seconds that all cores together have been busy."""
    try:
        first = _STAT.read_text(encoding="ascii").splitlines()[0]
        columns = [int(value) for value in first.split()[1:9]]
    except (OSError, ValueError):
        return None
    ticks = sum(value for index, value in enumerate(columns) if index not in _IDLE)
    return ticks / os.sysconf("SC_CLK_TCK")
