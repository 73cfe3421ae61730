"""The settings that are tried: plain values, fixed before anything is drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from adadps.errors import SettingError
from adadps.training.tuning.price import Setting


def settings_of(grid: Sequence[Setting] | Mapping[str, Sequence[Any]]) -> list[Setting]:
    """A list of settings as it is; of values by name, every combination.

    >>> settings_of({"lr": [0.1, 1.0], "clip_norm": [0.5]})
    [{'lr': 0.1, 'clip_norm': 0.5}, {'lr': 1.0, 'clip_norm': 0.5}]
    """
    if isinstance(grid, Mapping):
        for name, values in grid.items():
            if isinstance(values, str) or not isinstance(values, Sequence):
                raise _refusal(f"{name} = {values!r} instead of a list of values")
        combined = product(*grid.values())
        settings: list[Setting] = [dict(zip(grid, values, strict=True)) for values in combined]
    else:
        settings = [_checked_mapping(setting) for setting in grid]
    if not settings or (isinstance(grid, Mapping) and not grid):
        raise _refusal("none")
    for setting in settings:
        for name, value in setting.items():
            if not isinstance(name, str) or not _is_plain(value):
                raise _refusal(f"{name} = {value!r}")
    return settings


def _checked_mapping(setting: Any) -> Setting:
    if not isinstance(setting, Mapping):
        raise _refusal(repr(setting))
    return dict(setting)


def _is_plain(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str | int)


def _refusal(found: str) -> SettingError:
    return SettingError(
        "Expected settings of texts, finite numbers, True, False or None by their names, which "
        f"stand in the result; found {found}. Name what is tried by plain values, and let `make` "
        "build the rest of them."
    )
