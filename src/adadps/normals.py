"""Standard normals by the million, from a secret key and a number that is used once.

AES-256 in counter mode turns a key and a number into random 64-bit integers k1, k2, and Box-Muller
turns those into two independent normals,

    u = |k1 + ½| · 2^-63,    θ = k2 · 2π / 2^64,    z = sqrt(-2 ln u) · (sin θ, cos θ),

in float64, with tails to 9.4σ. A block depends on its key and number alone: any thread can draw any
block, now or ahead of need. No number is handed out twice. See docs/decisions/fast-noise.md.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from adadps import threads
from adadps.kernels.noise import box_muller

Array = npt.NDArray[np.float64]

BLOCK = 1 << 16
"""Normals in a full block: they stay in a core's cache until they are used."""

PAGE = 1 << 14
"""Normals that are drawn together for small requests."""

AHEAD_BYTES = 64 * 2**20
"""Memory for blocks that are drawn before they are asked for."""

_SMALL_REQUESTS = 1 << 95  # their numbers; those of full blocks start at 0 and never get here
_ZEROS = memoryview(bytes(8 * BLOCK))
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

        Pieces come in any order and from as many threads as torch has; ``use`` may overwrite its
        values.
        """
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
        pieces = (partial(_draw_and_use, *piece, use) for piece in (*ready, *reversed(others)))
        threads.together(deque(pieces))
        if full and threads.count() < threads.usable_cores():
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
        return _own_desk().draw(self._key, number, BLOCK)

    def _fewer(self, count: int) -> Callable[[], Array]:
        """Reserve less than a block."""
        if count <= PAGE // 2:
            values = self._from_page(count)
            return lambda: values
        number, self._small = self._small, self._small + 1
        return lambda: _own_desk().draw(self._key, number, count + count % 2)[:count]

    def _from_page(self, count: int) -> Array:
        if count > len(self._page):
            number, self._small = self._small, self._small + 1
            self._page = _own_desk().draw(self._key, number, PAGE).copy()
        values, self._page = self._page[:count], self._page[count:]
        return values

    def _draw_ahead(self, missed: int) -> None:
        """Let an idle core draw the next blocks: as many as were missing so far."""
        with self._lock:
            most = AHEAD_BYTES // (8 * BLOCK)
            self._wanted_ahead = min(self._wanted_ahead + missed, most)
            for later in range(len(self._ahead), self._wanted_ahead):
                number = self._blocks + later
                self._ahead.append(threads.crew.idle.submit(_new_block, self._key, number))


_Piece = tuple[int, Callable[[], Array]]  # where it begins in the request, and how to get it


def _draw_and_use(
    start: int, values: Callable[[], Array], use: Callable[[int, Array], object]
) -> None:
    use(start, values())


class _Desk:
    """One thread's memory for a block."""

    def __init__(self) -> None:
        self._bits = np.empty(BLOCK, np.uint64)
        self._bytes = self._bits.data.cast("B")
        self._key, self._cipher = b"", algorithms.AES(bytes(32))

    def draw(self, key: bytes, number: int, count: int) -> Array:
        """The first ``count`` normals of this key and number, in memory that is used again."""
        if key != self._key:
            self._key, self._cipher = key, algorithms.AES(key)
        # Counter mode as it is inside of GCM, for which OpenSSL has its fastest code.
        stream = Cipher(self._cipher, modes.GCM(number.to_bytes(12, "big"))).encryptor()
        stream.update_into(_ZEROS[: 8 * count], self._bytes)
        bits = self._bits[:count]
        box_muller(bits)
        return bits.view(np.float64)


def _own_desk() -> _Desk:
    if not hasattr(_local, "desk"):
        _local.desk = _Desk()
    desk: _Desk = _local.desk
    return desk


def _new_block(key: bytes, number: int) -> Array:
    return _own_desk().draw(key, number, BLOCK).copy()
