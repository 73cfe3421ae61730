"""AES-256 in counter mode by the processor's own instructions, for compiled loops.

The keystream of a key and a number is AES of number ‖ 2, number ‖ 3, ... with counters of 32 bits,
as inside of GCM (`adadps.engine.noise.normals`). Here sixteen blocks at a time are encrypted, in
registers, without Python and without a copy. Every round is one instruction of the processor
(VAES); only the round keys are computed here. Where there is no such instruction, OpenSSL encrypts.
A key is used here only after a part of its keystream was found to be OpenSSL's.
"""

from __future__ import annotations

import platform
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from llvmlite import binding, ir
from numba import config, types

from adadps.tensors import loops
from adadps.tensors.loops import compiled, instruction

Words = npt.NDArray[np.uint64]

WORDS_AT_ONCE = 32
"""Sixteen blocks of two words."""

_ROUNDS = 14
_BYTE = 255


def _is_offered() -> bool:
    """Has the processor these instructions, and does numba compile for this very processor?"""
    if platform.machine().lower() not in {"x86_64", "amd64"} or loops.SWITCHED_OFF:
        return False
    if config.CPU_NAME or config.CPU_FEATURES:  # compiled for another processor
        return False
    features = binding.get_host_cpu_features()
    return all(features.get(name) for name in ("vaes", "avx512f", "avx512bw", "avx512vl"))


OFFERED = _is_offered()


def round_keys(key: bytes) -> Words:
    """Return the fifteen round keys of AES-256, two words each (FIPS 197, section 5.2)."""
    box, words, constant = _substitution(), [key[i : i + 4] for i in range(0, 32, 4)], 1
    for place in range(8, 4 * (_ROUNDS + 1)):
        last = words[-1]
        if place % 8 == 0:
            last = bytes(box[byte] for byte in last[1:] + last[:1])
            last = bytes([last[0] ^ constant]) + last[1:]
            constant = _times_x(constant)
        elif place % 8 == 4:
            last = bytes(box[byte] for byte in last)
        words.append(bytes(one ^ other for one, other in zip(words[-8], last, strict=True)))
    return np.frombuffer(b"".join(words), "<u8").astype(np.uint64)


def _times_x(byte: int) -> int:
    """The product with x of a polynomial over two elements, modulo x⁸ + x⁴ + x³ + x + 1."""
    return (byte << 1) ^ (0x11B if byte & 0x80 else 0)


@cache
def _substitution() -> list[int]:
    """The S-box: an affine map of the inverse in the field of 256 elements."""
    powers = [1]
    for _ in range(254):  # of x + 1, which generates all elements but 0
        powers.append(powers[-1] ^ _times_x(powers[-1]))
    inverse = {power: powers[-place % 255] for place, power in enumerate(powers)}
    box = []
    for byte in range(256):
        found = inverse.get(byte, 0)
        mapped = 0x63
        for shift in range(5):
            mapped ^= (found << shift | found >> (8 - shift)) & _BYTE
        box.append(mapped)
    return box


def checked_keys(key: bytes) -> Words | None:
    """Return the round keys; None where OpenSSL should encrypt, or if both disagree."""
    if not OFFERED:
        return None
    keys, number = round_keys(key), (1 << 95) + (1 << 64) + 12345
    found = np.empty(WORDS_AT_ONCE, np.uint64)
    encrypt(keys, *halves(number), found)
    stream = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    counters = (number << 32 | 2 + place for place in range(WORDS_AT_ONCE // 2))
    expected = b"".join(stream.update(counter.to_bytes(16, "big")) for counter in counters)
    return keys if found.tobytes() == expected else None


def halves(number: int) -> tuple[int, int]:
    """Return a number of 96 bits as its first eight bytes and its last four, for `encrypt`."""
    given = number.to_bytes(12, "big")
    return int.from_bytes(given[:8], "little", signed=True), int.from_bytes(given[8:], "little")


@instruction
def _sixteen_blocks(
    _context: Any, keys: Any, low: Any, high: Any, counter: Any, out: Any  # noqa: ARG001
) -> Any:  # fmt: skip
    """Write the keystream from ``counter`` on; ``keys`` and ``out`` are addresses."""

    def generate(_c: Any, builder: Any, _s: Any, given: Any) -> Any:
        _Rounds(builder, given[0]).write(*given[1:])
        return _c.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


_LONG, _WORD = ir.IntType(64), ir.IntType(32)
_BLOCK, _BLOCKS = ir.VectorType(_LONG, 2), ir.VectorType(_LONG, 8)
_FOUR_LONGS, _FOUR_WORDS = ir.VectorType(_LONG, 4), ir.VectorType(_WORD, 4)


class _Rounds:
    """Builds the instructions for four registers of four blocks each."""

    def __init__(self, builder: Any, keys: Any) -> None:
        self._builder = builder
        self._keys = builder.inttoptr(keys, _BLOCK.as_pointer())
        self._round = self._intrinsic("llvm.x86.aesni.aesenc.512", _BLOCKS, _BLOCKS)
        self._last = self._intrinsic("llvm.x86.aesni.aesenclast.512", _BLOCKS, _BLOCKS)
        self._swap = self._intrinsic("llvm.bswap.v4i32", _FOUR_WORDS)

    def write(self, low: Any, high: Any, counter: Any, out: Any) -> None:
        builder = self._builder
        states = self._counters(low, high, counter)
        key = self._key(0)
        states = [builder.xor(state, key) for state in states]
        for place in range(1, _ROUNDS + 1):
            key, step = self._key(place), self._last if place == _ROUNDS else self._round
            states = [builder.call(step, [state, key]) for state in states]
        target = builder.inttoptr(out, _BLOCKS.as_pointer())
        for place, state in enumerate(states):
            builder.store(state, builder.gep(target, [ir.Constant(_LONG, place)]), align=8)

    def _counters(self, low: Any, high: Any, counter: Any) -> list[Any]:
        """number ‖ counter, which is big-endian, for sixteen counters."""
        builder = self._builder
        lows = self._repeated(low, _FOUR_LONGS)
        tail = builder.zext(builder.trunc(high, _WORD), _LONG)
        highs = self._repeated(tail, _FOUR_LONGS)
        first = self._repeated(builder.trunc(counter, _WORD), _FOUR_WORDS)
        found = []
        for register in range(4):
            places = ir.Constant(_FOUR_WORDS, [4 * register + lane for lane in range(4)])
            swapped = builder.call(self._swap, [builder.add(first, places)])
            shifted = builder.shl(
                builder.zext(swapped, _FOUR_LONGS), ir.Constant(_FOUR_LONGS, [32] * 4)
            )
            order = [0, 4, 1, 5, 2, 6, 3, 7]
            found.append(self._shuffled(lows, builder.or_(highs, shifted), order))
        return found

    def _key(self, place: int) -> Any:
        """A round key, four times."""
        at = self._builder.gep(self._keys, [ir.Constant(_LONG, place)])
        key = self._builder.load(at, align=8)
        return self._shuffled(key, ir.Constant(_BLOCK, ir.Undefined), [0, 1] * 4)

    def _repeated(self, value: Any, kind: Any) -> Any:
        nothing = ir.Constant(kind, ir.Undefined)
        first = self._builder.insert_element(nothing, value, ir.Constant(_WORD, 0))
        return self._shuffled(first, nothing, [0] * kind.count)

    def _shuffled(self, one: Any, other: Any, order: list[int]) -> Any:
        places = ir.Constant(ir.VectorType(_WORD, len(order)), order)
        return self._builder.shuffle_vector(one, other, places)

    def _intrinsic(self, name: str, *given: Any) -> Any:
        kind = ir.FunctionType(given[0], list(given))
        return self._builder.module.declare_intrinsic(name, (), kind)


@compiled
def encrypt(keys: Any, low: int, high: int, out: Any) -> None:
    """Fill ``out``, a multiple of 32 words, with the keystream of a number (`halves`)."""
    begin, source = out.ctypes.data, keys.ctypes.data
    for place in range(len(out) // 32):
        _sixteen_blocks(source, low, high, 2 + 16 * place, begin + 256 * place)
