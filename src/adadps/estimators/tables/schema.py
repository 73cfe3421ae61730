"""What is public about a table: its columns, bounds, levels and classes.

A schema may be declared in part. The rest is read off the private data and assumed public
(`adadps.estimators.tables.survey`), or measured with noise and paid for (`paid_survey`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from adadps.errors import DataError

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
