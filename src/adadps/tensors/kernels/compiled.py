"""How inner loops are compiled, and the processor instructions that numba has no name for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from llvmlite import ir
from numba import config, extending, njit, types

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
