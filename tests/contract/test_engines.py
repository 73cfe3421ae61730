"""One contract for all engines: norms and sums equal autograd on one example at a time."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adadps.data.examples import Examples
from adadps.engine.waist import Units, clip_weights, reduce
from adadps.tensors.sums import dense
from support import ground_truth
from support.engine_checks import objective_of, trainable, with_rows
from support.problems import PROBLEMS, linear_dense, linear_sparse

CASES = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS.keys())
SHAPES = ("full", "rank one", "one axis", "scalar")


def diagonal_for(params, rng, shape):
    """A positive D that broadcasts against each parameter."""
    found = {}
    for name, value in params.items():
        size = list(value.shape)
        if shape == "one axis":
            size = [1] * (value.ndim - 1) + size[-1:]
        elif shape == "scalar":
            size = [1] * value.ndim
        scale = np.exp(rng.normal(0, 1.5, size))
        if shape == "rank one" and value.ndim == 2:
            scale = np.exp(rng.normal(size=(size[0], 1)) + rng.normal(size=(1, size[1])))
        found[name] = torch.from_numpy(scale)
    return found


def mean_for(params, rng):
    return {name: torch.from_numpy(rng.normal(size=tuple(p.shape))) for name, p in params.items()}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, leaf in expected.items():
        scale = max(1.0, float(dense(leaf).abs().max()))
        torch.testing.assert_close(dense(found[name]), dense(leaf), rtol=2e-5, atol=2e-5 * scale)


@CASES
@settings(max_examples=12)
@given(
    seed=st.integers(0, 10_000),
    size=st.integers(1, 6),
    shape=st.sampled_from(SHAPES),
    beta=st.sampled_from([1.0, 0.9, 0.3]),
)
def test_norms_and_sums_equal_one_example_autograd(problem, seed, size, shape, beta):
    case, rng = problem(seed, size), np.random.default_rng(seed)
    params = trainable(case.model)
    diagonal, mean = diagonal_for(params, rng, shape), mean_for(params, rng)
    truth = ground_truth.gradients_one_by_one(case.model, case.loss, case.batch)
    batch = case.engine.per_unit(params, case.batch, None)
    if beta == 1.0:
        mean = {name: torch.zeros_like(value) for name, value in mean.items()}
    else:
        batch = batch.shift(beta, mean)
    batch = batch.scale(diagonal)
    truth = ground_truth.transformed(truth, beta, mean, diagonal)
    weights = torch.from_numpy(rng.normal(size=size))
    expected = ground_truth.norms(truth)
    torch.testing.assert_close(batch.norms(), expected, rtol=2e-5, atol=1e-5)
    assert_same(batch.weighted_sum(weights), ground_truth.weighted_sum(truth, weights))


@CASES
@settings(max_examples=8)
@given(seed=st.integers(0, 10_000), size=st.integers(1, 7), count=st.integers(1, 4))
def test_groups_are_clipped_as_one(problem, seed, size, count):
    case, rng = problem(seed, size), np.random.default_rng(seed)
    params = trainable(case.model)
    units = Units(torch.from_numpy(rng.integers(count, size=size)), count, 1 / 3)
    diagonal = diagonal_for(params, rng, "full")
    truth = ground_truth.gradients_one_by_one(case.model, case.loss, case.batch)
    zeros = {name: torch.zeros_like(value) for name, value in params.items()}
    truth = ground_truth.transformed(ground_truth.grouped(truth, units), 1.0, zeros, diagonal)
    batch = case.engine.per_unit(params, case.batch, units).scale(diagonal)
    torch.testing.assert_close(batch.norms(), ground_truth.norms(truth), rtol=2e-5, atol=1e-5)
    weights = torch.from_numpy(rng.normal(size=count))
    assert_same(batch.weighted_sum(weights), ground_truth.weighted_sum(truth, weights))


@CASES
@pytest.mark.parametrize("chunk", [None, 3])
def test_a_user_is_the_mean_of_their_rows(problem, chunk):
    """Before and after a scale and a shift, in one piece and in several."""
    case, rng = problem(3, 9), np.random.default_rng(3)
    users = torch.tensor([4, 0, 2, 2, 0, 2, 0, 0, 4])  # users 1 and 3 bring nothing
    held = objective_of(case)
    params = held.params()
    diagonal, mean = diagonal_for(params, rng, "full"), mean_for(params, rng)
    zero = {name: torch.zeros_like(value) for name, value in params.items()}
    ones = {name: torch.ones_like(value) for name, value in params.items()}
    truth = ground_truth.gradients_of_users(case.model, case.loss, case.batch, users)
    plain = held.per_unit(params, case.batch, Units(users, 5, None), chunk)
    for batch, expected in (
        (plain, ground_truth.transformed(truth, 1.0, zero, ones)),
        (
            plain.shift(0.8, mean).scale(diagonal),
            ground_truth.transformed(truth, 0.8, mean, diagonal),
        ),
    ):
        norms, there = batch.norms(), torch.tensor([0, 2, 4])
        assert norms[[1, 3]].tolist() == [0, 0]
        torch.testing.assert_close(norms[there], ground_truth.norms(expected), rtol=2e-5, atol=1e-5)
        weights = torch.from_numpy(rng.normal(size=5))
        assert_same(
            batch.weighted_sum(weights), ground_truth.weighted_sum(expected, weights[there])
        )


@CASES
@pytest.mark.parametrize("grouped", [False, True])
def test_physical_pieces_change_nothing(problem, grouped):
    case, rng = problem(3, 11), np.random.default_rng(3)
    units = Units(torch.from_numpy(rng.integers(4, size=11)), 4, 0.5) if grouped else None
    held = objective_of(case)
    params = held.params()
    diagonal, mean = diagonal_for(params, rng, "full"), mean_for(params, rng)

    def clipped(chunk):
        batch = held.per_unit(params, case.batch, units, chunk)
        batch = batch.shift(0.8, mean).scale(diagonal)
        return reduce(batch, lambda norms: clip_weights(norms, 0.7)), batch

    whole, whole_batch = clipped(None)
    pieces, pieces_batch = clipped(3)
    assert_same(pieces, whole)
    # The forward pass is float32: another batch size may round its last bit differently.
    torch.testing.assert_close(pieces_batch.norms(), whole_batch.norms(), rtol=1e-5, atol=1e-6)
    weights = torch.rand(len(whole_batch.norms()))
    assert_same(pieces_batch.weighted_sum(weights), whole_batch.weighted_sum(weights))


@CASES
def test_pieces_without_any_example_are_fine(problem):
    """Labels are drawn at random: a piece of the batch may consist of groups without members."""
    case = problem(3, 7)
    units = Units(torch.tensor([0, 0, 9, 0, 5, 0, 9]), 12, 0.5)
    held = objective_of(case)
    params = held.params()
    diagonal = diagonal_for(params, np.random.default_rng(3), "full")
    whole = held.per_unit(params, case.batch, units).scale(diagonal)
    pieces = held.per_unit(params, case.batch, units, 2).scale(diagonal)
    assert len(list(pieces.parts())) > 1
    torch.testing.assert_close(pieces.norms(), whole.norms(), rtol=1e-5, atol=1e-6)
    assert_same(pieces.weighted_sum(torch.ones(12)), whole.weighted_sum(torch.ones(12)))


@CASES
def test_mean_gradient_is_the_mean_of_the_examples(problem):
    case = problem(5, 6)
    params = trainable(case.model)
    truth = ground_truth.gradients_one_by_one(case.model, case.loss, case.batch)
    expected = ground_truth.weighted_sum(truth, torch.full((6,), 1 / 6))
    found = case.engine.mean_gradient(params, case.batch)
    assert_same({name: value.double() for name, value in found.items()}, expected)


@CASES
def test_hazard_10_other_examples_leave_a_gradient_bit_equal(problem):
    """Changing one example leaves the gradients of the others exactly as they were."""
    one, other = problem(7, 5), problem(8, 5)
    params = trainable(one.model)
    rows = torch.arange(5)
    first = one.batch.take(rows)
    mixed = with_rows(one.batch, other.batch, [2])
    for row in (0, 1, 3, 4):
        alone = torch.zeros(5, dtype=torch.float64)
        alone[row] = 1
        before = one.engine.per_unit(params, first, None).weighted_sum(alone)
        after = one.engine.per_unit(params, mixed, None).weighted_sum(alone)
        for name in before:
            assert torch.equal(dense(after[name]), dense(before[name]))


@pytest.mark.parametrize("problem", [linear_dense, linear_sparse])
@pytest.mark.parametrize("general", [False, True])
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_hazard_06_a_poisoned_example_contributes_nothing(problem, general, poison):
    """One example with a NaN or infinite gradient counts as absent; the others are untouched."""
    case = problem(1, 6, general=general)
    params = trainable(case.model)
    clean = case.engine.per_unit(params, case.batch, None)
    case.engine.loss = _poisoned(case.loss, case.batch.targets[2], poison)
    poisoned = case.engine.per_unit(params, case.batch, None)
    hit = _hit(case.batch.targets, case.batch.targets[2])
    others = (~hit).double()
    assert (poisoned.norms()[hit] == 0).all()
    assert others.sum() > 0
    assert_same(poisoned.weighted_sum(torch.ones(6)), clean.weighted_sum(others))


def _poisoned(loss, target, poison):
    def poisonous(outputs, targets):
        return loss(outputs, targets) * torch.where(_hit(targets, target), poison, 1.0)

    return poisonous


def _hit(targets, target):
    same = targets == target
    return same if same.ndim == 1 else same.all(1)


def test_poisoned_features_contribute_nothing():
    case = linear_dense(1, 4)
    params = trainable(case.model)
    features = case.batch.features.clone()
    features[1, 0] = float("nan")
    total = case.engine.per_unit(params, Examples(features, case.batch.targets), None)
    assert all(torch.isfinite(dense(v)).all() for v in total.weighted_sum(torch.ones(4)).values())


def test_hazard_07_a_zero_gradient_is_fine():
    assert clip_weights(torch.zeros(3), 1.0).tolist() == [1.0, 1.0, 1.0]


@settings(max_examples=100)
@given(
    seed=st.integers(0, 10_000),
    magnitude=st.floats(-12, 12),
    beta=st.sampled_from([1e-3, 0.5, 0.999]),
)
def test_a_computed_norm_is_never_too_small_where_terms_cancel(seed, magnitude, beta):
    """The shift form cancels; its float64 result must not fall below the true norm."""
    case = linear_dense(seed, 3)
    params = trainable(case.model)
    gradients = case.engine.per_unit(params, case.batch, None)
    first = gradients.weighted_sum(torch.tensor([1.0, 0.0, 0.0]))
    mean = {name: -beta / (1 - beta) * dense(value) for name, value in first.items()}
    scale = {name: torch.full([1] * v.ndim, 10.0**magnitude) for name, v in mean.items()}
    computed = gradients.shift(beta, mean).scale(scale).norms()
    exact = _exact_norms(gradients, beta, mean, scale)
    assert (computed >= exact * (1 - 1e-12)).all()


def _exact_norms(gradients, beta, mean, scale):
    found = []
    for row in range(3):
        alone = torch.zeros(3)
        alone[row] = 1
        one = gradients.weighted_sum(alone)
        parts = [
            (scale[n].double() * (beta * dense(g) + (1 - beta) * mean[n])).square().sum()
            for n, g in one.items()
        ]
        found.append(torch.stack(parts).sum().sqrt())
    return torch.stack(found)
