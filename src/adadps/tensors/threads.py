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

from adadps.files.processes import after_fork_in_child

_local = threading.local()

MOST_THREADS = 8
"""More threads would wait for Python's lock between two pieces of work."""

WORTH_A_THREAD = 2**18
"""This many additions and multiplications are worth waking another thread."""


def run_all(pieces: deque[Callable[[], object]]) -> None:
    """Run all pieces, in this thread and in as many others as torch would use; empty ``pieces``.

    Pieces should spend their time without holding Python's lock.
    """

    def work() -> None:
        while pieces:
            try:
                piece = pieces.popleft()
            except IndexError:  # another thread was faster
                return
            piece()

    with may_submit() as allowed:
        helpers = min(count(), MOST_THREADS, len(pieces)) - 1 if allowed else 0
        others = [pools.helpers.submit(work) for _ in range(helpers)]
        try:
            work()
        finally:
            pieces.clear()
            for other in others:
                if not other.cancel():
                    other.result()


@contextmanager
def may_submit() -> Iterator[bool]:
    """Tell whether this thread may submit work to a pool.

    A signal handler that interrupts a submission may not: queues have locks, and the handler would
    wait forever for the code that it interrupts.
    """
    allowed = not getattr(_local, "submitting", False)
    _local.submitting = True
    try:
        yield allowed
    finally:
        if allowed:
            _local.submitting = False


def run_in_parts(length: int, do: Callable[[slice], object], *, work: int) -> None:
    """``do`` parts of 0, ..., ``length`` - 1, in several threads if there is enough ``work``."""
    parts = min(count(), MOST_THREADS, length, work // WORTH_A_THREAD)
    if parts <= 1:
        do(slice(0, length))
        return
    bounds = [length * part // parts for part in range(parts + 1)]
    run_all(deque(_later(do, slice(*ends)) for ends in pairwise(bounds)))


def _later(do: Callable[[slice], object], part: slice) -> Callable[[], object]:
    return lambda: do(part)


@contextmanager
def torch_on_one_thread() -> Iterator[None]:
    """Let torch use one thread while the helpers of this module work beside it.

    The helpers limit torch in the same way: a thread of torch that waits for work keeps a core
    busy.
    """
    used, before = torch.get_num_threads(), getattr(_local, "threads", None)
    _local.threads = count()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(used)
        _local.threads = before


def count() -> int:
    """Return how many threads torch uses, or would use outside of `torch_on_one_thread`."""
    wanted: int = getattr(_local, "threads", None) or torch.get_num_threads()
    return wanted


def _limit_torch() -> None:
    """Let torch use one thread within this one.

    Torch stores the number of threads for this thread, and as the default of threads to come. A
    thread that ends at once restores the default.
    """
    if "backend: OpenMP" not in torch.__config__.parallel_info():
        return
    used = torch.get_num_threads()
    torch.set_num_threads(1)
    restore = threading.Thread(target=torch.set_num_threads, args=(used,))
    restore.start()
    restore.join()


class WorkerPools:
    """The threads that help with inner loops, and the one that draws noise ahead of need."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Start fresh threads: those of a parent do not survive a fork."""
        self.helpers = ThreadPoolExecutor(MOST_THREADS, "adadps", initializer=_limit_torch)
        self.ahead = ThreadPoolExecutor(1, "adadps-ahead")


pools = WorkerPools()
after_fork_in_child(pools.start)


def usable_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
