"""The lower bounds of audits: known values, and how often they exceed the truth.

Every simulated mechanism has a known ε. A bound at confidence 90 % may exceed it in one of ten
audits; the tests allow what a binomial law exceeds with probability 1e-6.
"""

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binom, norm

from adadps.audit.one_run_bound import best_of, best_ranking, one_run_epsilon, p_value
from adadps.audit.repeated_bound import HitCounts, at_least, at_most, bound, count
from adadps.errors import SettingError

CONFIDENCE = 0.9
TRUTHS = (0.2, 1.0, 3.0)


def allowed(audits):
    return int(binom.isf(1e-6, audits, 1 - CONFIDENCE))


def accuracy(epsilon):
    return 1 / (1 + math.exp(-epsilon))


def gaussian_epsilon(mu, delta):
    """Of a sum that moves by µ standard deviations (Balle and Wang 2018)."""

    def excess(epsilon):
        return (
            norm.cdf(mu / 2 - epsilon / mu)
            - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
            - delta
        )

    return brentq(excess, 0, 50)


# --- known values ---


def test_all_of_n_and_none_of_n_have_the_bounds_that_can_be_written_down():
    assert at_least(20, 20, 0.01) == pytest.approx(0.01 ** (1 / 20))
    assert at_most(0, 20, 0.01) == pytest.approx(1 - 0.01 ** (1 / 20))
    assert at_least(0, 20, 0.01) == 0
    assert at_most(20, 20, 0.01) == 1


@pytest.mark.parametrize("hits", [1, 7, 19])
def test_interval_ends_are_where_the_binomial_tail_is_the_error(hits):
    assert binom.sf(hits - 1, 20, at_least(hits, 20, 0.01)) == pytest.approx(0.01)
    assert binom.cdf(hits, 20, at_most(hits, 20, 0.01)) == pytest.approx(0.01)


def test_worlds_that_never_overlap_are_bounded_by_the_number_of_runs():
    """p ≥ a and q ≤ 1 - a with a = (error / 2)^(1/n), and ε ≥ log((a - δ) / (1 - a))."""
    a = 0.05 ** (1 / 50)
    seen = HitCounts(50, 50, 0, 50)
    found = seen.epsilon(delta=0.1, confidence=0.9)
    assert found == pytest.approx(math.log((a - 0.1) / (1 - a)))
    assert HitCounts(5, 50, 5, 50).epsilon(delta=0.0, confidence=0.9) == 0
    assert HitCounts(50, 50, 0, 50).epsilon(delta=0.99, confidence=0.9) == 0


def test_one_guess_can_be_computed_by_hand():
    """One canary, one guess, right: p + 2 δ (1 - p) with p = e^ε / (1 + e^ε)."""
    one = {"canaries": 1, "guesses": 1, "right": 1}
    assert p_value(**one, epsilon=0.0, delta=0.1) == pytest.approx(0.5 + 0.1)
    p = accuracy(1.0)
    assert p_value(**one, epsilon=1.0, delta=0.1) == pytest.approx(p + 0.2 * (1 - p))


def test_two_guesses_can_be_computed_by_hand():
    """ε = 0, two right of two: 1/4 + 2 m δ max(P[B = 1], P[B ≤ 1] / 2), with P[B = 1] = 1/2."""
    found = p_value(canaries=5, guesses=2, right=2, epsilon=0.0, delta=0.01)
    assert found == pytest.approx(1 / 4 + 2 * 5 * 0.01 * 1 / 2)


def test_no_right_guess_and_few_canaries_say_nothing():
    assert p_value(canaries=4, guesses=4, right=0, epsilon=2.0, delta=0.1) == 1
    few = {"canaries": 4, "guesses": 4, "right": 4}
    assert one_run_epsilon(**few, delta=0.0, confidence=0.95) == 0
    many = {"canaries": 1000, "guesses": 500, "right": 500}
    assert one_run_epsilon(**many, delta=0.3, confidence=0.95) == 0


def test_the_error_is_shared_between_numbers_of_guesses():
    right = [True] * 100
    alone = best_of(right, [100], delta=0.0, confidence=0.95)[0]
    shared = best_of(right, [100, 50], delta=0.0, confidence=0.95)[0]
    same = {"canaries": 100, "guesses": 100, "right": 100, "delta": 0.0}
    assert shared == one_run_epsilon(**same, confidence=1 - 0.05 / 2) < alone


def test_the_error_is_shared_between_rankings_too():
    tried = {"nothing": [False] * 100, "all": [True] * 100, "half": [True, False] * 50}
    found = best_ranking(tried, [50, 100], delta=0.0, confidence=0.95)
    alone = one_run_epsilon(
        canaries=100, guesses=100, right=100, delta=0.0, confidence=1 - 0.05 / 6
    )
    assert found == (pytest.approx(alone), 100, 100, "all")


@pytest.mark.parametrize(
    "wrong",
    [
        {"right": 5, "guesses": 4, "canaries": 4},
        {"right": 3, "guesses": 5, "canaries": 4},
        {"right": -1, "guesses": 5, "canaries": 9},
    ],
)
def test_counts_that_contradict_each_other_are_refused(wrong):
    with pytest.raises(SettingError, match="more right guesses"):
        p_value(**wrong, epsilon=1.0, delta=0.0)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 2.0])
def test_a_confidence_outside_of_zero_and_one_is_refused(confidence):
    world = {"score": np.arange(100.0)}
    with pytest.raises(SettingError, match="confidence"):
        bound(world, world, delta=0.0, confidence=confidence)
    with pytest.raises(SettingError, match="confidence"):
        one_run_epsilon(canaries=9, guesses=9, right=9, delta=0.0, confidence=confidence)


# --- coverage ---


def repeated_audits(audits, runs, draw, delta, seed=0):
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(audits):
        worlds = [{"score": draw(rng, there, runs)} for there in (1, 0)]
        found.append(bound(*worlds, delta=delta, confidence=CONFIDENCE)[0])
    return np.array(found)


@pytest.mark.parametrize("epsilon", TRUTHS)
def test_repeated_runs_of_randomised_response_seldom_exceed_the_truth(epsilon):
    def answers(rng, there, runs):
        truthful = rng.random(runs) < accuracy(epsilon)
        return np.where(truthful, there, 1 - there).astype(float)

    found = repeated_audits(300, 800, answers, delta=0.0)
    assert (found > epsilon).sum() <= allowed(300)
    assert found.mean() > epsilon - 0.35  # and it is no empty bound


@pytest.mark.parametrize(("mu", "delta"), [(1.0, 0.1), (2.0, 0.01)])
def test_repeated_runs_of_the_gaussian_mechanism_seldom_exceed_the_truth(mu, delta):
    def sums(rng, there, runs):
        return rng.normal(mu * there, 1, runs)

    found = repeated_audits(200, 1000, sums, delta)
    assert (found > gaussian_epsilon(mu, delta)).sum() <= allowed(200)
    assert found.mean() > 0.3 * gaussian_epsilon(mu, delta)


def test_where_nothing_leaks_many_observers_seldom_say_that_it_does():
    """The best of 300 scores and 101 thresholds looks good on the runs it was chosen by, only."""
    rng = np.random.default_rng(0)
    names = [str(number) for number in range(300)]
    exceeded = chosen_well = 0
    for _ in range(12):
        worlds = [{name: rng.normal(size=400) for name in names} for _ in range(2)]
        found, guess, _ = bound(*worlds, delta=0.0, confidence=CONFIDENCE)
        exceeded += found > 0
        looked_at = [{guess.observer: world[guess.observer][:100]} for world in worlds]
        counted = count(guess, *looked_at)
        chosen_well += counted.epsilon(delta=0.0, confidence=CONFIDENCE) > 0
    assert exceeded <= allowed(12)
    assert chosen_well > allowed(12)  # why the runs are split


@pytest.mark.parametrize("epsilon", TRUTHS)
def test_one_run_of_randomised_response_seldom_exceeds_the_truth(epsilon):
    rng, canaries = np.random.default_rng(0), 500
    right = rng.binomial(canaries, accuracy(epsilon), 400)
    found = np.array(
        [
            one_run_epsilon(
                canaries=canaries, guesses=canaries, right=int(v), delta=0.0, confidence=CONFIDENCE
            )
            for v in right
        ]
    )
    assert (found > epsilon).sum() <= allowed(400)
    assert found.mean() > epsilon - 0.6


@pytest.mark.parametrize("delta", [1e-3, 1e-2])
def test_one_run_that_sometimes_tells_everything_seldom_exceeds_the_truth(delta):
    """Randomised response that shows a coin with probability δ is (ε, δ)-private, not ε-private."""
    rng, canaries, epsilon = np.random.default_rng(0), 300, 0.5
    exceeded = 0
    for _ in range(200):
        shown = rng.random(canaries) < delta
        truthful = shown | (rng.random(canaries) < accuracy(epsilon))
        ordered = [*truthful[shown], *truthful[~shown]]
        found, _, _ = best_of(ordered, [10, 300], delta=delta, confidence=CONFIDENCE)
        exceeded += found > epsilon
    assert exceeded <= allowed(200)


def test_one_run_of_the_gaussian_mechanism_seldom_exceeds_the_truth():
    rng, canaries, mu, delta = np.random.default_rng(0), 500, 1.0, 1e-5
    truth, found = gaussian_epsilon(mu, delta), []
    for _ in range(200):
        coins = rng.random(canaries) < 0.5
        scores = rng.normal(mu * coins, 1)
        order = np.argsort(-np.abs(scores - mu / 2))
        right = ((scores > mu / 2) == coins)[order]
        found.append(best_of(right.tolist(), [50, 500], delta=delta, confidence=CONFIDENCE)[0])
    assert (np.array(found) > truth).sum() <= allowed(200)
    assert np.mean(found) > 0.5
