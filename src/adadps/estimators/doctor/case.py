"""A case: public examples in place of private ones, and what is declared about the latter."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import sparse

from adadps.accounting.epsilon import Budget
from adadps.data.examples import Examples, as_features, as_numbers
from adadps.data.fields import one_input
from adadps.data.sparse_rows import SparseRows
from adadps.errors import DataError

Array = np.ndarray[Any, Any]
Matrix = Array | sparse.csr_matrix
FEWEST_ROWS, FEWEST_IN_A_FOLD = 40, 5


@dataclass(frozen=True)
class Case:
    """Public rows with labels 0..K-1, the declared number of private examples, and the budget.

    ``steps`` and ``batch_size`` of the private run follow from the planner's rule where they are
    None.
    """

    public: Examples
    rows: Matrix = field(repr=False)
    labels: Array = field(repr=False)
    classes: int
    examples: int
    budget: Budget
    steps: int | None = None
    batch_size: float | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def features(self) -> int:
        """Return the number of features."""
        return int(self.rows.shape[1])


def case_of(
    features: Any,
    labels: Any,
    *,
    examples: int,
    budget: Budget,
    classes: int | None = None,
    steps: int | None = None,
    batch_size: float | None = None,
) -> Case:
    """Return a case of public examples, which are checked.

    >>> rows, labels = np.eye(50), np.arange(50) % 2
    >>> len(case_of(rows, labels, examples=1000, budget=Budget(1.0, 1e-5)))
    50
    """
    held = one_input(as_features(features))
    targets = as_numbers(labels, "labels")
    if targets.ndim != 1 or len(targets) != len(held) or targets.is_floating_point():
        raise DataError(
            f"Expected one whole number as a label for each of the {len(held)} public rows, found "
            f"{targets.dtype} of shape {tuple(targets.shape)}. Number the classes from 0."
        )
    numbers = targets.long()
    rows = as_matrix(held)
    if rows.ndim != 2:
        raise DataError(
            f"Expected public rows of features, found shape {rows.shape}. Flatten each example."
        )
    _require_enough(numbers.numpy(), classes)
    return Case(
        public=Examples(held if isinstance(held, SparseRows) else held.float(), numbers),
        rows=rows,
        labels=numbers.numpy(),
        classes=int(numbers.max()) + 1 if classes is None else classes,
        examples=examples,
        budget=budget,
        steps=steps,
        batch_size=batch_size,
    )


def require_folds(rows: int, folds: int) -> None:
    """Refuse too few folds to show the noise, and folds that are too small to measure anything."""
    most = rows // FEWEST_IN_A_FOLD
    if not 3 <= folds <= most:
        raise DataError(
            f"Expected between 3 and {most} folds for {rows} public rows, found {folds}. The "
            "noise of the simulation shows as differences between folds."
        )


def as_matrix(features: Any) -> Matrix:
    """Return the same rows for numpy and scipy, in float64."""
    if isinstance(features, SparseRows):
        parts = (features.values.double(), features.columns, features.offsets)
        values, columns, offsets = (part.numpy() for part in parts)
        return sparse.csr_matrix((values, columns, offsets), (len(features), features.width))
    return np.asarray(features.double().numpy())


def _require_enough(labels: Array, classes: int | None) -> None:
    if len(labels) < FEWEST_ROWS:
        raise DataError(
            f"Expected at least {FEWEST_ROWS} public examples, found {len(labels)}. Fewer show "
            "nothing: use DP-SGD, or side information that you trust."
        )
    found = np.unique(labels)
    if len(found) < 2:
        raise DataError(
            f"Expected public examples of at least two classes, found {len(found)}. Check which "
            "column holds the labels."
        )
    if found[0] < 0 or (classes is not None and found[-1] >= classes):
        raise DataError(
            f"Expected labels from 0 to the number of classes minus 1, found {found[0]} to "
            f"{found[-1]}. Number the classes from 0, and declare all of them."
        )
