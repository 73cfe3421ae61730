"""A tiny problem in which one example pulls as hard as clipping allows, always the same way.

Linear regression, (w·x - y)², from w = 0. The example has x = e₀ and a target so far away that
its gradient is far beyond the clip at every step: clipped, it is C·e₀. Other rows can oppose it:
alone they pull the other way, less hard; if a sum of gradients is clipped instead of each, the
example turns that sum around. Bystanders own other features: the example's weight then waits for
its noise while batches touch other weights.
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
"""Weights of the problem: enough that the size of the noise can be seen in one step."""

FAR = 1000.0
"""How far the worst-case example's target is; rows that oppose it have half of that."""


def worst_case(
    relation: Relation,
    *,
    opposing: int = 1,
    bystanders: int = 0,
    as_sparse: bool = False,
    width: int = WIDTH,
) -> Neighbours:
    """Neighbours under ``relation``: the worst-case example first, then all other rows.

    ``opposing`` rows share its feature; every one of ``bystanders`` owns another. Without the
    example there is: nothing (add or remove), a row of zeros (zero out), or the example that pulls
    the other way (replace).

    >>> pair = worst_case(Relation.ADD_OR_REMOVE_ONE, opposing=2)
    >>> len(pair.with_example), len(pair.without)
    (3, 2)
    """
    require(opposing >= 0, "opposing >= 0", opposing, "It counts rows.")
    require(
        0 <= bystanders < width,
        f"0 <= bystanders < {width}",
        bystanders,
        "Each owns a feature beside the example's.",
    )
    others = [(0, 1.0, FAR / 2)] * opposing + [(1 + i, 1.0, FAR / 2) for i in range(bystanders)]
    others = others or [(0, 0.0, 0.0)]  # zeros: a row that is no example at all
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
    """The model, at w = 0."""
    model = nn.Linear(width, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


def pull(width: int = WIDTH) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Where the worst-case example moves the weights: its gradient's opposite, -e₀."""
    direction = np.zeros(width)
    direction[0] = -1.0
    return direction


def _rows(rows: list[tuple[int, float, float]], as_sparse: bool, width: int) -> Examples:
    """One row for each (feature, value, target)."""
    features = np.zeros((len(rows), width), dtype=np.float32)
    for row, (feature, value, _) in enumerate(rows):
        features[row, feature] = value
    held = sparse.csr_matrix(features) if as_sparse else torch.from_numpy(features)
    return examples(held, torch.tensor([target for *_, target in rows]))
