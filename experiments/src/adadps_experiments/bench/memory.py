"""Memory of this process and of the machine, as Linux tells it."""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_CGROUP = Path("/sys/fs/cgroup")
SHARE = 0.9
"""Of the free memory that a contender may take."""


@dataclass(frozen=True)
class Baseline:
    """Resident memory at one moment, from which a peak is counted."""

    resident: int
    how: str

    def peak(self) -> int:
        """Bytes by which resident memory was larger at its peak since then."""
        return max(0, _peak(self.how) - self.resident)


def baseline() -> Baseline:
    """Give freed memory back, forget earlier peaks, and begin to count.

    Where an earlier peak cannot be forgotten (not on Linux), the peak is that of the whole process.
    """
    gc.collect()
    _trim()
    try:
        _CLEAR.write_text("5", encoding="ascii")
        return Baseline(_status("VmRSS"), "VmHWM")
    except OSError:
        return Baseline(_status("VmRSS") if _STATUS.exists() else 0, "ru_maxrss")


def free() -> int | None:
    """Bytes that can be taken without harm, or None where nobody says."""
    try:
        available = _field(Path("/proc/meminfo"), "MemAvailable")
    except (OSError, LookupError):
        return None
    try:
        limit = (_CGROUP / "memory.max").read_text(encoding="ascii").strip()
        used = (_CGROUP / "memory.current").read_text(encoding="ascii").strip()
        return available if limit == "max" else min(available, int(limit) - int(used))
    except (OSError, ValueError):
        return available


def limit(amount: int) -> None:
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
