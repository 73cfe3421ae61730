"""Checks of what an estimator is given, and what becomes of it after an error."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
from sklearn.exceptions import NotFittedError

from adadps.errors import AdadpsError, DataError, SettingError, SideInformationError
from adadps.estimators.planner.methods import takes_side_information
from adadps.methods.side import Frequencies
from adadps.methods.side.source import Fixed
from adadps.types import Method

_SHOWS_NO_VALUE = re.compile(
    r"""X\ has\ \d+\ features,\ but\ \w+\ is\ expecting\ \d+\ features\ as\ input
    | Found\ array\ with\ 0\ (sample|feature)\(s\)\ \(shape=[\d(), ]+\)
      \ while\ a\ minimum\ of\ \d+\ is\ required(\ by\ \w+)?\.?
    | Found\ input\ variables\ with\ inconsistent\ numbers\ of\ samples:\ [\d\[\], ]+
    | y\ should\ be\ a\ 1d\ array,\ got\ an\ array\ of\ shape\ [\d(), ]+
    | The\ feature\ names\ should\ match[\s\S]*
    | Complex\ data\ not\ supported
    | [\w\ ]+\ requires\ y\ to\ be\ passed,\ but\ the\ target\ y\ is\ None
    """,
    re.VERBOSE,
)
_NOT_FINITE = re.compile(r"(Input )?(?P<what>[Xy]?) ?contains (NaN|infinity)")
_FILL = (
    "Fill what is missing with a constant that is known without looking at the data, as "
    "SimpleImputer(strategy='constant', fill_value=0) does, or leave such rows out. A mean or "
    "median of these rows is a fact about them that epsilon does not cover."
)
_SOMETHING_ELSE = (
    "Expected a table of finite numbers with one row per example, and one target per row, found "
    "something else, which is not shown. Reshape your data if it has other dimensions; turn texts "
    "and categories into numbers, and labels into one kind: integers or texts."
)


def refuse(unknown: dict[str, Any]) -> None:
    """Refuse weights of examples, and unknown arguments."""
    if unknown.get("sample_weight") is not None:
        raise SettingError(
            "Expected examples of equal weight, found sample_weight. A weight changes how much one "
            "example can move the model, and often depends on private data: leave it out."
        )
    others = [name for name in unknown if name != "sample_weight"]
    if others:
        raise TypeError(f"fit() got an unexpected keyword argument '{others[0]}'")


def require_flags(estimator: Any) -> None:
    """Refuse flags that are not True, False or None."""
    for name in ("strict", "fit_intercept", "normalise_rows"):
        value = getattr(estimator, name, None)
        if value is not None and not isinstance(value, bool | np.bool_):
            raise SettingError(f"Expected True, False or None as {name}, found {value!r}.")


@overload
def number_of(estimator: Any, name: str, *, required: Literal[True]) -> float: ...
@overload
def number_of(estimator: Any, name: str) -> float | None: ...
def number_of(estimator: Any, name: str, *, required: bool = False) -> float | None:
    """Return a setting as a float, whatever its type; None where it is left out."""
    value = getattr(estimator, name)
    if value is None and not required:
        return None
    try:
        if isinstance(value, bool | str):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise SettingError(
            f"Expected a number as {name}, found {value!r}. Give one above 0."
        ) from None


def declared_examples(value: Any) -> int:
    """Return the declared number of examples as an integer."""
    try:
        count = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        count = 0
    if count < 1:
        raise SettingError(
            f"Expected a whole number of examples >= 1, found {value!r}. Declare how many there "
            "are in a call of `fit` or `partial_fit`."
        )
    return count


def require_trials(trials: Any) -> None:
    """Refuse a number of trials that is negative or not whole."""
    whole = isinstance(trials, int | np.integer) and not isinstance(trials, bool)
    if trials is not None and not (whole and trials >= 0):
        raise SettingError(
            f"Expected a whole number of tuning_trials, found {trials!r}. Say how many settings "
            "were tried on this data before, or leave it out."
        )


def method_called(name: Any) -> Method:
    """Return the method of this name."""
    try:
        return Method(name)
    except ValueError:
        raise SettingError(
            f"Expected a method among {', '.join(Method)}, found {name!r}. Choose one of them."
        ) from None


def side_information(side: Any, method: Method) -> Frequencies | Fixed | None:
    """Return frequencies or a fixed source for a method; a vectorizer is asked for its own.

    A vectorizer says where features come from. It may stand beside a method that does not read how
    frequent they are, unless private rows that are among its public texts would not be noticed.
    """
    if not takes_side_information(method):
        if getattr(side, "public_texts", None) is not None:
            raise SideInformationError(
                f"Expected a method that reads side information beside public texts, found "
                f"{method.value}, which would not notice private rows that are public too. Use "
                "method='auto'."
            )
        if side is not None and not callable(getattr(side, "frequencies", None)):
            raise SideInformationError(
                f"Expected no side information for {method.value}, found some. Use method='auto', "
                "or leave `side` out."
            )
        return None
    if side is None:
        raise SideInformationError(
            f"Expected side information for {method.value}, found none. Give `side`, or use "
            "method='dp-sgd'."
        )
    asked = getattr(side, "frequencies", None)
    held = asked() if callable(asked) else side
    if not isinstance(held, Frequencies | Fixed):
        raise SideInformationError(
            f"Expected side information, found {type(held).__name__}. Give a `PublicVectorizer`, "
            "frequencies such as `adadps.side.word_frequencies(words)`, or a fixed source such as "
            "`adadps.side.fixed(...)`: they say why they are public."
        )
    return held


def ledger_path(ledger: Any) -> Path | None:
    """Return a path or None; ledger objects are refused."""
    if ledger is None:
        return None
    if not isinstance(ledger, str | os.PathLike):
        raise SettingError(
            f"Expected the path of a ledger, found {type(ledger).__name__}. scikit-learn copies "
            "what an estimator is given, and a copied ledger would be spent twice: give its path."
        )
    return Path(ledger)


@contextmanager
def unchanged_on_error(estimator: Any) -> Iterator[None]:
    """Restore the attributes of the estimator after an error."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise


def forget_fit(estimator: Any) -> None:
    """Remove the attributes of an earlier fit."""
    for name in [name for name in vars(estimator) if name.endswith("_")]:
        delattr(estimator, name)


@contextmanager
def data_errors_as_ours() -> Iterator[None]:
    """Raise scikit-learn's refusals as `DataError`, with its text where that shows no data."""
    try:
        yield
    except (AdadpsError, NotFittedError):
        raise
    except ValueError as error:
        raise DataError(_without_data(str(error))) from None  # the cause may show labels or rows


def _without_data(refusal: str) -> str:
    """Return a message without data; scikit-learn would advise to fit an imputer on these rows.

    >>> _without_data("Input y contains NaN.")
    'Expected finite numbers in y, found NaN or infinity. Leave such rows out.'
    """
    infinite = _NOT_FINITE.match(refusal)
    if infinite:
        cure = "Leave such rows out." if infinite["what"] == "y" else _FILL
        where = infinite["what"] or "the table"
        return f"Expected finite numbers in {where}, found NaN or infinity. {cure}"
    known = _SHOWS_NO_VALUE.match(refusal)
    return known.group() if known else _SOMETHING_ELSE


def another_than_before(what: str) -> SettingError:
    """Say that a call of `partial_fit` differs from the first one."""
    return SettingError(
        f"Expected the {what} of the first call of `partial_fit`, found another one. Set it back, "
        "or start again with `fit`."
    )
