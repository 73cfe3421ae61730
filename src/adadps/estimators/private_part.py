"""What of a table is private: rows of a public corpus behind ``side`` are not trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from scipy import sparse

from adadps.data.declared_reads import DeclaredRead, declared_read
from adadps.data.examples import Examples, as_features, examples
from adadps.data.identity import PublicRows, identities_of_rows
from adadps.data.row_kind import without_rows
from adadps.errors import SideInformationError
from adadps.estimators.rows import Rows, Table


def private_examples(
    table: Table, targets: npt.NDArray[np.generic], rows: Rows, public: Sequence[PublicRows]
) -> Examples:
    """All rows as they are trained on, named as they are given, like those of the corpus.

    Training leaves out what is public; after ``rows`` has scaled them they would not be found
    again. How many there are is not told, nor refused if it is all of them.

    >>> from adadps.data.identity import private_rows, public_rows
    >>> import torch
    >>> table, scaled = np.array([[3.0, 4.0], [0.0, 2.0]]), Rows(None, normalised=True)
    >>> corpus = [public_rows(torch.tensor([[3.0, 4.0]]), None)]
    >>> private_rows(private_examples(table, np.array([0, 1]), scaled, corpus), corpus).tolist()
    [False, True]
    """
    if any(held.texts is not None for held in public):
        raise SideInformationError(
            "Expected side information without texts of its corpus, found some: an estimator sees "
            "no texts, so that equal texts would not be found. Train by `adadps.fit` with "
            "`examples(..., texts=...)`, or give frequencies without texts."
        )
    held = examples(rows(table), targets)
    if not public:
        return held
    with declared_read(DeclaredRead.PUBLIC_TOO):
        return replace(held, before=identities_of_rows(as_features(table)))


def form_of(table: Table, targets: npt.NDArray[np.generic], rows: Rows) -> Examples:
    """No examples, in the form of these as they are trained on; no value is read.

    >>> form_of(np.ones((5, 3)), np.zeros(5, np.int64), Rows(None, normalised=True)).features.shape
    torch.Size([0, 3])
    """
    shape = (1, table.shape[1])
    made_up = sparse.csr_matrix(shape) if sparse.issparse(table) else np.zeros(shape)
    return without_rows(examples(rows(made_up), np.zeros((1, *targets.shape[1:]), targets.dtype)))
