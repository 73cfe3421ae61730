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
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

Array = npt.NDArray[np.float64]
T = TypeVar("T")

BLOCK = 1 << 16
"""Normals in a full block: its half a megabyte stays in cache through all operations."""

PAGE = 1 << 14
"""Normals that are drawn together for small requests."""

AHEAD_BYTES = 64 * 2**20
"""Memory for blocks that are drawn before they are asked for."""

MOST_WORKERS = 4
"""More threads than this would wait for Python's lock rather than draw."""

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

        Pieces come in any order and from several threads; ``use`` may overwrite its values.
        """
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
        _share([*ready, *reversed(others)], lambda piece: use(piece[0], piece[1]()))
        if full and torch.get_num_threads() < _usable_cores():
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

    def _block(self, number: int, ahead: Future[Array] | None = None) -> Array:
        if ahead and not ahead.cancel():
            return ahead.result()
        return _fill(self._key, number * (BLOCK // 2), _scratch(BLOCK))

    def _fewer(self, count: int) -> Callable[[], Array]:
        """Reserve less than a block."""
        if count <= PAGE // 2:
            values = self._from_page(count)
            return lambda: values
        even = count + count % 2
        counter, self._small = self._small, self._small + even // 2
        return lambda: _fill(self._key, counter, _scratch(even))[:count]

    def _from_page(self, count: int) -> Array:
        if count > len(self._page):
            counter, self._small = self._small, self._small + PAGE // 2
            page = np.empty(PAGE)
            _share([page], lambda page: _fill(self._key, counter, page))
            self._page = page
        values, self._page = self._page[:count], self._page[count:]
        return values

    def _draw_ahead(self, missed: int) -> None:
        """Let an idle core draw the next blocks: as many as were missing so far."""
        with self._lock:
            most = AHEAD_BYTES // (8 * BLOCK)
            self._wanted_ahead = min(self._wanted_ahead + missed, most)
            for later in range(len(self._ahead), self._wanted_ahead):
                counter = (self._blocks + later) * (BLOCK // 2)
                drawn = _crew.idle.submit(_fill_new, self._key, counter)
                self._ahead.append(drawn)


_Piece = tuple[int, Callable[[], Array]]  # where it begins in the request, and how to get it


def box_muller(bits: Array) -> Array:
    """Turn 64 random bits an entry into standard normals, in place.

    Entry i of the first half and entry i of the second half make one pair.
    """
    integers, half = bits.view(np.int64), len(bits) // 2
    radius = _scratch(half, "radius")
    np.add(integers[:half], 0.5, out=radius)  # symmetric: as many integers below -½ as above
    np.abs(radius, out=radius)
    radius *= 2.0**-63
    at_radius = torch.from_numpy(radius)
    torch.log(at_radius, out=at_radius)
    radius *= -2
    torch.sqrt(at_radius, out=at_radius)
    np.multiply(integers[half:], _FULL_TURN, out=bits[:half])
    sine, cosine = torch.from_numpy(bits[:half]), torch.from_numpy(bits[half:])
    torch.cos(sine, out=cosine)
    torch.sin(sine, out=sine)
    pairs = bits.reshape(2, half)
    pairs *= radius
    return bits


def _fill(key: bytes, counter: int, out: Array) -> Array:
    """Fill ``out`` (of even length, at most a block) with the normals of this key and counter."""
    stream = _keystream(key)
    stream.reset_nonce(counter.to_bytes(16, "big"))
    stream.update_into(_ZEROS[: out.nbytes], out.data.cast("B"))
    return box_muller(out)


def _fill_new(key: bytes, counter: int) -> Array:
    return _fill(key, counter, np.empty(BLOCK))


def _keystream(key: bytes) -> CipherContext:
    """This thread's AES-256-CTR for the key."""
    if getattr(_local, "key", None) != key:
        _local.stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        _local.key = key
    stream: CipherContext = _local.stream
    return stream


def _scratch(count: int, name: str = "block") -> Array:
    """This thread's memory for intermediate values."""
    if not hasattr(_local, name):
        setattr(_local, name, np.empty(BLOCK))
    memory: Array = getattr(_local, name)
    return memory[:count]


# --- threads ---


class _Crew:
    """Threads that draw; a forked child gets threads of its own."""

    def __init__(self) -> None:
        self.forks = -1
        self.start()

    def start(self) -> None:
        self.forks += 1
        self.lock = threading.Lock()
        self.workers = ThreadPoolExecutor(MOST_WORKERS, "adadps-noise", initializer=_confine)
        self.idle = ThreadPoolExecutor(1, "adadps-noise-ahead", initializer=_confine)


def _confine() -> None:
    """Keep torch's own threads out of this one: a block is too small to be shared further.

    Torch keeps the number of threads for this thread, and as the default of threads to come. The
    latter is put back, by a thread that ends.
    """
    if "backend: OpenMP" not in torch.__config__.parallel_info():
        return
    with _crew.lock:
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


def _share(work: Iterable[T], do: Callable[[T], object]) -> None:
    """``do`` each piece of ``work``, in as many threads as torch may use.

    With one thread that is the calling one. With more it is none of torch's: MKL would share each
    operation among all of them.
    """
    waiting = deque(work)
    threads = torch.get_num_threads()
    if threads == 1:
        for piece in waiting:
            do(piece)
        return
    inference = torch.is_inference_mode_enabled()

    def work_on() -> None:
        with torch.inference_mode(inference):
            while True:
                try:
                    piece = waiting.popleft()
                except IndexError:
                    return
                do(piece)

    started = [
        _crew.workers.submit(work_on) for _ in range(min(threads, MOST_WORKERS, len(waiting)))
    ]
    wait(started)
    for worker in started:
        worker.result()


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
