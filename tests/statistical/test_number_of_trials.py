"""The number of trials follows the law that is charged; settings are drawn uniformly.

χ² over cells with at least 50 expected draws each, the tail in one cell; each test states how often
it fails by chance. Laws are computed by scipy, not by the code under test.
"""

import math

import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant
from scipy import stats

from adadps.engine.noise.randomness import secure
from adadps.training.tuning import private_selection
from adadps.training.tuning.selection import NumberOfTrials
from adadps.training.tuning.trial import Trials
from support.tunings import RATES, tuned

FALSE_ALARM = 1e-7
DRAWS = 40_000
LAWS = [(m, s) for s in (0.0, 0.3, 1.0, 2.5, math.inf) for m in (1.05, 3.0, 12.0)]


def law_of(mean, shape):
    """P(k), for k = 0, 1, 2, ..., by scipy with the halting probability of the accountant."""
    count = np.arange(4000)
    if shape == math.inf:
        return stats.poisson(mean).pmf(count)
    gamma = rdp_privacy_accountant._gamma_truncated_negative_binomial(shape, mean)
    if shape == 0:
        return stats.logser(1 - gamma).pmf(count)
    mass = stats.nbinom(shape, gamma).pmf(count)
    mass[0] = 0.0
    return mass / mass.sum()


def require_law(counts, mass):
    """χ² of counts against probabilities, with rare cells at the end joined."""
    expected = mass * counts.sum()
    large = np.flatnonzero(expected >= 50)
    first, last = large[0], large[-1]
    assert counts[:first].sum() == 0 or expected[:first].sum() > 0
    observed = np.append(counts[first : last + 1], counts[last + 1 :].sum() + counts[:first].sum())
    awaited = np.append(expected[first : last + 1], counts.sum() - expected[first : last + 1].sum())
    if awaited[-1] < 5:  # too rare a rest for χ²: with the cell before
        observed = np.append(observed[:-2], observed[-2:].sum())
        awaited = np.append(awaited[:-2], awaited[-2:].sum())
    statistic = ((observed - awaited) ** 2 / awaited).sum()
    assert stats.chi2(len(awaited) - 1).sf(statistic) > FALSE_ALARM, (observed, awaited)


@pytest.mark.parametrize(("mean", "shape"), LAWS)
def test_hazard_21_the_number_of_trials_follows_the_law_that_is_charged(mean, shape):
    law, rng = NumberOfTrials(mean=mean, shape=shape), secure().generator
    drawn = np.array([law.draw(rng) for _ in range(DRAWS)])
    assert drawn.min() >= (0 if shape == math.inf else 1)
    mass = law_of(mean, shape)
    require_law(np.bincount(drawn, minlength=4000), mass)
    deviation = math.sqrt(mass @ (np.arange(4000) - mean) ** 2 / DRAWS)
    assert abs(drawn.mean() - mean) < 5.4 * deviation  # normal: 1e-7, skew aside


@pytest.mark.parametrize("shape", [0.0, 1e-9, 0.3, 1.0, 2.5, 400.0])
@pytest.mark.parametrize("mean", [1.0, 1.0 + 1e-9, 1.5, 30.0, 1e6])
def test_hazard_21_no_more_trials_are_drawn_than_are_charged(mean, shape):
    """log(1/γ) of what is drawn is at most the accountant's, and almost the same."""
    charged = rdp_privacy_accountant._gamma_truncated_negative_binomial(shape, mean)
    halting = NumberOfTrials(mean=mean, shape=shape).halting
    assert halting >= charged * (1 - 1e-15)
    assert halting == pytest.approx(charged, rel=1e-6)


@pytest.mark.parametrize("shape", [0.0, 1.0, 50.0, 5000.0, math.inf])
def test_large_means_are_drawn_without_underflow(shape):
    law, rng = NumberOfTrials(mean=3000.0, shape=shape), secure().generator
    drawn = [law.draw(rng) for _ in range(20)]
    assert all(1 <= count < 3000 * 60 * 10 for count in drawn)
    if shape >= 50:  # a narrow law: standard deviation at most 430
        assert 1500 < np.mean(drawn) < 4500


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, 3.0])
def test_a_mean_of_one_is_always_one(shape):
    law, rng = NumberOfTrials(mean=1.0, shape=shape), secure().generator
    assert {law.draw(rng) for _ in range(1000)} == {1}


def test_hazard_21_settings_are_drawn_uniformly_and_independently(monkeypatch):
    """χ² of 3000 settings, and of their pairs of neighbours: false alarms 1e-7 each."""
    seen, finished = [], []
    perform = Trials.perform

    def recorded(self, trial, accountant):
        seen.append(RATES["lr"].index(trial.setting["lr"]))
        if not finished:  # one is enough: only what is drawn matters here
            finished.append(perform(self, trial, accountant))
        return finished[0]

    monkeypatch.setattr(NumberOfTrials, "draw", lambda _self, _rng: 3000)
    monkeypatch.setattr(Trials, "perform", recorded)
    tuned(selection=private_selection(mean_trials=3000, shape=1))
    drawn = np.array(seen)
    assert len(drawn) == 3000
    assert stats.chisquare(np.bincount(drawn, minlength=3)).pvalue > FALSE_ALARM
    pairs = np.bincount(3 * drawn[:-1] + drawn[1:], minlength=9)
    assert stats.chisquare(pairs).pvalue > FALSE_ALARM
