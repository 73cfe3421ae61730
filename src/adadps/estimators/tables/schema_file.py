"""Schemas from JSON files and from options of the command line.

::

    {"text": ["title", "body"],
     "numeric": {"age": {"low": 18, "high": 100, "missing": 40}, "visits": {}},
     "categorical": {"country": {"levels": ["de", "fr", "other"]}},
     "label": {"column": "stars", "classes": ["1", "2", "3"], "separator": ";"},
     "missing": "fill",
     "examples": 20000}

Everything is optional. A label with ``"regression": true`` has ``low`` and ``high`` instead.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from adadps.errors import DataError, SettingError
from adadps.estimators.tables.schema import Categorical, Label, Numeric, Schema
from adadps.files.strict_json import parse_json

_KNOWN = ("text", "numeric", "categorical", "label", "missing", "examples", "format")
_OF_A_LABEL = ("column", "classes", "separator", "regression", "low", "high")


def read_schema_file(path: Path) -> dict[str, Any]:
    """Return the content of a schema file, whose names are known; values are checked later."""
    try:
        held = parse_json(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:  # our own errors, encodings, names with a NUL byte
        raise DataError(
            f"Expected a schema in JSON at {path}, found something else ({error}) See the guide on "
            "tables for its format."
        ) from error
    held = _object(held, f"the schema {path}", _KNOWN)
    if held.pop("format", 1) != 1:
        raise DataError(f"Expected a schema of format 1 in {path}, found another. Write it again.")
    return held


def schema_of(held: Mapping[str, Any]) -> Schema:
    """Return the schema that is described; every value is checked.

    >>> schema_of({"text": ["review"], "label": {"column": "stars"}}).unknown
    ['the classes']
    """
    numeric = _object(held.get("numeric", {}), "numeric columns")
    categorical = _object(held.get("categorical", {}), "categorical columns")
    label = _object(held.get("label", {}), "the label", _OF_A_LABEL)
    missing = held.get("missing", "refuse")
    if missing not in ("refuse", "fill"):
        raise DataError(
            f"Expected refuse or fill for missing values, found {missing!r}. Choose one of them."
        )
    if not isinstance(label.get("column"), str):
        raise DataError("Expected a column of labels, found none. Name it: --label NAME.")
    return Schema(
        tuple(_texts(held.get("text", []), "text columns")),
        tuple(_numeric(name, entry) for name, entry in numeric.items()),
        tuple(_categorical(name, entry) for name, entry in categorical.items()),
        Label(
            label["column"],
            _names(label.get("classes"), "classes"),
            _text(label.get("separator"), "a separator"),
            _flag(label.get("regression", False)),
            _number(label.get("low"), "a bound of the label"),
            _number(label.get("high"), "a bound of the label"),
        ),
        missing == "fill",
    )


def examples_of(held: Mapping[str, Any]) -> int | None:
    """Return the declared number of examples, if there is one."""
    count = held.get("examples")
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise DataError(
            f"Expected a whole number of examples >= 1, found {count!r}. Declare how many there "
            "are, or leave it out."
        )
    return count


def merged(file: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a file and options declare together; they may not contradict each other.

    >>> merged({"label": {"column": "stars"}}, {"label": {"classes": ["1", "2"]}})
    {'label': {'column': 'stars', 'classes': ['1', '2']}}
    """
    held: dict[str, Any] = dict(file)
    for name, value in options.items():
        if name not in held:
            held[name] = value
        elif isinstance(value, Mapping) and isinstance(held[name], Mapping):
            held[name] = merged(held[name], value)
        elif held[name] != value:
            raise SettingError(
                f"Expected '{name}' once, found it in the schema and, with another value, among "
                "the options. Leave one of them out."
            )
    return held


def options_as_schema(
    *,
    texts: Sequence[str] = (),
    numeric: Iterable[str] = (),
    categorical: Iterable[str] = (),
    label: str | None = None,
    classes: str | None = None,
    separator: str | None = None,
    regression: bool = False,
    label_bounds: str | None = None,
    missing: str | None = None,
    examples: int | None = None,
) -> dict[str, Any]:
    """Return options as the content of a schema file; options that are not given are left out.

    >>> options_as_schema(numeric=["age=18,100", "visits"])
    {'numeric': {'age': {'low': 18.0, 'high': 100.0}, 'visits': {}}}
    """
    target: dict[str, Any] = {"column": label} if label is not None else {}
    if classes is not None:
        target["classes"] = [name.strip() for name in classes.split(",")]
    if separator is not None:
        target["separator"] = separator
    if regression:
        target["regression"] = True
    if label_bounds is not None:
        target |= _bounds("--label-bounds", label_bounds)
    held: dict[str, Any] = {
        "text": list(texts),
        "numeric": dict(_numeric_option(given) for given in numeric),
        "categorical": dict(_categorical_option(given) for given in categorical),
        "label": target,
        "missing": missing,
        "examples": examples,
    }
    return {name: value for name, value in held.items() if value}


def _numeric_option(given: str) -> tuple[str, dict[str, Any]]:
    name, equals, bounds = given.rpartition("=")
    return (name, _bounds(f"--numeric {given}", bounds)) if equals else (given, {})


def _categorical_option(given: str) -> tuple[str, dict[str, Any]]:
    name, equals, levels = given.partition("=")
    listed = [level.strip() for level in levels.split(",")]
    return (name, {"levels": listed}) if equals else (given, {})


def _bounds(option: str, given: str) -> dict[str, Any]:
    try:
        low, high = (float(part) for part in given.split(","))
    except ValueError:
        raise SettingError(
            f"Expected two numbers low,high, found '{option}'. Write --numeric age=18,100 and "
            "--label-bounds 0,1000."
        ) from None
    return {"low": low, "high": high}


def _object(held: Any, what: str, known: Sequence[str] | None = None) -> dict[str, Any]:
    if not isinstance(held, dict):
        raise DataError(f"Expected {what} as a JSON object, found something else. Write {{...}}.")
    unknown = [name for name in held if known is not None and name not in known]
    if unknown:
        near = difflib.get_close_matches(unknown[0], known or (), n=1)
        cure = f"Did you mean '{near[0]}'?" if near else f"Known are: {', '.join(known or ())}."
        raise DataError(f"Expected known names in {what}, found '{unknown[0]}'. {cure}")
    return dict(held)


def _numeric(name: str, entry: Any) -> Numeric:
    held = _object(entry, f"column '{name}'", ("low", "high", "missing"))
    low, high, missing = (_number(held.get(key), f"{key} of column '{name}'") for key in
                          ("low", "high", "missing"))  # fmt: skip
    return Numeric(name, low, high, missing)


def _categorical(name: str, entry: Any) -> Categorical:
    held = _object(entry, f"column '{name}'", ("levels",))
    return Categorical(name, _names(held.get("levels"), f"levels of column '{name}'"))


def _texts(held: Any, what: str) -> list[str]:
    if not isinstance(held, list) or not all(isinstance(name, str) for name in held):
        raise DataError(f"Expected a list of texts as {what}, found something else. Write [...].")
    return held


def _names(held: Any, what: str) -> tuple[str, ...] | None:
    return None if held is None else tuple(_texts(held, what))


def _text(held: Any, what: str) -> str | None:
    if held is not None and not isinstance(held, str):
        raise DataError(f"Expected a text as {what}, found {held!r}. Write it in quotes.")
    return held


def _flag(held: Any) -> bool:
    if not isinstance(held, bool):
        raise DataError(f"Expected true or false for regression, found {held!r}. Choose one.")
    return held


def _number(held: Any, what: str) -> float | None:
    if held is None:
        return None
    if isinstance(held, bool) or not isinstance(held, int | float) or abs(held) > 1e300:
        raise DataError(f"Expected a number as {what}, found {str(held)[:40]!r}. Write it plainly.")
    return float(held)
