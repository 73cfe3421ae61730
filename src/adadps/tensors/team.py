"""The threads in which torch multiplies, for our own loops.

A thread of torch that has run out of work keeps its core busy for some milliseconds, waiting for
more. Threads of our own would have to share that core. So where torch uses GNU's OpenMP, loops run
in the same threads: `started` opens what OpenMP calls a parallel region, in which torch itself uses
one thread. Elsewhere there is no such team, and a pool of threads helps (`adadps.tensors.loops`).
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from adadps.files import after_fork_in_child

_Work = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Team:
    """GNU's OpenMP, as torch has loaded it."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._start = _function(library.GOMP_parallel_start, None, _Work, ctypes.c_void_p, _COUNT)
        self._end = _function(library.GOMP_parallel_end, None)
        self._depth = _function(library.omp_get_level, ctypes.c_int)

    def is_busy(self) -> bool:
        """Is this thread within a parallel region already?"""
        return bool(self._depth() > 0)

    @contextmanager
    def started(self, threads: int, helpers: int, work: Callable[[], object]) -> Iterator[None]:
        """Let other threads ``work`` meanwhile, and wait for them; raise the first of their errors.

        The team always has as many ``threads`` as torch uses, of which only some are ``helpers``:
        OpenMP ends those that a smaller team leaves out, and begins others for the next one. OpenMP
        itself says whether the region was opened: an interrupt can come right after that.
        """
        errors: list[BaseException] = []
        wanted = deque([None] * helpers)

        def help_out(_: Any) -> None:
            try:
                wanted.pop()
            except IndexError:  # others help
                return
            try:
                work()
            except BaseException as error:  # it must not get into OpenMP
                errors.append(error)

        called = _Work(help_out)
        try:
            self._start(called, None, threads)
            yield
        finally:
            if self._depth() > 0:
                self._end()
        if errors:
            raise errors[0]


_COUNT = ctypes.c_uint


def _function(function: Any, result: Any, *arguments: Any) -> Any:
    function.restype, function.argtypes = result, arguments
    return function


def _of_torch() -> Team | None:
    """The team, if torch has loaded GNU's OpenMP from its own folder and nothing else."""
    if "backend: OpenMP" not in torch.__config__.parallel_info() or not hasattr(os, "RTLD_NOLOAD"):
        return None
    found = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
    try:
        return Team(ctypes.CDLL(str(found[0]), os.RTLD_NOLOAD | os.RTLD_NOW))
    except (IndexError, OSError, AttributeError):
        return None


class _Current:
    """The team of this process. A fork has none: its parent's threads do not survive it."""

    def __init__(self) -> None:
        self.team = _of_torch()

    def forget(self) -> None:
        self.team = None


_current = _Current()
after_fork_in_child(_current.forget)


def team() -> Team | None:
    """Return torch's own threads, if loops can run in them now."""
    found = _current.team
    return None if found is None or found.is_busy() else found
