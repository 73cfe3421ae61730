"""How inner loops are compiled: by numba, once a machine, and without Python's lock."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from numba import config, extending, njit

if config.DISABLE_JIT:
    raise ImportError(
        "Expected numba to compile the inner loops of adadps, found NUMBA_DISABLE_JIT in the "
        "environment. Unset it."
    )

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
        kept: Any = njit(cache=True, fastmath=freedom or False, **_OPTIONS)(loop)
    except RuntimeError:  # no folder to write to
        uncached: Loop = njit(fastmath=freedom or False, **_OPTIONS)(loop)
        return uncached
    save = kept._cache.save_overload

    def save_if_there_is_room(*compiled: Any) -> None:
        with suppress(OSError):  # a full disk; what is compiled runs all the same
            save(*compiled)

    kept._cache.save_overload = save_if_there_is_room
    loop_on_disk: Loop = kept
    return loop_on_disk
