"""The cores of this machine, and how much of them other work takes."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path

_STAT = Path("/proc/stat")
_IDLE = (3, 4)  # columns of /proc/stat: idle, and waiting for a disk


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


class OtherLoad:
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


_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_CGROUP = Path("/sys/fs/cgroup")
MEMORY_SHARE = 0.9
"""Of the free memory that a contender may take."""


@dataclass(frozen=True)
class MemoryBaseline:
    """Resident memory at one moment, from which a peak is counted."""

    resident: int
    how: str

    def peak(self) -> int:
        """Bytes by which resident memory was larger at its peak since then."""
        return max(0, _peak(self.how) - self.resident)


def memory_baseline() -> MemoryBaseline:
    """Give freed memory back, forget earlier peaks, and begin to count.

    Where an earlier peak cannot be forgotten (not on Linux), the peak is that of the whole process.
    """
    gc.collect()
    _trim()
    try:
        _CLEAR.write_text("5", encoding="ascii")
        return MemoryBaseline(_status("VmRSS"), "VmHWM")
    except OSError:
        return MemoryBaseline(_status("VmRSS") if _STATUS.exists() else 0, "ru_maxrss")


def free_memory() -> int | None:
    """Bytes that can be taken without harm, or None where nobody says."""
    try:
        available = _field(Path("/proc/meminfo"), "MemAvailable")
    except (OSError, LookupError):
        return None
    try:
        limit_memory = (_CGROUP / "memory.max").read_text(encoding="ascii").strip()
        used = (_CGROUP / "memory.current").read_text(encoding="ascii").strip()
        return available if limit_memory == "max" else min(available, int(limit_memory) - int(used))
    except (OSError, ValueError):
        return available


def limit_memory(amount: int) -> None:
    """Let this process take ``amount`` more bytes; beyond them it gets an error."""
    if _STATUS.exists():
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = _status("VmData") + amount
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _peak(how: str) -> int:
    if how == "VmHWM":
        return _status("VmHWM")
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _status(name: str) -> int:
    return _field(_STATUS, name)


def _field(file: Path, name: str) -> int:
    """A line such as ``VmRSS:  1234 kB``, in bytes."""
    for line in file.read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(name)


def _trim() -> None:
    """Freed memory that malloc keeps would hide what the model takes."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
