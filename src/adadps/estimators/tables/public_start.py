"""Weights that start at a model of public, labelled rows instead of at zero.

If the table of public texts also has the column of the labels, a logistic regression is fitted to
it, without noise, on the features that the private model reads. Training then starts there. That
costs nothing: the start is a function of public rows alone.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import normalize

from adadps.data.provenance import Provenance, digest_of
from adadps.data.tables import Table, read_chunks
from adadps.estimators.planner.methods import PreparedMethod, along_features
from adadps.estimators.tables.saved_model import TableModel
from adadps.estimators.tables.schema import Label
from adadps.types import Method

STRENGTH = 10.0
"""The inverse of the penalty on squared weights, as scikit-learn counts it."""
MOST_ROUNDS = 300


def start_at_public_rows(
    layer: torch.nn.Linear,
    public: Path,
    public_because: str,
    model: TableModel,
    prepared: PreparedMethod,
) -> Provenance | None:
    """Set the weights to those of a model of the labelled public rows; return their provenance.

    Rows whose label is not one of the declared classes are ignored. Nothing happens without
    labels, where rows have several, or where fewer than two classes occur; the user is told that
    (`why_labels_are_unused`).
    """
    label = model.schema.label
    one_class = not label.regression and label.separator is None
    if not one_class or not _has_column(public, label.column):
        return None
    parts = [_known(chunk, model) for chunk in read_chunks(public)]
    targets = np.concatenate([found for _, found in parts])
    present = np.unique(targets)
    if len(present) < 2:
        return None
    rows = _as_trained(sparse.vstack([held for held, _ in parts], format="csr"), prepared)
    fitted = LogisticRegression(C=STRENGTH, fit_intercept=False, max_iter=MOST_ROUNDS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a start need not be an optimum
        weights = fitted.fit(rows, targets).coef_
    if len(present) == 2:
        weights = np.vstack([-weights[0] / 2, weights[0] / 2])
    with torch.no_grad():
        layer.weight[torch.from_numpy(present)] = torch.from_numpy(weights.astype(np.float32))
    return Provenance(
        f"starting weights: a logistic regression on {len(targets)} labelled rows of {public.name}",
        public_because,
        digest_of([torch.from_numpy(weights)]),
    )


def why_labels_are_unused(public: Path, label: Label) -> str | None:
    """Return why training does not start at the labels of the public rows; None if it does.

    Without a column of labels there is nothing to tell.
    """
    if not _has_column(public, label.column):
        return None
    if label.regression:
        why = "a start is made for classes, and the label is a number"
    elif label.separator is not None:
        why = "a start is made for one label per row, and rows have several"
    else:
        names = {name for chunk in read_chunks(public) for name in chunk.texts(label.column)}
        found = len(names & set(label.known_classes))
        if found > 1:
            return None
        why = (
            f"{found} of the {len(label.known_classes)} classes occur among them, and a start "
            "takes two. Check how classes are spelled in both tables"
        )
    return f"The column '{label.column}' of {public} is not used: {why}."


def _has_column(public: Path, column: str) -> bool:
    return column in next(iter(read_chunks(public, rows_at_once=1))).header


def _known(chunk: Table, model: TableModel) -> tuple[sparse.csr_matrix, npt.NDArray[np.int64]]:
    """Return the rows whose label is a declared class, and the numbers of the classes."""
    label = model.schema.label
    number = {name: place for place, name in enumerate(label.known_classes)}
    names = chunk.texts(label.column)  # one that is missing is no class
    found = np.array([number.get(name, -1) for name in names], np.int64)
    known = found >= 0
    features = replace(model.features, schema=replace(model.schema, fill_missing=True))
    return sparse.csr_matrix(features(chunk)[known]), found[known]


def _as_trained(rows: sparse.csr_matrix, prepared: PreparedMethod) -> sparse.csr_matrix:
    """Return the rows as the model reads them: with weighted features and norm 1, or as given."""
    if prepared.method is not Method.DP_SGD_WEIGHTED or prepared.side is None:
        return rows
    a = along_features(prepared.side)
    assert a is not None  # of a table there is one value per feature
    return sparse.csr_matrix(normalize(rows @ sparse.diags_array(1 / a)))
