"""Where terms of a gradient cancel, rounding is all that is left: it must not pass the clip.

Terms cancel between a gradient and a shift M, between positions of one example, between uses of a
tied parameter, and between members of a group. What was huge before it cancelled must neither be
measured too small, nor leave more than C behind in the sum of all examples.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adadps.data.sparse_rows import SparseRows
from adadps.engine.rules.gradients import MaterialisedGradients, TiedGradients
from adadps.engine.rules.layered import LayeredGradients
from adadps.engine.rules.outer import Outer, OverTime
from adadps.engine.rules.sparse import SparseOuter, TokenRows
from adadps.engine.waist import Units, clip_weights
from support import exact_norms
from support.engine_checks import contribution, only
from support.leaves import LEAVES, SCALES, SIZE, held, leaf_of, map_of, mapped

SLACK = 1e-12
SHAPE = (3, 4)
EVERY_LEAF = pytest.mark.parametrize("kind", LEAVES)
TERMS = 2.0 ** np.arange(0, 90, 15)
"""Sizes of what cancels, in multiples of what is left."""


def opposed(leaf, leaf_map, beta):
    """The map followed by the shift for which the first example's gradient cancels."""
    first = contribution(held(leaf), only(0, SIZE)).reshape(SHAPE)
    mean = -beta / (1 - beta) * leaf_map.product(SHAPE, first.device) * first
    return leaf_map.shifted(beta, mean)


def assert_never_too_small(leaf, leaf_map):
    computed = exact_norms.raised(leaf.squares(leaf_map), exact_norms.rational, SLACK)
    exact = exact_norms.squares(leaf, leaf_map, exact_norms.rational)
    assert all(c >= e for c, e in zip(computed, exact, strict=True))


def alone(batch, clip_norm, row=0):
    """Norm of what one example adds, in multiples of C."""
    weights = clip_weights(batch.norms(), clip_norm)
    added = contribution(batch, weights * only(row, len(weights)))
    return float(torch.linalg.vector_norm(added)) / clip_norm


def in_company(batch, clip_norm, row):
    """How far the sum of all moves when one is left out, in multiples of C."""
    weights = clip_weights(batch.norms(), clip_norm)
    others = weights * (1 - only(row, len(weights)))
    moved = contribution(batch, weights) - contribution(batch, others)
    return float(torch.linalg.vector_norm(moved)) / clip_norm


@EVERY_LEAF
@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    scale=st.sampled_from(SCALES),
    factors=st.sampled_from(["none", "full", "both vectors", "full and vector"]),
    scale_of_d=st.sampled_from(SCALES),
    beta=st.sampled_from([1e-3, 0.3, 0.999]),
)
def test_a_shift_that_cancels_is_never_measured_too_small(
    kind, seed, scale, factors, scale_of_d, beta
):
    rng = np.random.default_rng(seed)
    leaf = leaf_of(kind, rng, SHAPE, scale)
    assert_never_too_small(leaf, opposed(leaf, map_of(factors, rng, SHAPE, scale_of_d), beta))


@EVERY_LEAF
@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    factors=st.sampled_from(["none", "full", "both vectors", "full and vector"]),
    clip_norm=st.sampled_from([1e-30, 1e-12, 1e-3, 1.0]),
    beta=st.sampled_from([1e-3, 0.3, 0.999]),
)
def test_a_shift_that_cancels_passes_no_more_than_the_clip(kind, seed, factors, clip_norm, beta):
    """Also where the shift is 1e16 times C and more, so that rounding of M alone exceeds C."""
    rng = np.random.default_rng(seed)
    leaf = leaf_of(kind, rng, SHAPE)
    leaf_map = opposed(leaf, map_of(factors, rng, SHAPE), beta)
    batch = mapped(leaf, leaf_map)
    for row in range(SIZE):
        assert alone(batch, clip_norm, row) <= 1 + SLACK


@EVERY_LEAF
def test_a_cancelled_norm_is_raised_by_little(kind):
    """By less than a millionth of the terms that cancelled."""
    rng = np.random.default_rng(0)
    leaf = leaf_of(kind, rng, SHAPE)
    leaf_map = opposed(leaf, map_of("full", rng, SHAPE), 0.5)
    size = float(torch.linalg.vector_norm(leaf_map.offset))
    assert float(leaf.squares(leaf_map)[0].sqrt()) <= 1e-6 * size


def cancelling(rng, size, kind):
    """Rows x, 2x, -3x in random order, whose sum is 0, and one that is left if ``kind`` says so.

    x has few digits, so that they cancel exactly in float32, and x w does not.
    """
    x = size * rng.integers(1, 1000, size=(1, 3))
    rest = [rng.normal(size=(1, 3))] if kind == "but one" else []
    terms = np.concatenate([x, 2 * x, -3 * x, *rest]).astype(np.float32)
    return torch.from_numpy(rng.permutation(terms))


def over_time(rng, size, kind, *, wide):
    """One example whose positions cancel: by products of positions if ``wide``, else built."""
    b = cancelling(rng, size, kind)
    inputs = torch.from_numpy(rng.normal(size=(1, 1, 8 if wide else 2))).float()
    outputs = torch.zeros(1, len(b), 8 if wide else 3)
    outputs[0, :, :3] = b
    return OverTime(inputs.expand(1, len(b), -1).contiguous(), outputs)


def tokens(rng, size, kind):
    b = cancelling(rng, size, kind)
    return TokenRows(torch.zeros(1, len(b), dtype=torch.int64), b.unsqueeze(0), 2)


def several(rng, size, kind):
    """A tied parameter: uses that cancel."""
    b = cancelling(rng, size, kind)
    a = torch.from_numpy(rng.normal(size=(1, 2))).float()
    return TiedGradients(tuple(Outer(a, row.unsqueeze(0)) for row in b), 1)


WITHIN = {
    "built from positions": lambda *at: over_time(*at, wide=False),
    "by products of positions": lambda *at: over_time(*at, wide=True),
    "repeated words": tokens,
    "tied uses": several,
}
EVERY_WAY = pytest.mark.parametrize("build", WITHIN.values(), ids=WITHIN.keys())


@EVERY_WAY
@pytest.mark.parametrize("kind", ["all", "but one"])
@pytest.mark.parametrize("size", TERMS)
def test_positions_that_cancel_are_never_measured_too_small(build, kind, size):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        leaf = build(rng, size, kind)
        shape = tuple(leaf.weighted(torch.ones(1).double()).shape)
        for factors in ("none", "both vectors", "full"):
            assert_never_too_small(leaf, map_of(factors, rng, shape))


@EVERY_WAY
@pytest.mark.parametrize("size", TERMS)
def test_positions_that_cancel_pass_no_more_than_the_clip(build, size):
    for seed in range(10):
        leaf = build(np.random.default_rng(seed), size, "but one")
        batch = LayeredGradients({"w": leaf}, torch.ones(1, dtype=torch.bool))
        for clip_norm in (0.1, 1 / 3):
            assert alone(batch, clip_norm) <= 1 + SLACK


@pytest.mark.parametrize("size", [1.0, 1e5, 1e15, 1e30])
@pytest.mark.parametrize("form", ["built", "by products", "tokens", "tied"])
def test_positions_that_cancel_leave_the_other_examples_alone(form, size):
    """Among 50 examples, one whose huge positions cancel moves the sum by at most C.

    What it adds is summed with the others: rounding of its terms must not wipe them out.
    """
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(50, *shape, generator=generator)

    def with_opposites(rows):
        rows[25] *= size
        rows[25, 1], rows[25, 3] = -rows[25, 0], -rows[25, 2]
        return rows

    width = 32 if form == "by products" else 3
    if form == "tokens":
        words = torch.zeros(50, 4, dtype=torch.int64)
        leaf = TokenRows(words, with_opposites(draw(4, 3)), 2)
    elif form == "tied":
        b, a = with_opposites(draw(4, 3)), draw(2)
        leaf = TiedGradients((*(Outer(a, b[:, t]) for t in range(4)), Outer(draw(2), draw(3))), 50)
    else:
        outputs = draw(4, width)
        outputs[25] = outputs[25, 0]
        leaf = OverTime(with_opposites(draw(4, width)), outputs)
    batch = LayeredGradients({"w": leaf}, torch.ones(50, dtype=torch.bool))
    assert in_company(batch, 1.0, 25) <= 1 + 1e-6


def group_of(form, rows):
    """Rows of three numbers as gradients of one parameter."""
    if form == "stored":
        return MaterialisedGradients(rows)
    if form == "outer":
        return Outer(torch.ones(len(rows), 2), rows)
    if form == "over time":
        return OverTime(torch.ones(len(rows), 1, 2), rows.unsqueeze(1))
    if form == "tokens":
        return TokenRows(torch.zeros(len(rows), 1, dtype=torch.int64), rows.unsqueeze(1), 2)
    return SparseOuter(SparseRows.from_torch(torch.ones(len(rows), 2).to_sparse()), rows, 1)


GROUP_FORMS = pytest.mark.parametrize("form", ["stored", "outer", "over time", "tokens", "sparse"])


@GROUP_FORMS
@pytest.mark.parametrize("size", TERMS)
def test_members_that_cancel_pass_no_more_than_the_clip(form, size):
    """A group is clipped as one; its members can be as large as they like."""
    for seed in range(10):
        rows = cancelling(np.random.default_rng(seed), size, "but one")
        units = Units(torch.zeros(4, dtype=torch.int64), 1, 1 / 3)
        leaf = group_of(form, rows)
        batch = LayeredGradients({"w": leaf}, torch.ones(1, dtype=torch.bool), units)
        for clip_norm in (0.1, 0.3):
            assert alone(batch, clip_norm) <= 1 + SLACK


@GROUP_FORMS
@pytest.mark.parametrize("size", [1.0, 1e5, 1e15, 1e30])
def test_members_that_cancel_leave_the_other_groups_alone(form, size):
    rows = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    rows[24] *= size
    rows[25] = -rows[24]
    units = Units(torch.arange(50) // 2, 25, 0.5)
    leaf = group_of(form, rows)
    batch = LayeredGradients({"w": leaf}, torch.ones(25, dtype=torch.bool), units)
    assert in_company(batch, 1.0, 12) <= 1 + 1e-6
