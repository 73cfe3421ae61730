"""Rényi divergences of the Poisson-sampled Gaussian, however small: hazard 25."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adadps.accounting.renyi import MOST_NOISE, SAFETY, renyi_divergences

ORDERS = np.array([1.1, 1.5, 1.9, 2.0, 2.1, 3.7, 10.0, 10.9, 63.0, 1024.0])
RATES = st.floats(-9, -1e-3).map(lambda x: 10**x)
SIGMAS = st.floats(math.log10(0.05), 5).map(lambda x: 10**x)


def by_hand(rate, sigma, order):
    """Return the integral of the definition, with fifty digits."""
    with mpmath.workdps(50):
        q, s, a = mpmath.mpf(rate), mpmath.mpf(sigma), mpmath.mpf(order)

        def density(z):
            ratio = 1 - q + q * mpmath.exp((2 * z - 1) / (2 * s * s))
            return mpmath.npdf(z, 0, s) * ratio**a

        low, high = -16 * s, a + 16 * s
        pieces = max(40, int((high - low) / s))
        places = [low + (high - low) * k / pieces for k in range(pieces + 1)]
        return mpmath.log(mpmath.quad(density, places, maxdegree=5)) / (a - 1)


@pytest.mark.parametrize(
    ("rate", "sigma", "order"),
    [
        (1e-9, 422.0, 1.1),  # 3e-24
        (1e-9, 1e4, 1.5),  # 7e-27
        (1e-8, 0.3, 1.3),
        (1e-6, 1.0, 2.5),
        (0.01, 1.0, 1.1),
        (0.01, 1.0, 7.0),
        (0.5, 10.0, 3.7),
        (0.3, 0.3, 5.0),
        (0.999, 0.3, 5.5),
        (0.9, 1e4, 10.9),
    ],
)
def test_hazard_25_the_divergence_is_that_of_the_definition(rate, sigma, order):
    found, expected = (
        renyi_divergences(rate, sigma, np.array([order]))[0],
        by_hand(rate, sigma, order),
    )
    assert expected <= found <= expected * (1 + 2 * SAFETY)


@given(rate=RATES, sigma=SIGMAS)
@settings(max_examples=50)
def test_the_divergence_of_order_two_has_a_closed_form(rate, sigma):
    excess = 2 * math.log(rate) + math.log(math.expm1(1 / sigma**2))
    found = renyi_divergences(rate, sigma, np.array([2.0]))[0]
    assert found == pytest.approx(np.logaddexp(0, excess), rel=3e-9, abs=0)


@given(rate=RATES, sigma=SIGMAS, order=st.integers(2, 10))
@settings(max_examples=50)
def test_sum_and_integral_agree(rate, sigma, order):
    """One formula is for whole orders, the other for all others."""
    whole, beside = renyi_divergences(rate, sigma, np.array([order, order + 1e-10]))
    assert beside == pytest.approx(whole, rel=1e-6, abs=0)


@given(rate=RATES, sigma=SIGMAS, factor=st.floats(1.001, 3))
@settings(max_examples=60)
def test_hazard_25_divergences_are_positive_and_monotone(rate, sigma, factor):
    spent = renyi_divergences(rate, sigma, ORDERS)
    assert np.isfinite(spent).all()
    assert (spent > 0).all()
    assert (np.diff(spent) >= -1e-8 * spent[1:]).all(), "divergences grow with their order"
    more = renyi_divergences(min(rate * factor, 1 - 1e-12), sigma, ORDERS)
    assert (more >= spent * (1 - 1e-8)).all()
    noisier = renyi_divergences(rate, sigma * factor, ORDERS)
    assert (noisier <= spent * (1 + 1e-8)).all()


@given(rate=RATES, sigma=SIGMAS)
@settings(max_examples=50)
def test_sampling_never_costs_more_than_taking_all(rate, sigma):
    assert (renyi_divergences(rate, sigma, ORDERS) <= ORDERS / (2 * sigma**2) * (1 + 1e-7)).all()


def test_endless_noise_costs_what_the_most_does():
    most = renyi_divergences(0.1, MOST_NOISE, ORDERS)
    assert (renyi_divergences(0.1, 1e300, ORDERS) == most).all()
