"""Read a saved result, and refuse one that adadps could not have written.

A statement about privacy must not change its meaning when a byte of its file does: numbers stored
as text, a private flag beside reasons against it, or an epsilon below that of its own mechanism are
refused. This guards against accidents, not against someone who edits the file on purpose.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from adadps.errors import DataError
from adadps.files import parse_json
from adadps.report.result import (
    FEATURE_WEIGHTS,
    FORMAT,
    RESULT_FILE,
    WEIGHTS_FILE,
    Measurement,
    PrivacyStatement,
    Result,
)
from adadps.tensors.sums import Params

RESTORE = "Restore the folder from a copy: training again would spend epsilon again."
CHECK_OR_RESTORE = f"Check the path, or r{RESTORE[1:]}"
Check = Callable[[Any], bool]
LARGEST = 1e300


def load_result(folder: str | Path) -> Result:
    """Read a saved result; nothing in it is executed."""
    held = read_json(folder, RESULT_FILE)
    file, weights = Path(folder) / RESULT_FILE, Path(folder) / WEIGHTS_FILE
    found = held.get("format") if isinstance(held, dict) else None
    if found != FORMAT:
        raise of_another_format(f"a result of format {FORMAT}", file, found)
    try:
        tensors = load_file(weights)
    except (OSError, ValueError, SafetensorError) as error:
        raise DataError(f"Expected weights in {weights}, found {_why(error)}. {RESTORE}") from error
    try:
        return _result_of(held, tensors)
    except UnsoundError as error:
        raise DataError(
            f"Expected {error.expected} in {file}, found {error.found}. {RESTORE}"
        ) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"Expected the entries of a saved result in {file}, found others. {RESTORE}"
        ) from error


def read_json(folder: str | Path, name: str) -> Any:
    """Read a JSON file of a saved model; errors name the file and the cure."""
    try:
        file = Path(folder) / name
        return parse_json(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        there, cure = "no such folder", "Check the path."
        if file.parent.exists():
            there, cure = "no such file", CHECK_OR_RESTORE
        raise DataError(f"Expected a saved model with {file}, found {there}. {cure}") from error
    except (OSError, ValueError) as error:  # our own errors, encodings, NUL bytes in names
        raise DataError(
            f"Expected JSON in {folder}/{name}, found {_why(error)}. {RESTORE}"
        ) from error


def of_another_format(expected: str, file: Path, found: Any) -> DataError:
    """Return the error about a file of another version, or of another program."""
    if found is None:
        return DataError(
            f"Expected {expected} in {file}, found another kind of file. {CHECK_OR_RESTORE}"
        )
    return DataError(
        f"Expected {expected} in {file}, found format {found!r}. Read it with the version of "
        "adadps that wrote it."
    )


def _why(error: Exception) -> str:
    """Return why a file cannot be read, in a few words."""
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, NotADirectoryError | IsADirectoryError | PermissionError):
        return "something that cannot be read as a file"
    return "something else: the file is damaged, or belongs to another program"


def _result_of(held: dict[str, Any], tensors: Params) -> Result:
    require_sound(held)
    privacy = dict(held["privacy"])
    for name in ("epsilon", "clip_norm"):
        privacy[name] = math.inf if privacy[name] is None else privacy[name]
    for name in ("not_private_because", "assumed_public", "measured"):
        privacy[name] = tuple(privacy.get(name, ()))
    if privacy.get("charges") is not None:
        privacy["charges"] = tuple(privacy["charges"])
    feature_weights = tensors.pop(FEATURE_WEIGHTS, None)
    return Result(
        privacy=PrivacyStatement(**privacy),
        method=held["method"],
        side_information=tuple(held["side_information"]),
        settings=held["settings"],
        history=tuple(Measurement(**_with_nan(entry)) for entry in held["history"]),
        params=tensors,
        feature_weights=feature_weights,
        debug=tuple(held["debug"]),
        public_facts=held.get("public_facts", {}),
    )


def _with_nan(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "value": math.nan if entry["value"] is None else entry["value"]}


def require_sound(held: Any) -> None:
    """Refuse content that is not that of a result.

    >>> require_sound([])
    Traceback (most recent call last):
    adadps.report.saved_result.UnsoundError: Expected the entries of a result, found ...
    """
    if not isinstance(held, dict):
        raise _wrong("the entries of a result", "something else")
    _require(held, _RESULT, "the result")
    privacy = held["privacy"]
    _require(privacy, _PRIVACY, "the privacy statement")
    _require_if_there(privacy, _LATER_IN_PRIVACY, "the privacy statement")
    _require_if_there(held, _LATER_IN_RESULT, "the result")
    _require_if_there(held.get("public_facts", {}), _PUBLIC_FACTS, "the public facts")
    for entry in held["history"]:
        _require(entry, _MEASUREMENT, "the history")
    epsilon, mechanism = privacy["epsilon"], privacy["mechanism_epsilon"]
    private = epsilon is not None
    if held["private"] != private or (private and privacy["not_private_because"]):
        raise _wrong("a consistent statement", "one that is both private and not private")
    if private and (mechanism is None or epsilon < mechanism):
        least = "which is infinite" if mechanism is None else f"{mechanism:g}"
        raise _wrong(
            f"an epsilon of at least that of its mechanism, {least}",
            f"privacy.epsilon = {epsilon:g}",
        )


def _require(held: dict[str, Any], checks: dict[str, Check], where: str) -> None:
    for name, check in checks.items():
        if name not in held or not check(held[name]):
            raise _wrong(f"an entry '{name}' of the right type in {where}", "none or another type")


def _require_if_there(held: dict[str, Any], checks: dict[str, Check], where: str) -> None:
    """Check entries that results of earlier versions do not have."""
    _require(held, {name: checks[name] for name in checks if name in held}, where)


class UnsoundError(DataError):
    """Entries that adadps could not have written, with what was expected and found."""

    def __init__(self, expected: str, found: str) -> None:
        self.expected, self.found = expected, found
        super().__init__(f"Expected {expected}, found {found}. Restore the file as it was written.")


def _wrong(expected: str, found: str) -> UnsoundError:
    return UnsoundError(expected, found)


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _number(value: Any) -> bool:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return plain and abs(value) <= LARGEST


def _at_least_zero(value: Any) -> bool:
    return _number(value) and bool(value >= 0)


def _count(value: Any) -> bool:
    return isinstance(value, int) and _at_least_zero(value)


def _probability(value: Any) -> bool:
    return _number(value) and 0 < value < 1


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _dict(value: Any) -> bool:
    return isinstance(value, dict)


def _of_entries(**checks: Check) -> Check:
    """Return a check for mappings with exactly these entries."""
    return lambda value: (
        isinstance(value, dict)
        and value.keys() == checks.keys()
        and all(check(value[name]) for name, check in checks.items())
    )


def _or_nothing(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _dict_of(check: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


_RESULT: dict[str, Check] = {
    "private": _flag,
    "privacy": _dict,
    "method": _text,
    "side_information": _list_of(_dict_of(_or_nothing(_text))),
    "settings": _dict,
    "history": _list_of(_dict),
    "debug": _list_of(_dict_of(_or_nothing(_number))),
}
_PRIVACY: dict[str, Check] = {
    "epsilon": _or_nothing(_at_least_zero),
    "mechanism_epsilon": _or_nothing(_at_least_zero),
    "delta": _probability,
    "accountant": _text,
    "relation": _text,
    "unit": _text,
    "clip_norm": _or_nothing(_at_least_zero),
    "noise_multiplier": _at_least_zero,
    "steps": _count,
    "steps_paid": _or_nothing(_count),
    "sampler": _dict,
    "tuning": _or_nothing(_dict),
    "tuning_trials": _or_nothing(_count),
    "not_private_because": _list_of(_text),
    "assumed_public": _list_of(_text),
}
_MEASUREMENT: dict[str, Check] = {
    "step": _count,
    "epoch": _at_least_zero,
    "data": _text,
    "declared": _text,
    "metric": _text,
    "value": _or_nothing(_number),
}
_LATER_IN_PRIVACY: dict[str, Check] = {
    "charges": _or_nothing(_list_of(_of_entries(event=_text, count=_count))),
    "claim": _or_nothing(_text),
    "measured": _list_of(_text),
}
_LATER_IN_RESULT: dict[str, Check] = {"public_facts": _dict}
_PUBLIC_FACTS: dict[str, Check] = {
    "made_with": _text,
    "parameters": _count,
    "expected_units": _or_nothing(_at_least_zero),
    "update": _text,
    "learning_rates": _or_nothing(
        _of_entries(
            first=_number, last=_number, total=_at_least_zero, root_of_squares=_at_least_zero
        )
    ),
    "preconditioners": _list_of(
        _of_entries(
            place=_text,
            source=_text,
            price=_or_nothing(_text),
            entries=_count,
            ranks=_list_of(_count),
            relative=_list_of(_at_least_zero),
        )
    ),
    "clip_norm_at_end": _at_least_zero,
    "noise_scale": _or_nothing(_of_entries(typical=_at_least_zero, largest=_at_least_zero)),
}
