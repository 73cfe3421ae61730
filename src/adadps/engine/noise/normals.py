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
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from itertools import count

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from adadps.tensors import threads
from adadps.tensors.kernels.noise import box_muller

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
    """Independent standard normals, each handed out once, whatever threads ask for them.

    Nothing here waits for a lock, and whatever takes a number or a rest of a page takes it at once:
    a request may be interrupted anywhere, even by another one in a signal handler.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._blocks = count(0)
        self._small = count(_SMALL_REQUESTS)
        self._pages: deque[Array] = deque()
        self._ahead: deque[tuple[int, Future[Array]]] = deque()
        self._wanted_ahead = 0

    def draw(self, size: int, use: Callable[[int, Array], object]) -> None:
        """Draw ``size`` fresh normals and give them to ``use(start, values)`` piece by piece.

        Pieces come in any order and from as many threads as torch has; ``use`` may overwrite its
        values.
        """
        if size == 0:
            return
        if size <= PAGE // 2:
            use(0, self._from_page(size))
            return
        full, rest = divmod(size, BLOCK)
        ready: list[Callable[[], object]] = []
        others: list[Callable[[], object]] = []
        for place in range(full):
            number, ahead = self._next_block()
            piece = partial(self._draw_and_use, place * BLOCK, number, BLOCK, ahead, use)
            (ready if ahead and ahead.done() else others).append(piece)
        if 0 < rest <= PAGE // 2:
            others.append(partial(use, full * BLOCK, self._from_page(rest)))
        elif rest:
            number = next(self._small)
            others.append(partial(self._draw_and_use, full * BLOCK, number, rest, None, use))
        # What is drawn ahead comes from the front, so what is missing is drawn from the back.
        missed = full - len(ready)
        threads.together(deque([*ready, *reversed(others)]))
        if full and threads.count() < threads.usable_cores():
            self._draw_ahead(missed)

    def _next_block(self) -> tuple[int, Future[Array] | None]:
        try:
            return self._ahead.popleft()
        except IndexError:
            return next(self._blocks), None

    def _draw_and_use(
        self,
        start: int,
        number: int,
        size: int,
        ahead: Future[Array] | None,
        use: Callable[[int, Array], object],
    ) -> None:
        if ahead and not ahead.cancel():
            use(start, ahead.result())
            return
        with _own_desk() as desk:
            use(start, desk.draw(self._key, number, size + size % 2)[:size])

    def _from_page(self, size: int) -> Array:
        try:
            page = self._pages.pop()
        except IndexError:
            page = np.empty(0)
        if size > len(page):
            with _own_desk() as desk:
                page = desk.draw(self._key, next(self._small), PAGE).copy()
        self._pages.append(page[size:])
        return page[:size]

    def _draw_ahead(self, missed: int) -> None:
        """Let an idle core draw the next blocks: as many as were missing so far."""
        most = AHEAD_BYTES // (8 * BLOCK)
        self._wanted_ahead = min(self._wanted_ahead + missed, most)
        with threads.submitting() as allowed:
            for _ in range(len(self._ahead), self._wanted_ahead if allowed else 0):
                number = next(self._blocks)
                future = threads.crew.idle.submit(_new_block, self._key, number)
                self._ahead.append((number, future))


class _Desk:
    """Memory for a block."""

    def __init__(self) -> None:
        self._bits = np.empty(BLOCK, np.uint64)
        self._bytes = self._bits.data.cast("B")
        self._key, self._cipher = b"", algorithms.AES(bytes(32))

    def draw(self, key: bytes, number: int, size: int) -> Array:
        """The first ``size`` normals of this key and number, in memory that is used again."""
        if key != self._key:
            self._key, self._cipher = key, algorithms.AES(key)
        # Counter mode as it is inside of GCM, for which OpenSSL has its fastest code.
        stream = Cipher(self._cipher, modes.GCM(number.to_bytes(12, "big"))).encryptor()
        stream.update_into(_ZEROS[: 8 * size], self._bytes)
        bits = self._bits[:size]
        box_muller(bits)
        return bits.view(np.float64)


@contextmanager
def _own_desk() -> Iterator[_Desk]:
    """Memory that nobody else uses meanwhile, not even a signal handler in the same thread."""
    if not hasattr(_local, "desks"):
        _local.desks = []
    desks: list[_Desk] = _local.desks
    try:
        desk = desks.pop()
    except IndexError:
        desk = _Desk()
    try:
        yield desk
    finally:
        desks.append(desk)


def _new_block(key: bytes, number: int) -> Array:
    with _own_desk() as desk:
        return desk.draw(key, number, BLOCK).copy()
