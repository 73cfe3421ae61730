"""Inner loops: how they are compiled, what they can read, and the threads that share them.

There are as many threads as torch uses, and one more where a core is idle.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from itertools import pairwise
from typing import Any

import torch
from llvmlite import ir
from numba import config, extending, njit, types

from adadps.files import after_fork_in_child
from adadps.tensors.team import team

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
        with _helping(helpers, work) if helpers > 0 else nullcontext():
            try:
                work()
            finally:
                pieces.clear()


@contextmanager
def _helping(helpers: int, work: Callable[[], object]) -> Iterator[None]:
    """Let other threads work, too, and wait for them: those of torch, which are awake, or ours.

    Within `torch_on_one_thread` those of torch sleep, and waiting for them would take longer. Many
    would wait for Python's lock, each of them.
    """
    threads = count()
    are_few = threads <= MOST_THREADS and not getattr(_local, "threads", None)
    of_torch = team() if are_few else None
    if of_torch is not None:
        with of_torch.started(threads, helpers, work):
            yield
        return
    with torch_on_one_thread():
        others = [pools.helpers.submit(work) for _ in range(helpers)]
        try:
            yield
        finally:
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


if config.DISABLE_JIT:
    raise ImportError(
        "Expected numba to compile the inner loops of adadps, found NUMBA_DISABLE_JIT in the "
        "environment. Unset it."
    )

Loop = Callable[..., Any]

instruction: Callable[[Loop], Loop] = extending.intrinsic
"""Defines a processor instruction that numba has no function for."""

_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
}
_AS_WRITTEN: set[str] = set()
_ONE_ROUNDING = {"contract"}  # of a · b + c
_ANY_ORDER = {"contract", "reassoc"}


def compiled(loop: Loop) -> Loop:
    """Compile ``loop`` at its first call, without Python's lock; cache its code on disk."""
    return _compiled(loop, _ONE_ROUNDING)


def compiled_as_written(loop: Loop) -> Loop:
    """Compile ``loop`` to compute bit by bit what Python would."""
    return _compiled(loop, _AS_WRITTEN)


def compiled_in_any_order(loop: Loop) -> Loop:
    """Compile ``loop`` for sums in any order: n positive terms are off by n roundings."""
    return _compiled(loop, _ANY_ORDER)


def _compiled(loop: Loop, freedom: set[str]) -> Loop:
    try:
        cached: Any = njit(cache=True, fastmath=freedom or False, **_OPTIONS)(loop)
    except RuntimeError:  # there is no folder to cache in
        uncached: Loop = njit(fastmath=freedom or False, **_OPTIONS)(loop)
        return uncached
    save = cached._cache.save_overload

    def save_if_there_is_room(*compiled: Any) -> None:
        with suppress(OSError):  # a full disk; the compiled code runs all the same
            save(*compiled)

    cached._cache.save_overload = save_if_there_is_room
    result: Loop = cached
    return result


FETCHED_AHEAD = 512
"""This many numbers of a table are fetched into the cache while others are worked on."""


@instruction
def memory(_context: Any, address: Any) -> Any:  # noqa: ARG001
    """The memory at this address."""
    return types.voidptr(types.int64), lambda _c, b, _s, given: b.inttoptr(
        given[0], ir.IntType(8).as_pointer()
    )


@instruction
def fetch(_context: Any, address: Any) -> Any:  # noqa: ARG001
    """Begin to load the cache line at this address."""

    def generate(_c: Any, builder: Any, _s: Any, given: Any) -> Any:
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
        to_read, keep, data = (ir.Constant(number, value) for value in (0, 3, 1))
        builder.call(prefetch, [builder.inttoptr(given[0], pointer), to_read, keep, data])
        return _c.get_dummy_value()

    return types.void(types.int64), generate


@compiled
def fetch_row(table: Any, row: int) -> None:
    """Begin to load a row while others are worked on."""
    begin = table.ctypes.data + row * table.shape[1] * table.itemsize
    for offset in range(0, table.shape[1] * table.itemsize, 64):
        fetch(begin + offset)


LINE_TYPES = (torch.float32, torch.float64)
"""Types of numbers that compiled loops work on."""


SWITCHED_OFF = os.environ.get("ADADPS_COMPILED", "1") == "0"
"""Should torch do what compiled loops do wherever it can, as it does on other devices?"""


def in_main_memory(tensor: torch.Tensor) -> bool:
    """Can compiled loops read and write it where it lies?"""
    ready = tensor.device.type == "cpu" and tensor.dtype in LINE_TYPES and tensor.is_contiguous()
    return ready and not SWITCHED_OFF


def as_array(tensor: torch.Tensor) -> Any:
    """Return the tensor's memory for a loop, which is no read of values in Python."""
    with torch._C.DisableTorchFunction():
        return tensor.detach().numpy()
