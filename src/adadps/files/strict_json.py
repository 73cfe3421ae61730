"""Strict JSON: no duplicate names, no NaN, nothing that could not be written again."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from adadps.errors import DataError


def parse_json(text: str) -> Any:
    """Return the content of a JSON text, or raise a `DataError` with the reason.

    Unlike `json.loads` it refuses duplicate names, NaN and numbers beyond float64, lone surrogates,
    and nesting that is too deep to traverse.

    >>> parse_json('{"format": 1}')
    {'format': 1}
    >>> parse_json('{"format": 1, "format": 2}')
    Traceback (most recent call last):
    adadps.errors.DataError: Expected JSON, found the name 'format' twice. ...
    """
    try:
        held = json.loads(
            text,
            object_pairs_hook=_without_repetition,
            parse_float=_finite,
            parse_constant=_no_number,
        )
        json.dumps(held, ensure_ascii=False).encode("utf-8")  # finds lone surrogates
    except DataError:
        raise
    except (RecursionError, MemoryError) as error:
        raise DataError(
            "Expected JSON, found nesting that is too deep. Restore the file as it was written."
        ) from error
    except ValueError as error:
        raise DataError(
            f"Expected JSON, found something else ({error}). Restore the file as it was written."
        ) from error
    return held


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    held = dict(pairs)
    if len(held) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(
            f"Expected JSON, found the name '{twice}' twice. Restore the file as it was written."
        )
    return held


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _no_number(text)


def _no_number(text: str) -> NoReturn:
    raise DataError(
        f"Expected finite numbers in JSON, found {text[:40]}. Restore the file as it was written."
    )
