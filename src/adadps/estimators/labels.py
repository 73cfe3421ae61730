"""The targets of a classifier: classes or labels, declared or read off the data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import column_or_1d

from adadps.data.bounds import is_sparse
from adadps.data.provenance import RARE, DeclaredRead, declared_read
from adadps.errors import DataError, SettingError

Classes = npt.NDArray[Any]
MOST_NAMED = 1000


@dataclass(frozen=True)
class Labels:
    """The classes of single labels, or the columns of an indicator matrix."""

    classes: Classes
    several: bool
    """Whether an example may have several labels, or none."""

    @property
    def outputs(self) -> int:
        """Return the number of outputs, one per class or label."""
        return len(self.classes)

    @declared_read(DeclaredRead.ENCODING)
    def encoded(self, y: Any) -> npt.NDArray[Any]:
        """Return class numbers, or an indicator matrix of float32."""
        if self.several != is_indicator(y):
            kind = "an indicator matrix" if self.several else "one label per example"
            raise DataError(f"Expected {kind} as before, found the other kind. Give the same kind.")
        if self.several:
            held: Classes = np.asarray(y.toarray() if is_sparse(y) else y)
            if held.shape[1] != self.outputs:
                raise DataError(
                    f"Expected {self.outputs} columns of labels, found {held.shape[1]}. Give one "
                    "column for each declared class."
                )
            return np.asarray(held != 0, dtype=np.float32)
        flat = column_or_1d(y, warn=True)
        places = np.searchsorted(self.classes, flat) if _comparable(self.classes, flat) else None
        if places is not None:
            places = places.clip(max=self.outputs - 1)
            wrong = np.flatnonzero(self.classes[places] != flat)
        if places is None or len(wrong):
            where = "" if places is None else f" in row {wrong[0]}"
            raise DataError(
                f"Expected labels among the {self.outputs} classes, found another{where}. Declare "
                "all classes by `classes=...`, or leave such rows out."
            )
        return np.asarray(places, dtype=np.int64)

    def decoded(self, scores: npt.NDArray[np.float64]) -> Classes:
        """Return the class with the highest score, or every label with a score above 0."""
        if self.several:
            return np.asarray(scores > 0, dtype=np.int64)
        return np.asarray(self.classes[scores.argmax(axis=1)])


@declared_read(DeclaredRead.FORM)
def declared_labels(classes: Any, y: Any) -> Labels:
    """Return the labels that are declared."""
    if isinstance(classes, str):
        raise SettingError(
            f"Expected classes as a list, or 'paid', found the text {classes!r}. Give a list of "
            "all classes."
        )
    names = classes if isinstance(classes, np.ndarray) else list(classes)
    require_one_kind(names, "classes")
    held = np.asarray(names)
    several = is_indicator(y)
    if held.ndim != 1 or len(held) < 2 or len(np.unique(held)) != len(held):
        raise DataError(
            f"Expected at least two different classes, found {held.size} of shape {held.shape}, or "
            "one of them twice. Declare the names of all classes, or of all columns of labels."
        )
    return Labels(held if several else np.unique(held), several)


def labels_of(y: Any) -> Labels:
    """Return the labels that occur; to use them is to assume that they are public.

    >>> labels_of(np.array(["no"] * 5 + ["Mrs Miller"]))
    Traceback (most recent call last):
        ...
    adadps.errors.DataError: Expected classes that occur at least 3 times, found a rarer one in \
row 5. Classes that are read off the data are stored in the model for everyone to read: declare \
them by `classes=...`, or have them measured with noise: `classes='paid'`.
    """
    if is_indicator(y):
        return Labels(np.arange(y.shape[1]), several=True)
    check_classification_targets(y)
    found, first, counts = np.unique(column_or_1d(y), return_index=True, return_counts=True)
    if len(found) < 2:
        raise DataError(
            "Expected at least two classes in y, found one class. Declare all classes by "
            "`classes=...` if the data happens to have only one."
        )
    if counts.min() < RARE:
        raise DataError(
            f"Expected classes that occur at least {RARE} times, found a rarer one in row "
            f"{first[counts.argmin()]}. Classes that are read off the data are stored in the model "
            "for everyone to read: declare them by `classes=...`, or have them measured with "
            "noise: `classes='paid'`."
        )
    return Labels(found, several=False)


def whole_numbers(y: Any) -> Any:
    """Return integers that are stored as objects as an array of integers, others unchanged."""
    if is_sparse(y) or y.dtype.kind != "O":
        return y
    whole = all(isinstance(label, int | np.integer | np.bool_) for label in y.flat)
    return np.asarray(y.tolist()) if whole else y


def require_usable(y: Any) -> None:
    """Refuse targets that are not classes."""
    if not is_sparse(y) and y.dtype.kind == "O":
        require_one_kind(y.flat, "y")
    kind = type_of_target(y, input_name="y", raise_unknown=True)
    if kind not in ("binary", "multiclass", "multilabel-indicator"):
        raise DataError(
            f"Unknown label type: {kind}. Expected classes, or an indicator matrix of 0 and 1 for "
            "several labels, found something else. Use AdaDPSRegressor for numbers."
        )


def require_one_kind(labels: Iterable[Any], where: str) -> None:
    """Refuse texts beside other labels: they cannot be ordered, and 1 is not "1".

    >>> require_one_kind(["a", 1], "y")
    Traceback (most recent call last):
    adadps.errors.DataError: Expected labels of one kind in y, found texts beside ...
    """
    if len({isinstance(label, str) for label in labels}) > 1:
        raise DataError(
            f"Expected labels of one kind in {where}, found texts beside something else. Give "
            "integers alone, or texts alone."
        )


def facts_about(labels: Labels, *, read_off: bool) -> str:
    """Return a sentence for the list of what is assumed public."""
    how = "read off the data" if read_off else "declared"
    what = "columns of labels" if labels.several else "classes"
    names = ", ".join(str(name) for name in labels.classes[:MOST_NAMED])
    more = f" and {labels.outputs - MOST_NAMED} more" if labels.outputs > MOST_NAMED else ""
    return f"the {what}, {how}: {names}{more}"


def is_indicator(y: Any) -> bool:
    """Return whether y is a matrix of 0 and 1, with a column for every label."""
    return bool(type_of_target(y) == "multilabel-indicator")


def _comparable(classes: Classes, flat: Classes) -> bool:
    return (classes.dtype.kind in "OUS") == (flat.dtype.kind in "OUS")
