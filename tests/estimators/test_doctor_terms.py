"""The doctor's terms of the convex theorem against numbers worked out by hand."""

import math

import numpy as np
import pytest
from scipy import sparse

from adadps import Budget, side
from adadps.estimators.doctor import (
    before_the_clip,
    both_sides,
    into_the_features,
    no_side_information,
    public_gradients,
)
from adadps.estimators.doctor.candidates import of_typical_norm_one, weighted_rows
from adadps.estimators.doctor.case import case_of
from adadps.estimators.doctor.terms import (
    BoundTerms,
    MomentsAtPoint,
    combined,
    gradient_norms,
    moments_at,
    solution,
    terms_of,
)

ROWS = np.array([[1.0, 0.0], [0.0, 2.0]])
LABELS = np.array([0, 1])


def test_moments_at_zero_by_hand():
    """p = (1/2, 1/2): residuals ∓1/2, so the gradients are ∓x/2 and ±x/2."""
    found = moments_at(np.zeros((2, 2)), ROWS, LABELS)
    np.testing.assert_allclose(found.residuals, [[-0.5, 0.5], [0.5, -0.5]])
    np.testing.assert_allclose(found.mean, [[-0.25, 0.5], [0.25, -0.5]])
    np.testing.assert_allclose(found.square, [[0.125, 0.5], [0.125, 0.5]])
    # batches of 4: 0.0625 + (0.125 - 0.0625)/4 and 0.25 + (0.5 - 0.25)/4
    np.testing.assert_allclose(found.of_batches(4), [[0.078125, 0.3125]] * 2)


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_matrix])
def test_norms_of_scaled_gradients_by_hand(make):
    residuals = np.array([[-0.5, 0.5], [0.5, -0.5]])
    inverse = np.array([[2.0, 1.0], [4.0, 1.0]])  # D by class and feature
    found = gradient_norms(residuals, make(ROWS), inverse)
    np.testing.assert_allclose(found, [math.sqrt(0.25 * 4 + 0.25 * 16), math.sqrt(0.25 * 8)])


def test_terms_by_hand():
    """A = (1/2, 3/2) for both classes, sigma/b = 0.1, batches of one row."""
    optimum = np.array([[1.0, 0.0], [0.0, 2.0]])
    moments = moments_at(np.zeros((2, 2)), ROWS, LABELS)
    A = np.array([[0.5, 1.5], [0.5, 1.5]])
    found = combined(optimum, [moments], [A], ROWS, noise_per_step=0.1, expected_size=1)
    assert found.diameter == pytest.approx(math.sqrt(5))
    assert found.total == pytest.approx(4)
    # E[g²] = 0.125 and 0.5 for batches of one: 0.125/0.25 = 0.5 and 0.5/2.25
    assert found.ratio == pytest.approx(0.5)
    # largest |g/A|: row 1: √(2 · (0.5/0.5)²) = √2; row 2: √(2 · (1/1.5)²) < √2
    assert found.noise == pytest.approx(0.01 * 2 * 4)
    assert found.weighted_diameter == pytest.approx(0.5 * 1 + 1.5 * 4)
    assert found.weighted_gradient == pytest.approx(2 * (0.125 / 0.5 + 0.5 / 1.5))
    assert found.bound == pytest.approx(math.sqrt(5) * math.sqrt(2 * 4 * (0.5 * 4 + 0.08)))
    assert found.sharper == pytest.approx(math.sqrt(2 * 6.5 * (found.weighted_gradient + 0.08)))


def test_the_bound_is_the_least_of_the_theorems_expression_over_learning_rates():
    terms = BoundTerms(1.5, 0.3, 7.0, 0.2, 2.0, 0.4)
    alphas = np.logspace(-3, 3, 20_001)
    theorem = (1.5**2 / (2 * alphas) + alphas * 0.3) * 7.0 + alphas * 0.2
    proof = 2.0 / (2 * alphas) + alphas * (0.4 + 0.2)
    assert theorem.min() == pytest.approx(terms.bound, rel=1e-6)
    assert proof.min() == pytest.approx(terms.sharper, rel=1e-6)


@pytest.mark.parametrize("factor", [1e-3, 50.0])
def test_terms_do_not_depend_on_the_the_scale_of_side_information(factor):
    rng = np.random.default_rng(0)
    moments = MomentsAtPoint(
        rng.normal(size=(2, 3)) / 9, rng.random((2, 3)) + 1, rng.random((5, 2))
    )
    A, rows = rng.random((2, 3)) + 0.1, rng.random((5, 3))

    def bounds(scaled):
        found = combined(
            np.ones((2, 3)), [moments], [scaled], rows, noise_per_step=0.1, expected_size=8
        )
        return found.bound, found.sharper

    assert bounds(A) == pytest.approx(bounds(factor * A))


def test_the_sharper_line_is_never_above_the_bound():
    rng = np.random.default_rng(1)
    for _ in range(20):
        rows, labels = rng.normal(size=(30, 4)), rng.integers(3, size=30)
        optimum = solution(rows, labels, 3)
        moments = moments_at(optimum, rows, labels)
        A = np.exp(rng.normal(size=(3, 4)))
        found = combined(optimum, [moments], [A], rows, noise_per_step=0.05, expected_size=10)
        assert found.sharper <= found.bound * (1 + 1e-9)


def test_the_solution_has_no_slope_left():
    rng = np.random.default_rng(2)
    rows = sparse.random(60, 8, density=0.5, format="csr", random_state=3)
    labels = rng.integers(3, size=60)
    found = solution(rows, labels, 4)  # the last class does not occur
    slope = moments_at(found, rows, labels).mean + found / 60
    assert np.abs(slope).max() < 1e-4


def test_uniform_side_information_has_the_terms_of_dp_sgd():
    rng = np.random.default_rng(4)
    rows, labels = rng.normal(size=(60, 5)), rng.integers(2, size=60)
    case = case_of(rows, labels, examples=1000, budget=Budget(1.0, 1e-5))
    same = side.fixed({"weight": (np.full(5, 0.2), 1)}, source="none", public_because="constant")
    plain = terms_of(case, no_side_information(), noise_multiplier=2.0, expected_size=100)
    for candidate in (before_the_clip("a", same), both_sides("b", same)):
        found = terms_of(case, candidate, noise_multiplier=2.0, expected_size=100)
        assert found.relative_to(plain) == pytest.approx(dict.fromkeys(found.relative_to(plain), 1))


def test_doors_change_rows_as_the_chain_does():
    rows = np.tile(np.array([[3.0, 4.0], [0.0, 2.0]]), (20, 1))
    case = case_of(rows, [0, 1] * 20, examples=1000, budget=Budget(1.0, 1e-5))
    known = side.fixed({"weight": (np.array([1.0, 0.5]), 1)}, source="a", public_because="b")
    both = weighted_rows(case, both_sides("both", known))
    np.testing.assert_allclose(both[:2], [[3, 8], [0, 4]])
    unit = weighted_rows(case, into_the_features("features", known))
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1)
    np.testing.assert_allclose(unit[0], np.array([3, 8]) / math.sqrt(73))
    np.testing.assert_allclose(weighted_rows(case, before_the_clip("before", known)), rows)
    lengths = np.linalg.norm(of_typical_norm_one(rows), axis=1)
    assert np.median(lengths) == pytest.approx(1)


def test_more_noise_per_step_makes_every_bound_larger():
    rng = np.random.default_rng(5)
    case = case_of(
        rng.normal(size=(80, 5)), rng.integers(2, size=80), examples=9, budget=Budget(1, 1e-5)
    )
    for candidate in (no_side_information(), public_gradients()):
        less, more = (
            terms_of(case, candidate, noise_multiplier=sigma, expected_size=10)
            for sigma in (1.0, 2.0)
        )
        assert more.noise == pytest.approx(4 * less.noise)
        assert more.bound > less.bound
        assert more.sharper > less.sharper
