"""Gradients of one parameter in all the forms that engines hold, at any scale."""

from dataclasses import replace

import numpy as np
import torch

from adadps.data.sparse_rows import SparseRows
from adadps.engine.rules.gradients import (
    Affine,
    LeafMap,
    MaterialisedGradients,
    TiedGradients,
)
from adadps.engine.rules.layered import LayeredGradients
from adadps.engine.rules.outer import Outer, OverTime
from adadps.engine.rules.sparse import SparseOuter, TokenRows
from adadps.engine.rules.tied import TiedTable

SIZE = 3
"""Examples a leaf."""

LEAVES = (
    "outer",
    "over many positions",
    "over one position",
    "sparse, words last",
    "sparse, words first",
    "tokens",
    "several",
    "tied",
    "stored",
)
"""Every form of a leaf; `leaf_of` makes each."""
SCALES = ("moderate", "spread", "tiny", "huge")
"""Of entries: about 1; from 1e-k to 1e+k in one tensor; all of them 1e-k; all of them 1e+k."""

FACTORS = ("none", "full", "by output", "by input", "both vectors", "scalar", "full and vector")


def numbers(rng, shape, scale, digits, dtype=torch.float32):
    """Random entries of both signs and of the given scale."""
    values = rng.normal(size=shape)
    if scale == "spread":
        values = np.sign(values) * 10 ** rng.uniform(-digits, digits, size=shape)
    values = values * {"tiny": 10.0**-digits, "huge": 10.0**digits}.get(scale, 1.0)
    return torch.from_numpy(values).to(dtype)


def leaf_of(kind, rng, shape, scale="moderate"):
    """A leaf for a parameter of ``shape``, with entries of the given scale."""
    rows, columns = shape

    def draw(*size):
        return numbers(rng, (SIZE, *size), scale, 25)

    def tokens():
        found = torch.from_numpy(rng.integers(min(rows, 4), size=(SIZE, 5)))
        return TokenRows(found, draw(5, columns), rows)

    def sparse(axis):
        dense = draw(shape[axis]) * torch.from_numpy(rng.random((SIZE, shape[axis])) < 0.6)
        dense[1] = 0  # a row without words
        return SparseOuter(SparseRows.from_torch(dense.to_sparse()), draw(shape[1 - axis]), axis)

    makers = {
        "sparse, words last": lambda: sparse(1),
        "sparse, words first": lambda: sparse(0),
        "outer": lambda: Outer(draw(columns), draw(rows)),
        "over one position": lambda: OverTime(draw(1, columns), draw(1, rows)),
        "over many positions": lambda: OverTime(draw(4, columns), draw(4, rows)),
        "tokens": tokens,
        "stored": lambda: MaterialisedGradients(draw(rows, columns)),
        "tied": lambda: TiedTable(tokens(), OverTime(draw(4, columns), draw(4, rows))),
        "several": lambda: TiedGradients((Outer(draw(columns), draw(rows)), tokens()), SIZE),
    }
    return makers[kind]()


def map_of(kind, rng, shape, scale="moderate", dtype=torch.float64):
    """D as the factors that calls of `scale` leave behind."""
    rows, columns = shape
    sizes = {
        "none": [],
        "full": [(rows, columns)],
        "by output": [(rows, 1)],
        "by input": [(1, columns)],
        "both vectors": [(1, columns), (rows, 1)],
        "scalar": [(1, 1)],
        "full and vector": [(rows, columns), (1, columns)],
    }[kind]
    found = LeafMap()
    for size in sizes:
        found = found.scaled(numbers(rng, size, scale, 30, dtype).abs())
    return found


def held(leaf, size=SIZE):
    """A model with this one parameter."""
    return LayeredGradients({"w": leaf}, torch.ones(size, dtype=torch.bool))


def mapped(leaf, leaf_map):
    """The same, with this map of it."""
    return replace(held(leaf), affine=Affine({"w": leaf_map}))
