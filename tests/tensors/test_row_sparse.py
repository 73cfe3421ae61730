"""The algebra of tensors with few rows that are not zero, against plain tensors."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from torch import nn

from adadps.data.examples import examples
from adadps.engine.chunked import ChunkedGradients
from adadps.engine.ghost import GhostEngine
from adadps.engine.rules.gradients import LeafMap
from adadps.engine.waist import added, clip_weights, reduce
from adadps.tensors.sums import RowSparse, dense, rows_of, times_
from support.engine_checks import trainable
from support.problems import squared

AXES = pytest.mark.parametrize("axis", [0, 1])
SHAPES = st.tuples(st.integers(1, 5), st.integers(1, 5))


def draw(rng, shape, axis, rows=None):
    """A random tensor with some rows, in no particular order."""
    length = shape[axis]
    count = rng.integers(length + 1) if rows is None else rows
    places = torch.from_numpy(rng.choice(length, count, replace=False))
    return RowSparse(
        places, torch.from_numpy(rng.normal(size=(count, shape[1 - axis]))), shape, axis
    )


def by_hand(held):
    """The dense tensor, entry by entry."""
    found = torch.zeros(held.shape, dtype=held.values.dtype)
    for row, values in zip(held.rows.tolist(), held.values, strict=True):
        for place, value in enumerate(values):
            found[(row, place) if held.axis == 0 else (place, row)] = value
    return found


@AXES
@given(shape=SHAPES, seed=st.integers(0, 1000))
def test_to_dense(axis, shape, seed):
    held = draw(np.random.default_rng(seed), shape, axis)
    assert held.to_dense().shape == shape
    assert torch.equal(held.to_dense(), by_hand(held))
    assert torch.equal(dense(held), by_hand(held))
    plain = torch.ones(2)
    assert dense(plain) is plain


@AXES
@given(shape=SHAPES, seed=st.integers(0, 1000))
def test_plus(axis, shape, seed):
    """Rows of either, of both, of neither; rows stay distinct, and nothing is overwritten."""
    rng = np.random.default_rng(seed)
    one, other = draw(rng, shape, axis), draw(rng, shape, axis)
    before = by_hand(one), by_hand(other)
    total = one + other
    torch.testing.assert_close(total.to_dense(), before[0] + before[1], rtol=1e-15, atol=0)
    assert sorted(total.rows.tolist()) == sorted({*one.rows.tolist(), *other.rows.tolist()})
    assert total.axis == axis
    assert total.shape == shape
    assert torch.equal(by_hand(one), before[0])
    assert torch.equal(by_hand(other), before[1])


@AXES
@given(shape=SHAPES, seed=st.integers(0, 1000), kind=st.sampled_from(range(6)))
def test_times_whatever_broadcasts(axis, shape, seed, kind):
    rng = np.random.default_rng(seed)
    held = draw(rng, shape, axis)
    sizes = [shape, (1, shape[1]), (shape[0], 1), (1, 1), shape, (1, shape[1])]
    diagonal = torch.from_numpy(rng.normal(size=sizes[kind]))
    if kind > 3:
        diagonal = diagonal.float()
    before, rows = by_hand(held), held.rows.clone()
    found = held.times_(diagonal)
    assert torch.equal(found.to_dense(), before * diagonal)
    assert torch.equal(found.rows, rows)
    assert found.values is held.values  # in place
    assert found.values.dtype == torch.float64


@pytest.mark.parametrize(
    "shape", [(), (7,), (0, 4), (300, 400), (100_000,), (2, 3, 4), (1, 200_000)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_times_in_place(shape, dtype):
    """Large tensors of two types are multiplied piece by piece; bits are those of one product."""
    rng = np.random.default_rng(0)
    total = torch.from_numpy(np.asarray(rng.normal(size=shape)))
    factor = torch.from_numpy(np.asarray(rng.normal(size=shape))).to(dtype)
    expected = total * factor
    times_(total, factor)
    assert torch.equal(total, expected)
    if len(shape) == 2:
        turned, other = total.T.contiguous().T, factor.T.contiguous().T
        expected = turned * other
        times_(turned, other)
        assert torch.equal(turned, expected)


@AXES
@given(shape=SHAPES, seed=st.integers(0, 1000))
def test_numbers(axis, shape, seed):
    held = draw(np.random.default_rng(seed), shape, axis)
    for found in (held * 2.5, 2.5 * held):
        assert torch.equal(found.to_dense(), by_hand(held) * 2.5)
    assert torch.equal((held / 3).to_dense(), by_hand(held) / 3)


@AXES
def test_no_rows_at_all(axis):
    empty, full = (draw(np.random.default_rng(0), (3, 4), axis, rows) for rows in (0, 2))
    assert (empty.to_dense() == 0).all()
    assert (empty + empty).to_dense().shape == (3, 4)
    for total in (empty + full, full + empty):
        assert torch.equal(total.to_dense(), full.to_dense())
    assert (empty.times_(torch.ones(3, 4)).to_dense() == 0).all()


@AXES
@given(shape=SHAPES, seed=st.integers(0, 1000), kind=st.sampled_from(range(4)))
def test_rows_of(axis, shape, seed, kind):
    """Slices come first; a broadcast axis has one that stands for all."""
    rng = np.random.default_rng(seed)
    size = [shape, (1, shape[1]), (shape[0], 1), (1, 1)][kind]
    tensor = torch.from_numpy(rng.normal(size=size))
    rows = torch.from_numpy(rng.integers(shape[axis], size=3))
    expected = tensor.expand(shape).movedim(axis, 0)[rows]
    found = rows_of(tensor, rows, axis)
    assert torch.equal(found.expand(expected.shape), expected)


@AXES
@given(shape=SHAPES, seed=st.integers(0, 1000), shifted=st.booleans(), vectors=st.booleans())
def test_a_map_of_a_sum(axis, shape, seed, shifted, vectors):
    """D ∘ total + count · M: row-sparse without M, dense with it."""
    rng = np.random.default_rng(seed)
    held = draw(rng, shape, axis)
    sizes = [(1, shape[1]), (shape[0], 1)] if vectors else [shape]
    leaf_map = LeafMap(tuple(torch.from_numpy(rng.normal(size=size)) for size in sizes))
    expected = by_hand(held) * leaf_map.product(shape, torch.device("cpu"))
    if shifted:
        leaf_map = replace(leaf_map, offset=torch.from_numpy(rng.normal(size=shape)))
        expected = expected + 2.5 * leaf_map.offset
    found = leaf_map.apply_to_sum(held, 2.5)  # overwrites what it is given
    assert isinstance(found, torch.Tensor if shifted else RowSparse)
    torch.testing.assert_close(dense(found), expected, rtol=1e-14, atol=1e-14)


@AXES
@pytest.mark.parametrize("kinds", ["sparse, sparse", "sparse, dense", "dense, sparse"])
def test_sums_of_parts_may_be_of_two_kinds(axis, kinds):
    rng = np.random.default_rng(0)
    parts = [draw(rng, (4, 5), axis) for _ in range(2)]
    expected = by_hand(parts[0]) + by_hand(parts[1])
    one, other = (
        held.to_dense() if kind == "dense" else held
        for held, kind in zip(parts, kinds.split(", "), strict=True)
    )
    total = added({"w": one}, {"w": other})["w"]
    assert isinstance(total, RowSparse) == (kinds == "sparse, sparse")
    torch.testing.assert_close(dense(total), expected, rtol=1e-15, atol=0)
    assert added(None, {"w": other})["w"] is other


def pieces_of(engine, batch, cuts):
    params = trainable(engine.model)

    def piece(rows):
        return lambda: engine.per_unit(params, batch.take(rows), None)

    return ChunkedGradients(tuple(piece(rows) for rows in torch.arange(len(batch)).split(cuts)))


@settings(max_examples=12)
@given(
    seed=st.integers(0, 1000),
    first=st.sampled_from(["linear", "bag"]),
    shifted=st.booleans(),
    density=st.sampled_from([0.0, 0.1, 0.6]),
)
def test_pieces_of_a_batch_of_words(seed, first, shifted, density):
    """Parts that touch different words, the same words, or none: their sum is that of the whole."""
    rng = np.random.default_rng(seed)
    layer = nn.Linear(9, 2) if first == "linear" else nn.EmbeddingBag(9, 2, mode="sum")
    engine = GhostEngine(nn.Sequential(layer), squared)
    rows = sparse.random(7, 9, density, "csr", random_state=rng)
    batch = examples(rows, rng.normal(size=(7, 2)).astype(np.float32))
    params = trainable(engine.model)
    diagonal, mean = (
        {n: torch.from_numpy(np.exp(rng.normal(size=tuple(p.shape)))) for n, p in params.items()}
        for _ in range(2)
    )
    whole, pieces = engine.per_unit(params, batch, None), pieces_of(engine, batch, [3, 1, 3])
    if shifted:
        whole, pieces = whole.shift(0.5, mean), pieces.shift(0.5, mean)
    whole, pieces = whole.scale(diagonal), pieces.scale(diagonal)
    weights = torch.from_numpy(rng.normal(size=7))
    expected, found = whole.weighted_sum(weights), pieces.weighted_sum(weights)
    clipped, in_parts = (reduce(held, lambda n: clip_weights(n, 0.1)) for held in (whole, pieces))
    for one, other in ((expected, found), (clipped, in_parts)):
        assert isinstance(other["0.weight"], torch.Tensor if shifted else RowSparse)
        for name, leaf in one.items():
            torch.testing.assert_close(dense(other[name]), dense(leaf), rtol=1e-5, atol=1e-6)


def test_a_batch_without_pieces_has_no_sum():
    assert ChunkedGradients(()).weighted_sum(torch.zeros(0)) == {}
    assert reduce(ChunkedGradients(()), lambda norms: norms) is None
