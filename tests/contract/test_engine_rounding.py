"""Rounding cannot push a clipped norm over C, at whatever scale D, inputs and gradients are.

A computed square may be too large, never too small by more than the last digits of float64
(`SLACK`); then a clipped contribution has norm at most C (1 + SLACK). Where terms can cancel:
`test_engine_cancellation.py`.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adadps.data.examples import Examples
from adadps.data.sparse_rows import SparseRows
from adadps.engine.rules.gradients import LeafMap
from adadps.engine.rules.outer import Outer
from adadps.engine.rules.sparse import SparseOuter
from adadps.engine.waist import clip_weights
from adadps.tensors.squares import LARGE, sum_dtype
from adadps.tensors.sums import dense
from support import exact_norms
from support.engine_checks import contribution, only, trainable
from support.leaves import FACTORS, LEAVES, SCALES, SIZE, leaf_of, map_of, mapped, numbers
from support.problems import PROBLEMS

SLACK = 1e-12
"""A few thousand roundings of float64."""

LARGE_SHAPE = (400, 300)
DTYPES = [torch.float32, torch.float64]
EVERY_LEAF = pytest.mark.parametrize("kind", LEAVES)


def assert_bounded(batch, clip_norm):
    """Each example alone adds at most C."""
    norms = batch.norms()
    weights = clip_weights(norms, clip_norm)
    assert torch.isfinite(weights).all()
    for row in range(len(norms)):
        added = contribution(batch, weights * only(row, len(norms)))
        assert float(torch.linalg.vector_norm(added)) <= clip_norm * (1 + SLACK)


@EVERY_LEAF
@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    scale=st.sampled_from(SCALES),
    factors=st.sampled_from(FACTORS),
    scale_of_d=st.sampled_from(SCALES),
    dtype=st.sampled_from(DTYPES),
)
def test_small_shapes_against_exact_numbers(kind, seed, scale, factors, scale_of_d, dtype):
    rng = np.random.default_rng(seed)
    leaf = leaf_of(kind, rng, (3, 4), scale)
    leaf_map = map_of(factors, rng, (3, 4), scale_of_d, dtype)
    computed = exact_norms.raised(leaf.squares(leaf_map), exact_norms.rational, SLACK)
    exact = exact_norms.squares(leaf, leaf_map, exact_norms.rational)
    assert all(c >= e for c, e in zip(computed, exact, strict=True))
    for clip_norm in (1e-3, 1.0):
        assert_bounded(mapped(leaf, leaf_map), clip_norm)


@EVERY_LEAF
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale_of_d", SCALES)
@pytest.mark.parametrize("scale", ["moderate", "spread"])
def test_large_shapes_are_summed_in_single_precision(kind, dtype, scale_of_d, scale):
    rng = np.random.default_rng(1)
    leaf = leaf_of(kind, rng, LARGE_SHAPE, scale)
    leaf_map = map_of("full", rng, LARGE_SHAPE, scale_of_d, dtype)
    assert sum_dtype(leaf_map.factors[0]) == torch.float32
    assert leaf_map.factors[0].numel() >= LARGE
    computed = exact_norms.raised(leaf.squares(leaf_map), exact_norms.extended, SLACK)
    exact = exact_norms.squares(leaf, leaf_map, exact_norms.extended)
    assert all(c >= e for c, e in zip(computed, exact, strict=True))
    assert_bounded(mapped(leaf, leaf_map), 1.0)


@EVERY_LEAF
@pytest.mark.parametrize("size", [1e-44, 1e-40, 1e39, 1e45])
def test_a_large_float64_diagonal_may_lie_outside_the_range_of_float32(kind, size):
    """Two scalings of 1e-25 make such a D; it must neither be rounded away nor drop examples."""
    rng = np.random.default_rng(2)
    leaf = leaf_of(kind, rng, LARGE_SHAPE)
    once = (torch.from_numpy(rng.random(LARGE_SHAPE)) + 0.5) * size**0.5
    leaf_map = LeafMap().scaled(once).scaled(torch.full(LARGE_SHAPE, size**0.5).double())
    computed = leaf.squares(leaf_map)
    assert torch.isfinite(computed).all()
    exact = exact_norms.squares(leaf, leaf_map, exact_norms.extended)
    raised = exact_norms.raised(computed, exact_norms.extended, SLACK)
    assert all(c >= e for c, e in zip(raised, exact, strict=True))


@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("kind", ["outer", "sparse, words last", "sparse, words first"])
@pytest.mark.parametrize("small", [1e-30, 1e-19, 0.9e-19])
def test_what_underflows_in_single_precision_is_not_lost(kind, small, flush):
    """D is 1 for one word that only the first example has; the others see ``small`` alone."""
    axis = 0 if kind == "sparse, words first" else 1
    rng = np.random.default_rng(5)
    diagonal = torch.full(LARGE_SHAPE, small)
    diagonal.select(axis, 0).fill_(1.0)
    words = torch.from_numpy(rng.normal(size=(SIZE, LARGE_SHAPE[axis]))).float()
    words[1:, 0] = 0
    b = torch.from_numpy(rng.normal(size=(SIZE, LARGE_SHAPE[1 - axis]))).float()
    sparse = SparseRows.from_torch(words.to_sparse())
    leaf = Outer(words, b) if kind == "outer" else SparseOuter(sparse, b, axis)
    leaf_map = LeafMap((diagonal,))
    torch.set_flush_denormal(flush)
    try:
        computed = leaf.squares(leaf_map)
    finally:
        torch.set_flush_denormal(False)
    raised = exact_norms.raised(computed, exact_norms.extended, SLACK)
    exact = exact_norms.squares(leaf, leaf_map, exact_norms.extended)
    assert all(c >= e for c, e in zip(raised, exact, strict=True))


def test_a_diagonal_that_is_overwritten_is_measured_anew():
    """Squares of D are kept for the tensor D, which must be what it was."""
    diagonal = torch.ones(LARGE_SHAPE)
    leaf = leaf_of("outer", np.random.default_rng(0), LARGE_SHAPE)
    before = leaf.squares(LeafMap((diagonal,)))
    diagonal.mul_(10)
    after = leaf.squares(LeafMap((diagonal,)))
    torch.testing.assert_close(after, 100 * before, rtol=1e-3, atol=0)


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_reduced_precision_of_products_is_not_trusted(precision):
    diagonal = torch.ones(LARGE_SHAPE)
    held = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(precision)
        assert sum_dtype(diagonal) == torch.float64
    finally:
        torch.set_float32_matmul_precision(held)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert sum_dtype(diagonal) == torch.float64
        leaf = leaf_of("outer", np.random.default_rng(0), LARGE_SHAPE)
        leaf_map = LeafMap((diagonal,))
        exact = exact_norms.squares(leaf, leaf_map, exact_norms.extended)
        found = exact_norms.raised(leaf.squares(leaf_map), exact_norms.extended, SLACK)
        assert all(c >= e for c, e in zip(found, exact, strict=True))


@EVERY_LEAF
@pytest.mark.parametrize(
    ("factors", "shape"),
    [
        *((factors, shape) for factors in FACTORS for shape in ((3, 4), (1, 1))),
        *((factors, LARGE_SHAPE) for factors in ("full", "both vectors")),
    ],
)
@pytest.mark.parametrize("shifted", [False, True])
def test_norms_are_not_uselessly_large(kind, factors, shape, shifted):
    """At moderate scales, where nothing cancels, a norm is exact to a tenth of a percent."""
    rng = np.random.default_rng(3)
    leaf = leaf_of(kind, rng, shape)
    leaf_map = map_of(factors, rng, shape)
    if shifted:
        leaf_map = leaf_map.shifted(0.7, numbers(rng, shape, "moderate", 1))
    computed = np.sqrt(exact_norms.extended(leaf.squares(leaf_map)))
    exact = np.sqrt(np.array(exact_norms.squares(leaf, leaf_map, exact_norms.extended)))
    assert (computed >= exact * (1 - SLACK)).all()
    assert (computed <= exact * (1 + 1e-3) + 1e-15).all()


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS.keys())
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale_of_d", SCALES)
def test_every_problem_under_any_diagonal(problem, dtype, scale_of_d):
    """Against ‖D ∘ g‖ from gradients that are built one by one, from the same a and b."""
    case, rng = problem(4, SIZE), np.random.default_rng(4)
    plain = case.engine.per_unit(trainable(case.model), case.batch, None)
    gradients = [plain.weighted_sum(only(row, SIZE)) for row in range(SIZE)]
    for kind in ("full", "by output", "both vectors"):
        batch, factors = plain, {}
        for name, value in trainable(case.model).items():
            leaf_map = _map_for(kind, rng, tuple(value.shape), scale_of_d, dtype)
            factors[name] = leaf_map.product(tuple(value.shape), value.device)
            for factor in leaf_map.factors:
                batch = batch.scale({name: factor})
        exact = [
            np.sqrt(sum((exact_norms.extended(dense(g) * factors[n]) ** 2).sum() for n, g in one))
            for one in (gradient.items() for gradient in gradients)
        ]
        assert (exact_norms.extended(batch.norms()) >= np.array(exact) * (1 - SLACK)).all()
        assert_bounded(batch, 1.0)


def _map_for(kind, rng, shape, scale, dtype):
    if len(shape) == 2:
        return map_of(kind, rng, shape, scale, dtype)
    return LeafMap((numbers(rng, shape, scale, 30, dtype).abs(),))


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS.keys())
@pytest.mark.parametrize("factor", [1e-25, 1e15, 1e25])
def test_every_problem_with_features_of_any_scale(problem, factor):
    """Tiny gradients pass as they are, huge ones are clipped, overflowing ones add nothing."""
    case = problem(5, SIZE)
    features = case.batch.features
    if isinstance(features, SparseRows):
        features = features.with_values(features.values * factor)
    elif features.is_floating_point():
        features = features * factor
    batch = case.engine.per_unit(
        trainable(case.model), Examples(features, case.batch.targets), None
    )
    assert_bounded(batch, 1.0)


def test_zeros_stay_zero():
    """No bound on rounding may turn nothing into something: a zero gradient keeps norm 0."""
    leaf = Outer(torch.zeros(2, 300), torch.zeros(2, 400))
    for leaf_map in (LeafMap(), LeafMap((torch.rand(LARGE_SHAPE),))):
        assert leaf.squares(leaf_map).tolist() == [0.0, 0.0]
