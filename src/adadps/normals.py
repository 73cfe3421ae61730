"""Standard normals by the million, from a secret key and a counter.

AES-256 in counter mode turns a key and a counter into random 64-bit integers k1, k2, and Box-Muller
turns those into two independent normals,

    u = |k1 + ½| · 2^-63,    θ = k2 · 2π / 2^64,    z = sqrt(-2 ln u) · (sin θ, cos θ),

in float64, with tails to 9.4σ. A number depends on its key and counter alone: any thread can draw
any block, now or ahead of need. No counter is handed out twice. See docs/decisions/fast-noise.md.
"""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

Array = npt.NDArray[np.float64]

BLOCK = 1 << 19
"""Normals in a full block: enough for torch to share each operation among its threads.

(Smaller blocks in threads of Python would wait for Python's lock most of the time.)
"""

PAGE = 1 << 14
"""Normals that are drawn together for small requests."""

AHEAD_BYTES = 64 * 2**20
"""Memory for blocks that are drawn before they are asked for."""

_SMALL_REQUESTS = 1 << 127  # their counters; those of full blocks start at 0 and never get here
_ZEROS = memoryview(bytes(8 * BLOCK))
_FULL_TURN = math.ldexp(math.pi, -63)  # 2π / 2^64
_local = threading.local()


class Normals:
    """Independent standard normals, each handed out once, whatever threads ask for them."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._lock = threading.Lock()
        self._blocks = 0
        self._small = _SMALL_REQUESTS
        self._page = np.empty(0)
        self._ahead: deque[Future[Array]] = deque()
        self._wanted_ahead = 0

    def draw(self, count: int, use: Callable[[int, Array], object]) -> None:
        """Draw ``count`` fresh normals and give them to ``use(start, values)`` piece by piece.

        Pieces come in any order; ``use`` may overwrite its values.
        """
        if _crew.forks and torch.get_num_threads() > 1:
            # Torch's threads did not survive the fork: an operation would wait for them for ever.
            _crew.idle.submit(self._draw, count, use).result()
        else:
            self._draw(count, use)

    def _draw(self, count: int, use: Callable[[int, Array], object]) -> None:
        if count == 0:
            return
        if count <= PAGE // 2:
            with self._lock:
                values = self._from_page(count)
            use(0, values)
            return
        full, rest = divmod(count, BLOCK)
        with self._lock:
            ready, others = self._full_blocks(full)
            if rest:
                others.append((count - rest, self._fewer(rest)))
        # What is drawn ahead comes from the front, so what is missing is drawn from the back.
        for start, values_of in [*ready, *reversed(others)]:
            use(start, values_of())
        if full and not _crew.forks and torch.get_num_threads() < _usable_cores():
            self._draw_ahead(missed=full - len(ready))

    def _full_blocks(self, count: int) -> tuple[list[_Piece], list[_Piece]]:
        """Reserve blocks: those that were drawn ahead, and the others."""
        ready: list[_Piece] = []
        others: list[_Piece] = []
        for place in range(count):
            ahead = self._ahead.popleft() if self._ahead else None
            values = partial(self._block, self._blocks, ahead)
            self._blocks += 1
            (ready if ahead and ahead.done() else others).append((place * BLOCK, values))
        return ready, others

    def _block(self, number: int, ahead: Future[Array] | None) -> Array:
        if ahead and not ahead.cancel():
            return ahead.result()
        return _own_desk().draw(self._key, number * (BLOCK // 2))

    def _fewer(self, count: int) -> Callable[[], Array]:
        """Reserve less than a block."""
        if count <= PAGE // 2:
            values = self._from_page(count)
            return lambda: values
        even = count + count % 2
        counter, self._small = self._small, self._small + even // 2
        return lambda: _own_desk(even).draw(self._key, counter)[:count]

    def _from_page(self, count: int) -> Array:
        if count > len(self._page):
            counter, self._small = self._small, self._small + PAGE // 2
            self._page = _own_desk(PAGE).draw(self._key, counter).copy()
        values, self._page = self._page[:count], self._page[count:]
        return values

    def _draw_ahead(self, missed: int) -> None:
        """Let an idle core draw the next blocks: as many as were missing so far."""
        with self._lock:
            most = AHEAD_BYTES // (8 * BLOCK)
            self._wanted_ahead = min(self._wanted_ahead + missed, most)
            for later in range(len(self._ahead), self._wanted_ahead):
                counter = (self._blocks + later) * (BLOCK // 2)
                self._ahead.append(_crew.idle.submit(_new_block, self._key, counter))


_Piece = tuple[int, Callable[[], Array]]  # where it begins in the request, and how to get it


class _Desk:
    """Memory for a number of normals, with all views of it ready."""

    def __init__(
        self, count: int, values: Array | None = None, radius: Array | None = None
    ) -> None:
        self._key = b""
        values = np.empty(count) if values is None else values[:count]
        radius = np.empty(count) if radius is None else radius
        self.values = values
        self._bytes, self._zeros = values.data.cast("B"), _ZEROS[: 8 * count]
        with torch.inference_mode(False):  # it will be used outside of that mode, too
            self._k1, self._k2 = torch.from_numpy(values.view(np.int64).reshape(2, -1))
            self._pairs = torch.from_numpy(values.reshape(2, -1))
            self._radius = torch.from_numpy(radius[: count // 2])
        self._sine, self._cosine = self._pairs

    def draw(self, key: bytes, counter: int) -> Array:
        """The normals of this key from this counter on: two for each counter."""
        if key != self._key:
            self._stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
            self._key = key
        self._stream.reset_nonce(counter.to_bytes(16, "big"))
        self._stream.update_into(self._zeros, self._bytes)
        self.box_muller()
        return self.values

    def box_muller(self) -> None:
        """Turn the random bits in ``values`` into normals, one half of a pair in each half."""
        radius, angle = self._radius, self._sine  # the angle goes where k1 was, as sin θ will
        radius.copy_(self._k1).add_(0.5).abs_()  # as many integers below -½ as above
        radius.mul_(2.0**-63).log_().mul_(-2.0).sqrt_()
        angle.copy_(self._k2).mul_(_FULL_TURN)
        torch.cos(angle, out=self._cosine)
        angle.sin_()
        self._pairs.mul_(radius)


def _own_desk(count: int = BLOCK) -> _Desk:
    """This thread's memory for a block, or for the beginning of one."""
    if not hasattr(_local, "values"):
        _local.values, _local.radius = np.empty(BLOCK), np.empty(BLOCK // 2)
        _local.desk = _Desk(BLOCK, _local.values, _local.radius)
    desk: _Desk = _local.desk
    return desk if count == BLOCK else _Desk(count, _local.values, _local.radius)


def _new_block(key: bytes, counter: int) -> Array:
    return _own_desk().draw(key, counter).copy()


# --- threads ---


class _Crew:
    """The thread that draws ahead. In a forked child, the one that draws."""

    def __init__(self) -> None:
        self.forks = -1
        self.start()

    def start(self) -> None:
        self.forks += 1
        self.idle = ThreadPoolExecutor(1, "adadps-noise-ahead", initializer=_confine)


def _confine() -> None:
    """Keep torch's own threads out of this one, which uses a core that torch leaves idle.

    Torch keeps the number of threads for this thread, and as the default of threads to come. The
    latter is put back, by a thread that ends.
    """
    if "backend: OpenMP" not in torch.__config__.parallel_info():
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    restore = threading.Thread(target=torch.set_num_threads, args=(threads,))
    restore.start()
    restore.join()


_crew = _Crew()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_crew.start)


def process() -> tuple[int, int]:
    """What tells this process from its parents, even if a process number comes back."""
    return os.getpid(), _crew.forks


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
