"""What is public about a table: its columns, bounds, levels and classes.

A schema may be declared in part. The rest is read off the private data and assumed public
(`adadps.estimators.tables.survey`), or measured with noise and paid for (`paid_survey`).

A schema comes from options of the command line, or from a JSON file::

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
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adadps.errors import DataError
from adadps.files import parse_json

OTHER = "other"
"""A level or class of this name stands for all that are not listed."""


@dataclass(frozen=True)
class Numeric:
    """A column of numbers between two bounds; values outside of them are clipped.

    ``missing`` replaces an empty cell; by default that is the middle of the bounds.
    """

    name: str
    low: float | None = None
    high: float | None = None
    missing: float | None = None

    def __post_init__(self) -> None:
        require_bounds(f"column '{self.name}'", self.low, self.high)
        if self.missing is not None and not math.isfinite(self.missing):
            raise DataError(
                f"Expected a finite number for missing values of column '{self.name}', found "
                f"{self.missing}. Give a number between its bounds."
            )

    @property
    def is_known(self) -> bool:
        """Return whether there are bounds."""
        return self.low is not None and self.high is not None

    @property
    def bounds(self) -> tuple[float, float]:
        """Return both bounds, which must be known."""
        assert self.low is not None
        assert self.high is not None
        return self.low, self.high

    @property
    def filling(self) -> float:
        """Return what replaces a missing value."""
        low, high = self.bounds
        return low + (high - low) / 2 if self.missing is None else self.missing


@dataclass(frozen=True)
class Categorical:
    """A column of levels. A level "other" stands for all that are not listed."""

    name: str
    levels: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.levels is not None:
            require_names(f"levels of column '{self.name}'", self.levels, least=1)

    @property
    def known_levels(self) -> tuple[str, ...]:
        """Return all levels, which must be known."""
        assert self.levels is not None
        return self.levels


@dataclass(frozen=True)
class Label:
    """The column that is predicted: a class, or a number between two bounds (``regression``).

    With a ``separator``, a cell may hold several classes. A class "other" stands for all that are
    not listed.
    """

    column: str
    classes: tuple[str, ...] | None = None
    separator: str | None = None
    regression: bool = False
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        given = [self.low, self.high]
        if self.regression and (self.classes is not None or self.separator is not None):
            raise DataError(
                "Expected bounds for a regression, found classes or a separator. Leave them out."
            )
        if not self.regression and given != [None, None]:
            raise DataError(
                "Expected classes for labels, found bounds. Say that it is a regression, or leave "
                "them out."
            )
        if self.separator is not None and not self.separator:
            raise DataError("Expected a separator of labels, found an empty text. Name it.")
        require_bounds(f"label '{self.column}'", self.low, self.high)
        if self.classes is not None:
            require_names("classes", self.classes, least=2)
            self._require_no_separator(self.classes)

    @property
    def is_known(self) -> bool:
        """Return whether there are classes, or bounds."""
        return self.classes is not None or (self.low is not None and self.high is not None)

    @property
    def known_classes(self) -> tuple[str, ...]:
        """Return all classes that are known; a regression has none."""
        return self.classes or ()

    @property
    def bounds(self) -> tuple[float, float]:
        """Return both bounds of a regression, which must be known."""
        assert self.low is not None
        assert self.high is not None
        return self.low, self.high

    @property
    def outputs(self) -> int:
        """Return how many outputs a model has."""
        return 1 if self.regression else len(self.known_classes)

    def _require_no_separator(self, classes: Sequence[str]) -> None:
        if self.separator and any(self.separator in name for name in classes):
            raise DataError(
                f"Expected classes without the separator '{self.separator}', found it in one. "
                "Choose another separator."
            )


@dataclass(frozen=True)
class Schema:
    """The columns of a table. ``fill_missing`` fills empty cells instead of refusing them.

    >>> schema = Schema(("review",), (Numeric("age", 0, 120),), (), Label("stars", ("1", "2")))
    >>> schema.unknown, schema.columns
    ([], ('review', 'age', 'stars'))
    """

    texts: tuple[str, ...]
    numeric: tuple[Numeric, ...]
    categorical: tuple[Categorical, ...]
    label: Label
    fill_missing: bool = False

    def __post_init__(self) -> None:
        if not self.inputs:
            raise DataError(
                "Expected at least one column to predict from, found none. Give --text, --numeric "
                "or --categorical, or name them in the schema."
            )
        twice = next((name for name in self.columns if self.columns.count(name) > 1), None)
        if twice is not None:
            raise DataError(
                f"Expected different columns for texts, numbers, categories and labels, found "
                f"'{twice}' more than once. Labels become classes, which are stored in the model."
            )

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return the columns that are predicted from."""
        numbers = (column.name for column in self.numeric)
        categories = (column.name for column in self.categorical)
        return (*self.texts, *numbers, *categories)

    @property
    def columns(self) -> tuple[str, ...]:
        """Return all columns that are read."""
        return (*self.inputs, self.label.column)

    @property
    def unknown(self) -> list[str]:
        """Return what is not declared, in words."""
        label = self.label
        found = [f"bounds of '{column.name}'" for column in self.numeric if not column.is_known]
        found += [f"levels of '{column.name}'" for column in self.categorical if not column.levels]
        if not label.is_known:
            found.append("bounds of the label" if label.regression else "the classes")
        return found

    @property
    def undeclared(self) -> tuple[list[Categorical], list[Numeric], bool]:
        """Return categories and numbers without levels or bounds, and if the label lacks them."""
        categories = [column for column in self.categorical if not column.levels]
        numbers = [column for column in self.numeric if not column.is_known]
        return categories, numbers, not self.label.is_known

    def with_placeholders(self) -> Schema:
        """Return the same columns with placeholders for what is not known, for plans and checks.

        Plans depend only on the number of classes K, and little: √(1 - 1/K).
        """
        label = self.label
        if not label.is_known and label.regression:
            label = replace(label, low=0.0, high=1.0)
        elif not label.is_known:
            label = replace(label, classes=(*"abc", OTHER))
        return replace(
            self,
            numeric=tuple(c if c.is_known else replace(c, low=0.0, high=1.0) for c in self.numeric),
            categorical=tuple(c if c.levels else replace(c, levels=(OTHER,)) for c in
                              self.categorical),
            label=label,
        )  # fmt: skip

    def describe(self) -> dict[str, Any]:
        """Return the content of a schema file."""
        label: dict[str, Any] = {"column": self.label.column}
        if self.label.regression:
            label |= {"regression": True, "low": self.label.low, "high": self.label.high}
        else:
            label |= {"classes": list(self.label.known_classes)}
        if self.label.separator is not None:
            label["separator"] = self.label.separator
        return {
            "text": list(self.texts),
            "numeric": {
                column.name: {"low": column.low, "high": column.high, "missing": column.missing}
                for column in self.numeric
            },
            "categorical": {
                column.name: {"levels": list(column.known_levels)} for column in self.categorical
            },
            "label": label,
            "missing": "fill" if self.fill_missing else "refuse",
        }


READ_OFF = "read off the data"


def facts(
    declared: Schema, known: Schema, how: str = READ_OFF, *, only_found: bool | None = None
) -> list[str]:
    """Return what is public about the columns: declared, or found in the private data.

    ``how`` says how it was found. ``only_found`` restricts the facts to what was found, or (False)
    to what was declared.
    """
    found: list[tuple[bool, str]] = []
    for before, after in zip(declared.numeric, known.numeric, strict=True):
        words = _bounds_in_words(f"'{after.name}'", after.bounds, before.is_known, how)
        found.append((before.is_known, words))
        if known.fill_missing:
            filled = f"that missing values of '{after.name}' count as {after.filling:g}"
            found.append((before.is_known, filled))
    for given, category in zip(declared.categorical, known.categorical, strict=True):
        listed, origin = ", ".join(category.known_levels), "declared" if given.levels else how
        found.append((bool(given.levels), f"the levels of '{category.name}', {origin}: {listed}"))
    label, is_known = known.label, declared.label.is_known
    if label.regression:
        found.append((is_known, _bounds_in_words("the label", label.bounds, is_known, how)))
    else:
        listed, origin = ", ".join(label.known_classes), "declared" if is_known else how
        found.append((is_known, f"the classes, {origin}: {listed}"))
    return [words for was_declared, words in found if was_declared is not only_found]


def _bounds_in_words(what: str, bounds: tuple[float, float], is_declared: bool, how: str) -> str:
    extremes = " as its smallest and largest value" if how == READ_OFF else ""
    origin = "declared" if is_declared else f"{how}{extremes}"
    return f"the bounds of {what}, {origin}: {bounds[0]:g} to {bounds[1]:g}"


def require_bounds(what: str, low: float | None, high: float | None) -> None:
    """Refuse bounds that are not finite and in order; both may be None."""
    if low is None and high is None:
        return
    given = low is not None and high is not None
    least, most = (math.nan if bound is None else bound for bound in (low, high))
    if not given or not -math.inf < least < most < math.inf:
        raise DataError(
            f"Expected two finite bounds of {what}, the lower one first, found {low} and {high}. "
            "Give what is known without the data."
        )


def require_names(what: str, names: Sequence[Any], least: int) -> None:
    """Refuse fewer than ``least`` different texts, and empty ones."""
    fits = all(isinstance(name, str) and name.strip() for name in names)
    if not fits or len(set(names)) != len(names) or len(names) < least:
        number = "one text" if least == 1 else "two different texts"
        raise DataError(
            f"Expected at least {number} as {what}, each once, found {len(set(map(str, names)))} "
            f"of {len(names)}. Name them: a,b,c on the command line, a list in a schema."
        )


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
