"""The machine: load by other processes, and memory, as Linux reports them."""

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


class OtherLoad:
    """Measures, from now on, the load of other processes on the cores of ``threads`` threads."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._start = (_busy(), time.process_time(), time.perf_counter())

    def share(self, with_us: float = 0.0) -> float | None:
        """Return their share between 0 and 1, or None if the system does not report it.

        ``with_us`` are the seconds of processor time of processes that belong to this one.
        """
        busy, own, start = self._start
        now = _busy()
        if busy is None or now is None:
            return None
        spent = (now - busy) - (time.process_time() - own) - with_us
        taken = spent / (time.perf_counter() - start)
        spare = (os.cpu_count() or 1) - self._threads
        return min(1.0, max(0.0, (taken - spare) / self._threads))


def _busy() -> float | None:
    """Return the seconds that all cores together have been busy."""
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
"""The share of the free memory that a contender may use."""


@dataclass(frozen=True)
class MemoryBaseline:
    """Resident memory at one moment, from which a peak is measured."""

    resident: int
    how: str

    def peak(self) -> int:
        """Return by how many bytes resident memory has risen at its peak since then."""
        return max(0, _peak(self.how) - self.resident)


def memory_baseline() -> MemoryBaseline:
    """Return freed memory to the system, reset the recorded peak, and start measuring.

    Where the peak cannot be reset (not on Linux), it is that of the whole process.
    """
    gc.collect()
    _trim()
    try:
        _CLEAR.write_text("5", encoding="ascii")
        return MemoryBaseline(_status("VmRSS"), "VmHWM")
    except OSError:
        return MemoryBaseline(_status("VmRSS") if _STATUS.exists() else 0, "ru_maxrss")


def free_memory() -> int | None:
    """Return the bytes that can be allocated safely, or None if the system does not report them."""
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
    """Let this process allocate ``amount`` more bytes; beyond that, allocation fails."""
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
    """Read a line such as ``VmRSS:  1234 kB``, in bytes."""
    for line in file.read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(name)


def _trim() -> None:
    """Return freed memory to the system: kept by malloc, it would hide what the model takes."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
