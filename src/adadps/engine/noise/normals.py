"""Standard normals by the million, from a secret key and a number that is used once.

AES-256 in counter mode turns a key and a number into random 64-bit integers k1, k2, and Box-Muller
turns those into two independent normals,

    u = |k1 + ½| · 2^-63,    θ = k2 · 2π / 2^64,    z = sqrt(-2 ln u) · (sin θ, cos θ),

in float64, with tails to 9.4σ. A block depends on its key and number alone: any thread can draw any
block, now or ahead of need. No number is handed out twice. See docs/decisions/fast-noise.md.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from llvmlite import ir
from numba import types

from adadps.engine.noise.keystream import WORDS_AT_ONCE, Words, checked_keys, encrypt, halves
from adadps.tensors import loops
from adadps.tensors.loops import compiled, instruction

Array = npt.NDArray[np.float64]

BLOCK = 1 << 16
"""Normals in a full block: they stay in a core's cache until they are used."""

PAGE = 1 << 14
"""Normals that are drawn together for small requests."""

AHEAD_BYTES = 64 * 2**20
"""Memory for blocks that are drawn before they are asked for."""

_SMALL_REQUESTS = 1 << 95  # their numbers; those of full blocks start at 0 and never get here
_ZEROS = memoryview(bytes(8 * BLOCK))


Use = Callable[[int, Array], object]
"""Takes the normals from a place on."""

Prepare = Callable[[int, int], Use]
"""Prepares to use the normals from one place to another."""

BLOCKS_OF_RUN = 4
"""What is done for several blocks at once takes less time for each: products of matrices, say."""


class Normals:
    """Independent standard normals, each handed out once, whichever threads ask for them.

    Nothing here waits for a lock, and a block number or the rest of a page is taken in one atomic
    operation: a request may be interrupted anywhere, even by another request in a signal handler.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._blocks = count(0)
        self._small = count(_SMALL_REQUESTS)
        self._pages: deque[Array] = deque()
        self._ahead: deque[tuple[int, Future[Array]]] = deque()
        self._wanted_ahead = 0
        self.drawn = 0
        """How many normals were asked for: processes that draw the same compare it."""

    def draw(self, size: int, use: Use) -> None:
        """Draw ``size`` fresh normals and pass them to ``use(start, values)`` piece by piece.

        Pieces come in any order and from as many threads as torch has; ``use`` may overwrite its
        values.
        """
        self.draw_in_runs(size, lambda _start, _stop: use, blocks=1)

    def draw_in_runs(self, size: int, prepare: Prepare, *, blocks: int = BLOCKS_OF_RUN) -> None:
        """Draw the same normals; ``prepare(start, stop)`` says how those of a run are used.

        A run has as many ``blocks``, or fewer at the end. One thread prepares a run, and then draws
        and uses its pieces one after the other.
        """
        if size == 0:
            return
        self.drawn += size
        if size <= PAGE // 2:
            prepare(0, size)(0, self._from_page(size))
            return
        full, rest = divmod(size, BLOCK)
        ready: list[Callable[[], object]] = []
        others: list[Callable[[], object]] = []
        missed = 0
        for first in range(0, -(-size // BLOCK), blocks):
            pieces: list[Callable[[Use], object]] = []
            are_ready = True
            for place in range(first, min(first + blocks, full)):
                number, ahead = self._next_block()
                is_ready = ahead is not None and ahead.done()
                are_ready, missed = are_ready and is_ready, missed + (not is_ready)
                pieces.append(partial(self._draw_and_use, place * BLOCK, number, BLOCK, ahead))
            if rest and first + blocks > full:
                pieces.append(self._rest(full * BLOCK, rest))
                are_ready = False
            bounds = first * BLOCK, min((first + blocks) * BLOCK, size)
            (ready if are_ready else others).append(partial(_run, bounds, prepare, pieces))
        # Blocks drawn ahead are finished from the front, so missing ones are drawn from the back.
        loops.run_all(deque([*ready, *reversed(others)]))
        if full and loops.count() < loops.usable_cores():
            self._draw_ahead(missed)

    def _rest(self, start: int, size: int) -> Callable[[Use], object]:
        """Less than a block, at the end."""
        if size <= PAGE // 2:
            values = self._from_page(size)
            return lambda use: use(start, values)
        return partial(self._draw_and_use, start, next(self._small), size, None)

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
        use: Use,
    ) -> None:
        if ahead and not ahead.cancel():
            use(start, ahead.result())
            return
        with _block_buffer() as buffer:
            use(start, buffer.draw(self._key, number, size + size % 2)[:size])

    def _from_page(self, size: int) -> Array:
        try:
            page = self._pages.pop()
        except IndexError:
            page = np.empty(0)
        if size > len(page):
            with _block_buffer() as buffer:
                page = buffer.draw(self._key, next(self._small), PAGE).copy()
        self._pages.append(page[size:])
        return page[:size]

    def _draw_ahead(self, missed: int) -> None:
        """Let an idle core draw the next blocks: as many as have been missing so far."""
        most = AHEAD_BYTES // (8 * BLOCK)
        self._wanted_ahead = min(self._wanted_ahead + missed, most)
        with loops.may_submit() as allowed:
            for _ in range(len(self._ahead), self._wanted_ahead if allowed else 0):
                number = next(self._blocks)
                future = loops.pools.ahead.submit(_new_block, self._key, number)
                self._ahead.append((number, future))


def _run(bounds: tuple[int, int], prepare: Prepare, pieces: list[Callable[[Use], object]]) -> None:
    use = prepare(*bounds)
    for piece in pieces:
        piece(use)


class _BlockBuffer:
    """Memory in which one block is drawn."""

    def __init__(self) -> None:
        self._bits = np.empty(BLOCK, np.uint64)
        self._bytes = self._bits.data.cast("B")
        self._key, self._cipher = b"", algorithms.AES(bytes(32))
        self._round_keys: Words | None = None

    def draw(self, key: bytes, number: int, size: int) -> Array:
        """Return the first ``size`` normals of this key and number, in memory that is reused."""
        if key != self._key:
            self._cipher, self._round_keys = algorithms.AES(key), checked_keys(key)
            self._key = key
        bits = self._bits[:size]
        if self._round_keys is not None:
            whole = -(-size // WORDS_AT_ONCE) * WORDS_AT_ONCE
            draw_normals(self._round_keys, *halves(number), self._bits[:whole], bits)
            return bits.view(np.float64)
        # Counter mode as it is inside of GCM, for which OpenSSL has its fastest code.
        stream = Cipher(self._cipher, modes.GCM(number.to_bytes(12, "big"))).encryptor()
        stream.update_into(_ZEROS[: 8 * size], self._bytes)
        box_muller(bits)
        return bits.view(np.float64)


_free: deque[_BlockBuffer] = deque()
"""Buffers that nothing uses now: as many as threads have drawn at once."""


@contextmanager
def _block_buffer() -> Iterator[_BlockBuffer]:
    """A buffer that nothing else uses meanwhile, no other thread and no signal handler."""
    try:
        buffer = _free.pop()
    except IndexError:
        buffer = _BlockBuffer()
    try:
        yield buffer
    finally:
        _free.append(buffer)


def _new_block(key: bytes, number: int) -> Array:
    with _block_buffer() as buffer:
        return buffer.draw(key, number, BLOCK).copy()


# --- random bits to normals ---

# log((1+s)/(1-s)) = 2s + s³ P(s²) for |s| ≤ 0.1716; sin x = x + x³ P(x²) and
# cos x = 1 - x²/2 + x⁴ P(x²) for |x| ≤ π/4. Chebyshev fits in 40 digits (scripts/fit_normals.py),
# off by less than 2e-17.
_L0, _L1, _L2, _L3, _L4, _L5, _L6 = (
    0.666666666666667, 0.39999999999899505, 0.28571428625975487, 0.2222221113479508,
    0.18182889125261723, 0.15331721600556042, 0.14616449685043406,
)  # fmt: skip
_S0, _S1, _S2, _S3, _S4, _S5 = (
    -0.16666666666666666, 0.008333333333330948, -0.00019841269836758574, 2.755731610255244e-06,
    -2.5051131845003624e-08, 1.5918129294866608e-10,
)  # fmt: skip
_C0, _C1, _C2, _C3, _C4, _C5 = (
    0.041666666666666664, -0.0013888888888887398, 2.480158729876569e-05, -2.7557317271729793e-07,
    2.08761462684032e-09, -1.1382632425521717e-11,
)  # fmt: skip
_LN2 = math.log(2)
_ROOT_HALF = np.uint64(0x3FE6A09E667F3BCD)  # the bits of √½
_TO_ONE = np.uint64(0x3FF0000000000000 - 0x3FE6A09E667F3BCD)
_FRACTION = np.uint64(0x000FFFFFFFFFFFFF)
_EXPONENT = np.uint64(52)
_EIGHTH = np.uint64(1 << 61)
_ONE, _TWO, _TOP = np.uint64(1), np.uint64(2), np.uint64(62)
_QUARTER_TURN = math.ldexp(math.pi, -65)


@instruction
def _as_float(_context: Any, bits: Any) -> Any:  # noqa: ARG001
    """The float64 with these bits."""
    return types.float64(types.uint64), lambda _c, b, _s, given: b.bitcast(
        given[0], ir.DoubleType()
    )


@instruction
def _as_bits(_context: Any, number: Any) -> Any:  # noqa: ARG001
    """The bits of this float64."""
    return types.uint64(types.float64), lambda _c, b, _s, given: b.bitcast(given[0], ir.IntType(64))


@compiled
def box_muller(bits: Any) -> None:
    """Turn random uint64 into standard normals in place: one of each pair in either half."""
    z = bits.view(np.float64)
    half = len(bits) // 2
    for i in range(half):
        k1, k2 = bits[i], bits[half + i]
        u = abs(np.float64(np.int64(k1)) + 0.5) * 2.0**-63
        # u = 2^e m with m around 1, and ln m by s = (m - 1) / (m + 1)
        above = _as_bits(u) + _TO_ONE
        e = np.float64(np.int64(above >> _EXPONENT) - np.int64(1023))
        m = _as_float((above & _FRACTION) + _ROOT_HALF)
        s = (m - 1.0) / (m + 1.0)
        w = s * s
        log = _L0 + w * (_L1 + w * (_L2 + w * (_L3 + w * (_L4 + w * (_L5 + w * _L6)))))
        radius = math.sqrt(-2.0 * (e * _LN2 + (2.0 * s + s * w * log)))
        # θ is a number of quarters, and x of at most an eighth of a turn either way
        quarters = (k2 + _EIGHTH) >> _TOP
        x = np.float64(np.int64(k2 << _TWO)) * _QUARTER_TURN
        v = x * x
        sine = x + x * v * (_S0 + v * (_S1 + v * (_S2 + v * (_S3 + v * (_S4 + v * _S5)))))
        cosine = (
            1.0 - 0.5 * v + v * v * (_C0 + v * (_C1 + v * (_C2 + v * (_C3 + v * (_C4 + v * _C5)))))
        )
        sine *= radius
        cosine *= radius
        turned = (quarters & _ONE) != 0
        first = cosine if turned else sine
        second = sine if turned else cosine
        minus_first = (quarters & _TWO) << _TOP
        minus_second = ((quarters ^ (quarters << _ONE)) & _TWO) << _TOP
        z[i] = _as_float(_as_bits(first) ^ minus_first)
        z[half + i] = _as_float(_as_bits(second) ^ minus_second)


@compiled
def draw_normals(keys: Any, low: int, high: int, whole: Any, bits: Any) -> None:
    """Fill ``bits``, the first of ``whole`` keystream words, with the normals of a number."""
    encrypt(keys, low, high, whole)
    box_muller(bits)
