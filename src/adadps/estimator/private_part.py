"""What of a table is private: rows of a public corpus behind ``side`` are left out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from adadps.data.declared_reads import DeclaredRead, declared_read
from adadps.data.examples import Examples, examples
from adadps.data.overlap import PublicRows, private_rows
from adadps.errors import DataError, SideInformationError
from adadps.estimator.rows import Rows, Table


def private_examples(
    table: Table, targets: npt.NDArray[np.generic], rows: Rows, public: Sequence[PublicRows]
) -> Examples:
    """The rows that are in no public corpus, as they are trained on.

    They are compared as they are given, like those of the corpus: after ``rows`` has scaled them
    they would not be found again. How many were left out is not told.

    >>> from adadps.data.overlap import public_rows
    >>> import torch
    >>> table, scaled = np.array([[3.0, 4.0], [0.0, 2.0]]), Rows(None, normalised=True)
    >>> corpus = public_rows(torch.tensor([[3.0, 4.0]]), None)
    >>> private_examples(table, np.array([0, 1]), scaled, [corpus]).features
    tensor([[0., 1.]])
    """
    if any(held.texts is not None for held in public):
        raise SideInformationError(
            "Expected side information without texts of its corpus, found some: an estimator sees "
            "no texts, so that equal texts would not be found. Train by `adadps.fit` with "
            "`examples(..., texts=...)`, or give frequencies without texts."
        )
    if not public:
        return examples(rows(table), targets)
    kept = private_rows(examples(table, targets), public).numpy()
    if not kept.any():
        raise DataError(
            "Expected rows that are private, found all of them in the public corpus behind `side`. "
            "Check that the two are not the same table."
        )
    with declared_read(DeclaredRead.PUBLIC_TOO):
        return examples(rows(table[kept]), targets[kept])
