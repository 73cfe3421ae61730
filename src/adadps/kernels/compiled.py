"""How inner loops are compiled: by numba, once a machine, and without Python's lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import extending, njit

Loop = Callable[..., Any]

instruction: Callable[[Loop], Loop] = extending.intrinsic
"""Makes an instruction of the processor that numba has no word for."""

_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
}
_AS_WRITTEN: set[str] = set()
_ONE_ROUNDING = {"contract"}  # of a · b + c
_ANY_ORDER = {"contract", "reassoc"}


def compiled(loop: Loop) -> Loop:
    """Compile ``loop`` at its first call; machine code is kept on disk where there is room."""
    return _compiled(loop, _ONE_ROUNDING)


def compiled_as_written(loop: Loop) -> Loop:
    """The same, bit by bit what Python would compute."""
    return _compiled(loop, _AS_WRITTEN)


def compiled_in_any_order(loop: Loop) -> Loop:
    """The same for sums whose order does not matter: n positive terms are off by n roundings."""
    return _compiled(loop, _ANY_ORDER)


def _compiled(loop: Loop, freedom: set[str]) -> Loop:
    try:
        kept: Loop = njit(cache=True, fastmath=freedom or False, **_OPTIONS)(loop)
    except RuntimeError:  # no folder to write to
        kept = njit(fastmath=freedom or False, **_OPTIONS)(loop)
    return kept
