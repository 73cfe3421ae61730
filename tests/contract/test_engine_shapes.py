"""Every engine on layers of any shape, under any order of scalings and shifts.

Ground truth is autograd on one example at a time, transformed step by step.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from torch import nn

from adadps.data.examples import examples
from adadps.engine.general import GeneralEngine
from adadps.engine.ghost import GhostEngine
from adadps.engine.waist import Units
from adadps.tensors.sums import RowSparse, dense
from support import ground_truth
from support.engine_checks import trainable
from support.problems import squared

KINDS = ("full", "rank one", "by feature", "by output", "scalar")
STEPS = st.lists(st.sampled_from(["scale", "shift"]), max_size=4)
DIMENSION = st.integers(1, 6)


def any_shape(outputs, targets):
    return (outputs - targets).square().flatten(1).sum(1)


def targets_for(rng, size, *shape):
    return rng.normal(size=(size, *shape)).astype(np.float32)


def diagonals(rng, params, kind, dtype):
    """One or two calls of `scale` that together make D."""
    sizes = {
        "full": [lambda s: s],
        "rank one": [lambda s: (*[1] * (len(s) - 1), s[-1]), lambda s: (s[0], *[1] * (len(s) - 1))],
        "by feature": [lambda s: (*[1] * (len(s) - 1), s[-1])],
        "by output": [lambda s: (s[0], *[1] * (len(s) - 1))],
        "scalar": [lambda s: (1,) * len(s)],
    }[kind]
    return [
        {
            name: torch.from_numpy(np.exp(rng.normal(size=size(tuple(p.shape))))).to(dtype)
            for name, p in params.items()
        }
        for size in sizes
    ]


def assert_transformed(engine, batch, steps, kind, dtype, seed, units=None):
    """Norms and sums after all steps are those of gradients that were built one by one."""
    rng, model = np.random.default_rng(seed), engine.model
    params = trainable(model)
    truth = ground_truth.gradients_one_by_one(model, engine.loss, batch)
    if units is not None:
        truth = ground_truth.grouped(truth, units)
    ones = {name: torch.ones([1] * p.ndim) for name, p in params.items()}
    zeros = {name: torch.zeros_like(p) for name, p in params.items()}
    found = engine.per_unit(params, batch, units)
    for step in steps:
        if step == "shift":
            mean = {n: torch.from_numpy(rng.normal(size=tuple(p.shape))) for n, p in params.items()}
            beta = float(rng.choice([0.9, 0.3]))
            found, truth = (
                found.shift(beta, mean),
                ground_truth.transformed(truth, beta, mean, ones),
            )
            continue
        for diagonal in diagonals(rng, params, kind, dtype):
            found = found.scale(diagonal)
            truth = ground_truth.transformed(truth, 1.0, zeros, diagonal)
    if units is not None:  # a group without members is absent, and brings no shift either
        empty = torch.bincount(units.labels, minlength=units.count) == 0
        truth = [
            {n: leaf * (not e) for n, leaf in one.items()}
            for one, e in zip(truth, empty, strict=True)
        ]
    expected = ground_truth.norms(truth)
    scale = max(1.0, float(expected.max()))
    torch.testing.assert_close(found.norms(), expected, rtol=2e-5, atol=1e-5 * scale)
    weights = torch.from_numpy(rng.choice([-1.5, 0.0, 0.3, 2.0], size=len(truth)))
    sums = found.weighted_sum(weights)
    for name, leaf in ground_truth.weighted_sum(truth, weights).items():
        assert dense(sums[name]).shape == leaf.shape
        assert dense(sums[name]).dtype == torch.float64
        torch.testing.assert_close(dense(sums[name]), leaf, rtol=2e-5, atol=2e-5 * scale)


def repeated(batch, rng, repeats):
    """The batch with some of its examples several times."""
    if not repeats:
        return batch
    return batch.take(torch.from_numpy(rng.integers(len(batch), size=len(batch) + 2)))


TRANSFORMS = {
    "steps": STEPS,
    "kind": st.sampled_from(KINDS),
    "dtype": st.sampled_from([torch.float32, torch.float64]),
    "seed": st.integers(0, 10_000),
}
COMMON = TRANSFORMS | {"size": st.integers(1, 5), "repeats": st.booleans()}


@settings(max_examples=60)
@given(inputs=DIMENSION, outputs=DIMENSION, time=st.integers(0, 12), bias=st.booleans(), **COMMON)
def test_linear_layers(inputs, outputs, time, bias, steps, kind, dtype, seed, size, repeats):
    """Time 0 stands for no time axis."""
    rng = np.random.default_rng(seed)
    axes = (time,) if time else ()
    features = rng.normal(size=(size, *axes, inputs)).astype(np.float32)
    batch = examples(features, targets_for(rng, size, *axes, outputs))
    engine = GhostEngine(nn.Linear(inputs, outputs, bias=bias), any_shape)
    batch = repeated(batch, rng, repeats)
    assert_transformed(engine, batch, steps, kind, dtype, seed)


@settings(max_examples=40)
@given(words=DIMENSION, width=DIMENSION, length=st.integers(1, 8), **COMMON)
@pytest.mark.parametrize("padding", [None, 0])
def test_embeddings(padding, words, width, length, steps, kind, dtype, seed, size, repeats):
    """Few words and many positions: most words repeat."""
    rng = np.random.default_rng(seed)
    model = nn.Sequential(
        nn.Embedding(words, width, padding_idx=padding),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(length * width, 2),
    )
    tokens = rng.integers(words, size=(size, length))
    batch = repeated(examples(tokens, targets_for(rng, size, 2)), rng, repeats)
    assert_transformed(GhostEngine(model, squared), batch, steps, kind, dtype, seed)


@settings(max_examples=40)
@given(
    words=DIMENSION,
    width=DIMENSION,
    length=st.integers(1, 8),
    mode=st.sampled_from(["sum", "mean"]),
    **COMMON,
)
@pytest.mark.parametrize("padding", [None, 0])
def test_bags(padding, words, width, length, mode, steps, kind, dtype, seed, size, repeats):
    """With padding, some bags are empty."""
    rng = np.random.default_rng(seed)
    model = nn.Sequential(
        nn.EmbeddingBag(words, width, mode=mode, padding_idx=padding),
        nn.Tanh(),
        nn.Linear(width, 2),
    )
    tokens = rng.integers(words, size=(size, length))
    batch = repeated(examples(tokens, targets_for(rng, size, 2)), rng, repeats)
    assert_transformed(GhostEngine(model, squared), batch, steps, kind, dtype, seed)


@settings(max_examples=60)
@given(
    words=st.integers(1, 9),
    outputs=DIMENSION,
    density=st.sampled_from([0.0, 0.2, 1.0]),
    first=st.sampled_from(["linear", "linear, no bias", "bag"]),
    **COMMON,
)
def test_sparse_rows(words, outputs, density, first, steps, kind, dtype, seed, size, repeats):
    """Also rows without entries, and batches of nothing else."""
    rng = np.random.default_rng(seed)
    layer = (
        nn.EmbeddingBag(words, outputs, mode="sum")
        if first == "bag"
        else nn.Linear(words, outputs, bias=first == "linear")
    )
    rows = sparse.random(size, words, density, format="csr", random_state=rng, dtype=np.float32)
    batch = repeated(examples(rows, targets_for(rng, size, outputs)), rng, repeats)
    engine = GhostEngine(nn.Sequential(layer, nn.Tanh()), squared)
    assert_transformed(engine, batch, steps, kind, dtype, seed)


def test_repeated_entries_of_a_sparse_row_are_added_up_before_they_are_squared():
    entries = (np.array([1.0, 2.0, -3.0, 5.0]), (np.array([0, 0, 0, 1]), np.array([2, 2, 1, 0])))
    rows = sparse.coo_matrix(entries, shape=(2, 4))
    batch = examples(rows, np.ones((2, 1), dtype=np.float32))
    engine = GhostEngine(nn.Linear(4, 1), squared)
    assert_transformed(engine, batch, ["scale"], "full", torch.float64, 0)


@settings(max_examples=40)
@given(inputs=DIMENSION, hidden=DIMENSION, outputs=DIMENSION, general=st.booleans(), **COMMON)
def test_perceptrons(inputs, hidden, outputs, general, steps, kind, dtype, seed, size, repeats):
    rng = np.random.default_rng(seed)
    model = nn.Sequential(nn.Linear(inputs, hidden), nn.SiLU(), nn.Linear(hidden, outputs))
    features = rng.normal(size=(size, inputs)).astype(np.float32)
    batch = repeated(examples(features, targets_for(rng, size, outputs)), rng, repeats)
    engine = (GeneralEngine if general else GhostEngine)(model, squared)
    assert_transformed(engine, batch, steps, kind, dtype, seed)


@settings(max_examples=40)
@given(
    layer=st.sampled_from(["linear", "time", "sparse", "tokens", "bag"]),
    count=st.integers(1, 4),
    **(TRANSFORMS | {"size": st.integers(1, 6)}),
)
def test_groups(layer, count, steps, kind, dtype, seed, size):
    """Groups of any size, also without members: those bring no shift either."""
    rng = np.random.default_rng(seed)
    model, features = {
        "linear": lambda: (nn.Linear(3, 2), rng.normal(size=(size, 3)).astype(np.float32)),
        "time": lambda: (
            nn.Sequential(nn.Linear(3, 2), nn.Flatten(), nn.Linear(8, 2)),
            rng.normal(size=(size, 4, 3)).astype(np.float32),
        ),
        "sparse": lambda: (nn.Linear(6, 2), sparse.random(size, 6, 0.3, "csr", random_state=rng)),
        "tokens": lambda: (
            nn.Sequential(nn.Embedding(3, 2), nn.Flatten(), nn.Linear(10, 2)),
            rng.integers(3, size=(size, 5)),
        ),
        "bag": lambda: (
            nn.Sequential(nn.EmbeddingBag(3, 2), nn.Linear(2, 2)),
            rng.integers(3, size=(size, 5)),
        ),
    }[layer]()
    batch = examples(features, targets_for(rng, size, 2))
    units = Units(torch.from_numpy(rng.integers(count, size=size)), count, 0.7)
    assert_transformed(GhostEngine(model, squared), batch, steps, kind, dtype, seed, units)


@pytest.mark.parametrize("steps", [["shift", "scale"], ["scale", "shift"]])
def test_the_order_of_scale_and_shift_matters(steps):
    """D ∘ (β g + (1 - β) M) is not β D ∘ g + (1 - β) M."""
    model, rng = nn.Linear(3, 2), np.random.default_rng(0)
    batch = examples(rng.normal(size=(4, 3)).astype(np.float32), targets_for(rng, 4, 2))
    engine = GhostEngine(model, squared)
    assert_transformed(engine, batch, steps, "full", torch.float64, 0)
    other = engine.per_unit(trainable(model), batch, None)
    mean = {name: torch.ones_like(p) for name, p in trainable(model).items()}
    diagonal = {name: torch.full_like(p, 3.0) for name, p in trainable(model).items()}
    one = other.shift(0.5, mean).scale(diagonal).norms()
    two = other.scale(diagonal).shift(0.5, mean).norms()
    assert not torch.allclose(one, two)


def test_sums_over_words_stay_sparse_until_there_is_a_shift():
    """A table of words is touched where words occur; a shift moves all of it."""
    rng = np.random.default_rng(0)
    rows = sparse.random(4, 50, 0.05, "csr", random_state=rng)
    engine = GhostEngine(nn.Linear(50, 2), squared)
    params = trainable(engine.model)
    held = engine.per_unit(params, examples(rows, targets_for(rng, 4, 2)), None)
    for diagonal in diagonals(rng, params, "rank one", torch.float64):
        held = held.scale(diagonal)
    total = held.weighted_sum(torch.ones(4))["weight"]
    assert isinstance(total, RowSparse)
    assert sorted(total.rows.tolist()) == sorted(set(rows.indices.tolist()))
    mean = {name: torch.ones_like(p) for name, p in params.items()}
    assert isinstance(held.shift(0.5, mean).weighted_sum(torch.ones(4))["weight"], torch.Tensor)
