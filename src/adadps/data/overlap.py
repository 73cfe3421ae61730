"""Rows of the private data that are public as well: they are left out, and not counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from adadps.data.examples import Examples, Features
from adadps.data.sparse_rows import SparseRows


def private_rows(data: Examples, public: Sequence[Examples]) -> Tensor:
    """For each row of ``data``: is it in none of the public sets?

    Whether a row is left out depends on that row and on public data alone, so that the filter
    costs no privacy. How many were left out is not told.

    >>> from adadps.data.examples import examples
    >>> data = examples([[1.0], [2.0]], [0, 1])
    >>> private_rows(data, [examples([[2.0]], [0])]).tolist()
    [True, False]
    """
    known = {row for held in public for row in _rows(held.features)}
    if not known:
        return torch.ones(len(data), dtype=torch.bool)
    return torch.tensor([row not in known for row in _rows(data.features)])


def _rows(features: Features) -> Iterator[bytes]:
    if isinstance(features, SparseRows):
        offsets = features.offsets.tolist()
        columns, values = features.columns.cpu().numpy(), features.values.cpu().double().numpy()
        for start, end in pairwise(offsets):
            yield columns[start:end].tobytes() + values[start:end].tobytes()
    else:
        for row in features.cpu().double().numpy():
            yield row.tobytes()
