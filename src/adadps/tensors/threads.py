"""Threads that share inner loops: as many as torch uses, and one more where a core is idle."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise

import torch

_wanted = threading.local()

MOST_THREADS = 8
"""More would wait for Python's lock between two pieces of work."""

WORTH_A_THREAD = 2**18
"""So many additions and multiplications are worth waking another thread."""


def together(pieces: deque[Callable[[], object]]) -> None:
    """Do all pieces, in this thread and in as many others as torch would use; empties ``pieces``.

    Pieces should spend their time without Python's lock.
    """

    def work() -> None:
        while pieces:
            try:
                piece = pieces.popleft()
            except IndexError:  # another thread was faster
                return
            piece()

    with submitting() as allowed:
        helpers = min(count(), MOST_THREADS, len(pieces)) - 1 if allowed else 0
        others = [crew.hands.submit(work) for _ in range(helpers)]
        try:
            work()
        finally:
            pieces.clear()
            for other in others:
                if not other.cancel():
                    other.result()


@contextmanager
def submitting() -> Iterator[bool]:
    """May this thread give work to others? Not from a signal handler that interrupts it in that.

    Queues have locks: the handler would wait for ever for what it interrupts.
    """
    allowed = not getattr(_wanted, "submitting", False)
    _wanted.submitting = True
    try:
        yield allowed
    finally:
        if allowed:
            _wanted.submitting = False


def in_parts(length: int, do: Callable[[slice], object], *, work: int) -> None:
    """``do`` parts of 0, ..., ``length`` - 1 in several threads if there is enough ``work``."""
    parts = min(count(), MOST_THREADS, length, work // WORTH_A_THREAD)
    if parts <= 1:
        do(slice(0, length))
        return
    bounds = [length * part // parts for part in range(parts + 1)]
    together(deque(_later(do, slice(*ends)) for ends in pairwise(bounds)))


def _later(do: Callable[[slice], object], part: slice) -> Callable[[], object]:
    return lambda: do(part)


@contextmanager
def torch_alone() -> Iterator[None]:
    """Let torch use one thread of its own, where others work beside it.

    Helpers of the crew do so always: a thread of torch's that waits for work keeps a core busy.
    """
    used, before = torch.get_num_threads(), getattr(_wanted, "threads", None)
    _wanted.threads = count()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(used)
        _wanted.threads = before


def count() -> int:
    """As many threads as torch uses, or would use if it were not alone."""
    wanted: int = getattr(_wanted, "threads", None) or torch.get_num_threads()
    return wanted


def _confine() -> None:
    """Let torch use one thread within this one.

    Torch keeps the number of threads for this thread, and as the default of threads to come. The
    latter is put back, by a thread that ends.
    """
    if "backend: OpenMP" not in torch.__config__.parallel_info():
        return
    used = torch.get_num_threads()
    torch.set_num_threads(1)
    restore = threading.Thread(target=torch.set_num_threads, args=(used,))
    restore.start()
    restore.join()


class Crew:
    """The threads that help, and the one that works ahead. A fork has threads of its own."""

    def __init__(self) -> None:
        self.forks = -1
        self.start()

    def start(self) -> None:
        """Begin with fresh threads: those of a parent do not survive a fork."""
        self.forks += 1
        self.hands = ThreadPoolExecutor(MOST_THREADS, "adadps", initializer=_confine)
        self.idle = ThreadPoolExecutor(1, "adadps-ahead")


crew = Crew()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=crew.start)


def process() -> tuple[int, int]:
    """What tells this process from its parents, even if a process number comes back."""
    return os.getpid(), crew.forks


def usable_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
