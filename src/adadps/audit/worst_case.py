"""A tiny problem in which one example pulls as hard as clipping allows, always in one direction.

The problem is linear regression, (w·x - y)², from w = 0. The example has x = e₀ and a target so far
away that its gradient is far above the clip norm at every step: clipped, it is C·e₀. Other rows can
oppose it: alone they pull in the other direction, less hard; if a sum of gradients is clipped
instead of each gradient, the example reverses that sum. Bystanders own other features, so that the
noise of the example's weight stays pending while batches touch other weights.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy import sparse
from torch import nn

from adadps.audit.repeated import Neighbours
from adadps.data.examples import Examples, examples
from adadps.errors import require
from adadps.types import Relation

WIDTH = 32
"""The number of weights, enough to reveal the size of the noise in one step."""

FAR = 1000.0
"""The distance of the worst-case target; rows that oppose it have half of it."""


def worst_case(
    relation: Relation,
    *,
    opposing: int = 1,
    bystanders: int = 0,
    as_sparse: bool = False,
    width: int = WIDTH,
) -> Neighbours:
    """Return neighbours under ``relation``: the worst-case example first, then all other rows.

    ``opposing`` rows share its feature; each of the ``bystanders`` owns another one. In the world
    without the example, its place is taken by nothing (add or remove), by a row of zeros (zero
    out), or by the example that pulls in the other direction (replace).

    >>> pair = worst_case(Relation.ADD_OR_REMOVE_ONE, opposing=2)
    >>> len(pair.with_example), len(pair.without)
    (3, 2)
    """
    require(opposing >= 0, "opposing >= 0", opposing, "It counts rows.")
    require(
        0 <= bystanders < width,
        f"0 <= bystanders < {width}",
        bystanders,
        "Each of them owns a feature, and so does the example.",
    )
    others = [(0, 1.0, FAR / 2)] * opposing + [(1 + i, 1.0, FAR / 2) for i in range(bystanders)]
    others = others or [(0, 0.0, 0.0)]  # a row of zeros has no effect
    instead = {
        Relation.ADD_OR_REMOVE_ONE: [],
        Relation.ZERO_OUT: [(0, 0.0, 0.0)],
        Relation.REPLACE_ONE: [(0, 1.0, FAR)],
    }[relation]
    return Neighbours(
        with_example=_rows([(0, 1.0, -FAR), *others], as_sparse, width),
        without=_rows([*instead, *others], as_sparse, width),
    )


def zero_linear(width: int = WIDTH) -> nn.Linear:
    """Return the model at w = 0."""
    model = nn.Linear(width, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


def pull(width: int = WIDTH) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the direction in which the worst-case example moves the weights, -e₀."""
    direction = np.zeros(width)
    direction[0] = -1.0
    return direction


def _rows(rows: list[tuple[int, float, float]], as_sparse: bool, width: int) -> Examples:
    """Make one row per (feature, value, target)."""
    features = np.zeros((len(rows), width), dtype=np.float32)
    for row, (feature, value, _) in enumerate(rows):
        features[row, feature] = value
    held = sparse.csr_matrix(features) if as_sparse else torch.from_numpy(features)
    return examples(held, torch.tensor([target for *_, target in rows]))
