"""Which delta is small enough for a declared number of units.

Publishing the complete record of one of n people, chosen at random, is (0, 1/n)-private: with
probability delta the definition allows what it otherwise forbids. So a claim at a delta above 1/n
is refused, and one above 1/(2n) raises a warning. The paper uses 1/n.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from adadps.errors import PrivacyWarning, require
from adadps.types import Unit

_ROUNDING = 1 + 1e-9
_expected: ContextVar[bool] = ContextVar("a delta of 1/n is intended", default=False)


def require_delta(delta: float) -> None:
    """Refuse a delta outside (0, 1)."""
    require(0 < delta < 1, "0 < delta < 1", delta, "Choose it well below 1/n.")


def default_delta(examples: int) -> float:
    """Return 1/(10 n) for a declared number n of examples."""
    return 1 / (10 * examples)


def require_small_delta(delta: float, units: int, unit: Unit, *, warn: bool = False) -> None:
    """Refuse a delta above 1/n for a declared number n of units, and ``warn`` above 1/(2n).

    >>> require_small_delta(1 / 300, 300, Unit.EXAMPLE)
    >>> require_small_delta(0.2, 300, Unit.USER)
    Traceback (most recent call last):
        ...
    adadps.errors.SettingError: Expected delta <= 1/n = 0.00333333 for the declared number of \
users, n = 300, found 0.2. At such a delta, publishing one random user in full would count as \
private. Choose 1/(10 n) = 0.000333 or less.
    """
    named = unit.value
    require(
        delta * units <= _ROUNDING,
        f"delta <= 1/n = {1 / units:g} for the declared number of {named}s, n = {units}",
        delta,
        f"At such a delta, publishing one random {named} in full would count as private. Choose "
        f"1/(10 n) = {1 / (10 * units):.3g} or less.",
    )
    if warn and delta * units > _ROUNDING / 2 and not _expected.get():
        warnings.warn(
            f"delta = {delta:g} is more than 1/(2n) for the declared number of {named}s, n = "
            f"{units}. At 1/n, publishing one random {named} in full would count as private: "
            f"choose 1/(10 n) = {1 / (10 * units):.3g} or less.",
            PrivacyWarning,
            stacklevel=_frames_of_ours(),
        )


@contextmanager
def without_delta_warning() -> Iterator[None]:
    """Suppress the warning where a delta of 1/n is intended, as in published experiments."""
    token = _expected.set(True)
    try:
        yield
    finally:
        _expected.reset(token)


def _frames_of_ours() -> int:
    """Return how many stack frames up the caller of adadps is."""
    depth = 1
    while (frame := _frame(depth)) and frame.startswith("adadps."):
        depth += 1
    return depth


def _frame(depth: int) -> str | None:
    try:
        return str(sys._getframe(depth + 1).f_globals.get("__name__", ""))
    except ValueError:
        return None
