"""Memory by its address: what lies there, and loading it before it is needed."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from adadps.tensors.kernels.compiled import compiled, instruction

FETCHED_AHEAD = 512
"""So many numbers of a table are on their way to the cache while others are worked on."""


@instruction
def memory(_context: Any, address: Any) -> Any:  # noqa: ARG001
    """What lies at this address."""
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
    """Begin to load a row, while others are worked on."""
    begin = table.ctypes.data + row * table.shape[1] * table.itemsize
    for offset in range(0, table.shape[1] * table.itemsize, 64):
        fetch(begin + offset)
