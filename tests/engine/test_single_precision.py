"""Sums of wide layers in float32: their rounding is bounded, and the bound is charged."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import adadps
from adadps.engine.rules.layered import LayeredGradients
from adadps.engine.rules.outer import Outer, OverTime
from adadps.engine.waist import Units, clip_weights
from adadps.report.card import card_of
from adadps.tensors.squares import multiplies_all_digits, sum_dtype
from adadps.tensors.sums import MOST_CHARGED, OuterSum, SinglePrecision, dense

WIDTH, OUTPUTS = 400, 200  # more than 2^16 weights
SINGLE = SinglePrecision.for_batches(256, clip_norm=1.0)
FROM_ROUNDING = 2.0**-24


def gradients(rows, seed=0, spread=1.0):
    """Per-example gradients of a wide linear layer; a large ``spread`` makes some rows dominate."""
    draws = torch.Generator().manual_seed(seed)
    sizes = torch.exp(spread * torch.randn(rows, 1, generator=draws))
    a = torch.randn(rows, WIDTH, generator=draws) * sizes
    b = torch.randn(rows, OUTPUTS, generator=draws)
    return Outer(a, b)


def batch_of(leaf, single=SINGLE, rows=None, **options):
    count = len(leaf.inputs)
    held = LayeredGradients({"weight": leaf}, torch.ones(count, dtype=torch.bool), **options)
    return held if single is None else held.in_single(single, count if rows is None else rows)


def clipped_sum(batch, clip_norm=1.0):
    return dense(batch.weighted_sum(clip_weights(batch.norms(), clip_norm))["weight"])


def exact_sum(leaf, weights):
    b = leaf.output_gradients.double() * weights.unsqueeze(1)
    return b.T @ leaf.inputs.double()


@pytest.mark.parametrize("size", [1, 8, 64, 256, 512, 600])
def test_the_charge_is_public_and_small(size):
    held = SinglePrecision.for_batches(size, clip_norm=1.0)
    parts = -(-held.most_rows // held.terms)
    roundings = (held.terms + parts + 4) * FROM_ROUNDING
    assert held.charge >= 2 * roundings * held.most_rows
    assert held.charge <= MOST_CHARGED
    assert held.most_rows >= size


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    rows=st.sampled_from([16, 100, 137, 138, 270, 288]),
    spread=st.sampled_from([0.1, 1.0, 5.0]),
    scaled=st.sampled_from(["not", "by input", "by output", "full"]),
)
def test_rounding_stays_within_half_the_charge(seed, rows, spread, scaled):
    leaf = gradients(rows, seed, spread)
    draws = torch.Generator().manual_seed(seed)
    shape = {"not": (1, 1), "by input": (1, WIDTH), "by output": (OUTPUTS, 1)}
    scale = torch.exp(torch.randn(shape.get(scaled, (OUTPUTS, WIDTH)), generator=draws))
    batch = batch_of(leaf).scale({"weight": scale})
    weights = clip_weights(batch.norms(), 1.0)
    summed = batch.weighted_sum(weights)["weight"]
    assert isinstance(summed, OuterSum)
    assert summed.rows(0, OUTPUTS).dtype == torch.float32
    error = dense(summed) - scale.double() * exact_sum(leaf, weights)
    assert 0 < float(error.norm()) <= SINGLE.charge / 2


def test_neighbours_are_within_the_clip_norm_for_any_rounding_within_the_bound():
    """Rounding that is as bad as it may be, in opposite directions, still leaves them within C."""
    leaf = gradients(SINGLE.most_rows)
    batch = batch_of(leaf)
    norms, weights = batch.norms(), clip_weights(batch.norms(), 1.0)
    lengths = leaf.inputs.double().norm(dim=1) * leaf.output_gradients.double().norm(dim=1)
    contributions = weights * lengths
    assert torch.allclose(norms, lengths * (1 + SINGLE.charge), rtol=1e-9)
    roundings = SINGLE.terms - (-SINGLE.most_rows // SINGLE.terms) + 4
    worst = roundings * FROM_ROUNDING * float(contributions.sum())
    assert float(contributions.max()) + 2 * worst <= 1.0


def test_norms_are_the_same_whatever_was_drawn():
    leaf = gradients(20)
    few = batch_of(leaf, rows=20).norms()
    many = batch_of(leaf, rows=SINGLE.most_rows + 1).norms()
    assert torch.equal(few, many)
    assert torch.allclose(few, batch_of(leaf, single=None).norms() * (1 + SINGLE.charge))


def test_larger_batches_are_summed_in_double():
    leaf = gradients(32)
    batch = batch_of(leaf, rows=SINGLE.most_rows + 1)
    weights = clip_weights(batch.norms(), 1.0)
    assert torch.equal(clipped_sum(batch), exact_sum(leaf, weights))


def test_terms_that_can_cancel_are_summed_in_double_and_not_charged():
    leaf = gradients(32)
    shifted = batch_of(leaf).shift(0.5, {"weight": torch.ones(OUTPUTS, WIDTH)})
    assert shifted.charge == 0
    grouped = batch_of(leaf, units=Units(torch.arange(32) // 2, 16, None))
    assert grouped.charge == 0
    over_time = OverTime(leaf.inputs.unsqueeze(1), leaf.output_gradients.unsqueeze(1))
    assert batch_of(over_time).charge == 0
    for batch in (shifted, batch_of(over_time)):
        summed = batch.weighted_sum(torch.ones(32))["weight"]
        assert dense(summed).dtype == torch.float64
        assert getattr(summed, "terms_in_single", None) is None


@pytest.mark.parametrize("size", [1e16, 1e30])
def test_huge_factors_are_multiplied_in_double(size):
    leaf = Outer(torch.full((16, WIDTH), size), torch.full((16, OUTPUTS), 1 / size))
    batch = batch_of(leaf)
    weights = clip_weights(batch.norms(), 1.0)
    assert torch.equal(clipped_sum(batch), exact_sum(leaf, weights))


def test_products_with_fewer_digits_are_not_used():
    leaf = gradients(32)
    batch = batch_of(leaf)
    weights = clip_weights(batch.norms(), 1.0)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(clipped_sum(batch), exact_sum(leaf, weights))
    torch.set_float32_matmul_precision("medium")
    try:
        assert torch.equal(clipped_sum(batch), exact_sum(leaf, weights))
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("clip_norm", [1e-10, float("inf")])
def test_extreme_clip_norms_are_summed_in_double(clip_norm):
    assert SinglePrecision.for_batches(256, clip_norm=clip_norm) is None


@pytest.mark.parametrize(("width", "charged"), [(4, False), (WIDTH, True)])
def test_the_card_states_the_charge(width, charged):
    torch.manual_seed(0)
    rows = torch.randn(300, width)
    result = adadps.fit(
        torch.nn.Sequential(torch.nn.Linear(width, OUTPUTS), torch.nn.Linear(OUTPUTS, 2)),
        adadps.losses.cross_entropy,
        adadps.examples(rows, (rows[:, 0] > 0).long()),
        method=adadps.dp_sgd(lr=0.1),
        clip_norm=1.0,
        batch_size=64,
        steps=2,
        budget=adadps.Budget(epsilon=2, delta=1e-4),
    )
    mechanism = card_of(result.describe())["mechanism"]
    expected = SinglePrecision.for_batches(64, clip_norm=1.0).charge
    assert mechanism.get("most_rounding_charge") == (expected if charged else None)


def test_a_large_diagonal_would_multiply_what_underflow_took():
    leaf = gradients(16)
    huge = torch.full((OUTPUTS, WIDTH), 1e20)
    summed = batch_of(leaf).scale({"weight": huge}).weighted_sum(torch.ones(16))["weight"]
    assert isinstance(summed, OuterSum)
    assert summed.rows(0, OUTPUTS).dtype == torch.float64


def refuses():
    raise RuntimeError("mixed settings of float32 precision")


def test_float64_where_torch_does_not_tell_how_it_multiplies(monkeypatch):
    monkeypatch.setattr(torch, "get_float32_matmul_precision", refuses)
    assert not multiplies_all_digits(torch.device("cpu"))
    assert SINGLE.terms_for(16, torch.device("cpu")) is None
    assert sum_dtype(torch.ones(1000, 1000)) is torch.float64
