"""Private selection: the best of a secret number of trials, and nothing about the others."""

import json
import math
import re

import numpy as np
import pytest
import torch
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NeighboringRelation,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    rdp,
)
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from torch import nn

from adadps import (
    Accountant,
    Budget,
    DiskLedger,
    Relation,
    dp_sgd,
    fixed_size,
    on_public,
    poisson,
    privatize,
    shuffled,
)
from adadps.accounting.contract import Grouping
from adadps.accounting.epsilon import epsilon_of
from adadps.accounting.events import event_of, text_of
from adadps.accounting.ledger.summary import summarise
from adadps.accounting.renyi import renyi_curve
from adadps.errors import ContractError, NoTrialError, SettingError
from adadps.training.tuning import (
    TuningResult,
    calibrate_tuning,
    fixed_grid,
    highest,
    private_accuracy,
    private_selection,
)
from adadps.training.tuning.selection import NumberOfTrials, most_expensive
from support.tunings import FEATURES, LABELS, NOISE, SAMPLER, STEPS, make, scores, tuned

RDP = Accountant.RDP
ADD = Relation.ADD_OR_REMOVE_ONE
STEP = PoissonSampledDpEvent(0.1, GaussianDpEvent(4.0))
GEOMETRIC = private_selection(mean_trials=4, shape=1)


def selected(count, monkeypatch, *, values=(0.125, 0.875, 0.25, 0.375, 0.5), **options):
    """A tuning whose secret number of trials is ``count``."""
    monkeypatch.setattr(NumberOfTrials, "draw", lambda _self, _rng: count)
    return tuned(values=values, **{"selection": GEOMETRIC, **options})


# --- the price ---


@pytest.mark.parametrize("shape", [0, 0.5, 1, 3, math.inf])
@pytest.mark.usefixtures("real_accounting")
def test_hazard_21_the_total_is_that_of_dp_accounting(shape, monkeypatch):
    score = private_accuracy("v", FEATURES, LABELS, examples=60, noise_multiplier=9.0)
    selection = private_selection(mean_trials=8, shape=shape)
    found = selected(1, monkeypatch, selection=selection, score=score)
    trial = ComposedDpEvent([SelfComposedDpEvent(STEP, STEPS), GaussianDpEvent(9.0)])
    event = RepeatAndSelectDpEvent(trial, 8.0, shape)
    expected = rdp.RdpAccountant().compose(event).get_epsilon(1e-3)
    assert found.privacy.accountant == "rdp"
    assert found.privacy.epsilon == pytest.approx(expected, rel=1e-12)


@pytest.mark.usefixtures("real_accounting")
def test_hazard_21_the_total_follows_the_formula_of_the_paper():
    """Theorem 2 of Papernot and Steinke (2022) by hand: one Gaussian, geometric, mean m = 1/γ.

    ε'(λ) = ε(λ) + 2 min_λ̂ [(1 - 1/λ̂) ε(λ̂) + log(m)/λ̂] + log(m)/(λ - 1),  ε(λ) = λ/(2σ²),
    and then ε'(λ) + log(1 - 1/λ) - log(δλ)/(λ - 1) at the best λ.
    """
    sigma, mean, delta = 4.0, 10.0, 1e-3
    found = tuned(
        sampler=shuffled(examples=60, expected_size=60),  # one step is an epoch: Gaussian(σ)
        steps=1,
        selection=private_selection(mean_trials=mean, shape=1),
        values=[0.5] * 10_000,
    )
    order = np.array([x for x in rdp.RdpAccountant()._orders if x > 1])
    one = order / (2 * sigma**2)
    constant = 2 * ((1 - 1 / order) * one + math.log(mean) / order).min()
    whole = one + constant + math.log(mean) / (order - 1)
    epsilon = (whole + np.log1p(-1 / order) - np.log(delta * order) / (order - 1)).min()
    assert found.privacy.epsilon == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.parametrize("shape", [0, 0.5, 1, 4])
def test_hazard_21_pure_privacy_is_multiplied_by_two_plus_the_shape(shape):
    """Corollary 3 of the paper, through our own accounting: the factor does not grow with m."""
    one = LaplaceDpEvent(1 / 0.5)
    selection = private_selection(mean_trials=1000, shape=shape)
    ((event, count),) = selection.charges([one], ADD)
    assert count == 1
    curve = rdp.RdpAccountant(orders=[1e10]).compose(event)
    assert curve.get_epsilon(1e-10) == pytest.approx((2 + shape) * 0.5, abs=1e-6)


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0])
def test_hazard_25_selection_stands_on_exact_divergences_where_they_are_tiny(shape):
    """dp-accounting rounds these to zero or below; a selection never costs less than a trial."""
    trial = SelfComposedDpEvent(PoissonSampledDpEvent(1e-9, GaussianDpEvent(422.0)), 1000)
    rounded = rdp.RdpAccountant().compose(trial).rdp
    one = renyi_curve(trial, ADD).values
    best = renyi_curve(RepeatAndSelectDpEvent(trial, 8.0, shape), ADD).values
    assert (np.asarray(rounded) <= 0).any()
    assert (one > 0).all()
    assert (best >= one).all()
    with pytest.raises(SettingError, match="math domain"):  # refused, not understated
        renyi_curve(RepeatAndSelectDpEvent(trial, 8.0, math.inf), ADD)


def test_many_trials_cost_less_than_a_grid_of_as_many():
    budget = Budget(2.0, 1e-5)
    terms = {"settings": 32, "budget": budget, "accountant": RDP}
    sampler = poisson(examples=10_000, expected_size=100)
    grid = calibrate_tuning(sampler, 500, selection=fixed_grid(), **terms)
    chosen = private_selection(mean_trials=64, shape=1)
    assert calibrate_tuning(sampler, 500, selection=chosen, **terms) < grid / 1.5


def test_what_calibration_finds_fits():
    budget = Budget(1.5, 1e-3)
    sigma = calibrate_tuning(
        SAMPLER, STEPS, selection=GEOMETRIC, settings=3, budget=budget, accountant=RDP
    )
    noise = privatize(clip_norm=1.0, noise_multiplier=sigma)
    found = tuned(
        maker=lambda setting: (nn.Linear(3, 2), dp_sgd(noise, lr=setting["lr"])),
        selection=GEOMETRIC,
        values=[0.5] * 10_000,
        budget=budget,
        delta=None,
    )
    assert 1.49 < found.privacy.epsilon <= 1.5


# --- every trial at the price of the worst ---


def test_hazard_21_settings_with_less_noise_set_the_price_of_all():
    def maker(setting):
        noise = privatize(clip_norm=1.0, noise_multiplier=setting["noise"])
        return nn.Linear(3, 2), dp_sgd(noise, lr=0.1)

    values = [0.5] * 1000
    both = tuned(maker=maker, grid={"noise": [9.0, 3.0]}, selection=GEOMETRIC, values=values)
    worst = tuned(maker=maker, grid={"noise": [3.0]}, selection=GEOMETRIC, values=values)
    assert both.privacy.epsilon == worst.privacy.epsilon


def test_hazard_21_settings_whose_prices_cross_are_refused():
    """A sampled event explodes at high orders, a plain one is dearer at low ones."""
    sampled = SelfComposedDpEvent(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0)), 100)
    plain = GaussianDpEvent(4.0)
    with pytest.raises(ContractError, match="curves cross"):
        most_expensive([sampled, plain], ADD)
    assert most_expensive([sampled, NoOpDpEvent(), sampled], ADD) == sampled


# --- what stays secret ---


def test_hazard_21_only_the_best_trial_leaves(monkeypatch, tmp_path, capfd):
    weights = []

    def maker(setting):
        model, method = make(setting)
        weights.append(model)
        return model, method

    found = selected(5, monkeypatch, maker=maker)
    path = found.save(tmp_path / "run")
    text = "\n".join(
        [
            str(found),
            repr(found),
            json.dumps(found.result.describe()),
            (path / "result.json").read_text(encoding="utf-8"),
        ]
    )
    assert found.score == 0.875
    for loser in ("0.125", "0.375"):
        assert loser not in text
    assert [entry.value for entry in found.result.history] == [0.875]
    assert found.trials is None
    assert found.privacy.tuning_trials is None
    assert torch.equal(found.result.params["weight"], weights[6 + 1].weight)
    assert capfd.readouterr() == ("", "")
    assert "number secret" in text
    assert "must stay secret" in text
    assert str(TuningResult.load(path)) == str(found)


def test_hazard_21_nothing_depends_on_the_number_of_trials(monkeypatch, tmp_path):
    """With the same best trial, two and five trials leave the same result and ledger."""
    left = []
    for count in (2, 5):
        torch.manual_seed(3)
        path = tmp_path / f"{count}.ledger"
        found = selected(count, monkeypatch, grid={"lr": [0.1]}, ledger=DiskLedger(path))
        held = summarise(path, delta=1e-3)
        for run in held["runs"]:
            run["run"] = re.sub("[0-9a-f]{16}", "", run["run"])
        held["ledger"] = ""
        left.append((found.result.describe(), str(found), held, torch.rand(3).tolist()))
    assert left[0] == left[1]
    assert left[0][2]["entries"] == 1
    assert "RepeatAndSelect" in left[0][2]["runs"][0]["events"][0]["event"]


def test_hazard_21_first_weights_do_not_tell_which_trial_was_the_best(monkeypatch):
    """Under a seed of torch, trials still begin with weights that nobody can recompute."""
    begun = []
    for _ in range(2):
        seen = []

        def maker(setting, seen=seen):
            model, method = make(setting)
            seen.append(model.weight.detach().clone())
            return model, method

        torch.manual_seed(7)
        selected(3, monkeypatch, maker=maker)
        begun += seen[6:]
    assert len({tuple(weight.flatten().tolist()) for weight in begun}) == 6


def test_hazard_21_it_is_paid_before_the_number_is_drawn(monkeypatch, tmp_path):
    ledger = DiskLedger(tmp_path / "a.ledger")
    seen = []

    def draw(_self, _rng):
        seen.append(ledger.entries)
        raise KeyboardInterrupt

    monkeypatch.setattr(NumberOfTrials, "draw", draw)
    with pytest.raises(KeyboardInterrupt):
        tuned(selection=GEOMETRIC, ledger=ledger)
    assert seen == [1]
    assert ledger.entries == 1, "the charge stands"


@pytest.mark.usefixtures("real_accounting")
def test_no_trial_at_all_is_possible_under_the_poisson_law_and_costs_the_same(
    tmp_path, monkeypatch
):
    ledger = DiskLedger(tmp_path / "a.ledger")
    selection = private_selection(mean_trials=2, shape=math.inf)
    with pytest.raises(NoTrialError, match="The charge stands"):
        selected(0, monkeypatch, selection=selection, ledger=ledger)
    assert ledger.entries == 1
    event = RepeatAndSelectDpEvent(SelfComposedDpEvent(STEP, STEPS), 2.0, math.inf)
    expected = rdp.RdpAccountant().compose(event).get_epsilon(1e-3)
    assert ledger.epsilon(1e-3) == pytest.approx(expected, rel=1e-12)


def test_the_best_of_equal_trials_and_of_diverged_ones(monkeypatch):
    assert selected(3, monkeypatch, values=(math.nan, 0.25, math.inf)).score == 0.25
    diverged = selected(2, monkeypatch, values=(math.nan, math.nan))
    assert diverged.score is None
    assert "diverged" in str(diverged)


def test_one_setting_and_one_trial_at_the_least():
    found = tuned(
        grid={"lr": [0.1]},
        selection=private_selection(mean_trials=1, shape=1),
        values=[0.5],  # a second trial would find no score
    )
    assert found.setting == {"lr": 0.1}
    assert found.privacy.epsilon >= found.trial_epsilon


@pytest.mark.parametrize(
    ("mean", "shape"),
    [(0.99, 1), (0, 1), (-1, 0), (math.nan, 1), (math.inf, 1), (4, -0.5), (4, math.nan)],
)
def test_laws_without_a_theorem_are_refused(mean, shape):
    with pytest.raises(SettingError, match="Expected"):
        private_selection(mean_trials=mean, shape=shape)


def test_a_relation_that_rdp_cannot_price_is_refused():
    sampler = poisson(examples=60, expected_size=6, relation=Relation.REPLACE_ONE)
    with pytest.raises(ContractError, match="rdp for private selection"):
        tuned(selection=GEOMETRIC, sampler=sampler)


@pytest.mark.parametrize("shape", [0.0, 1.0, 0.1 + 0.2, math.inf])
def test_the_event_comes_back_from_a_ledger_exactly(shape):
    event = RepeatAndSelectDpEvent(ComposedDpEvent([SelfComposedDpEvent(STEP, 3)]), 7.5, shape)
    assert event_of(text_of(event)) == event


def test_replace_one_keeps_its_factor_of_two():
    """Fixed-size batches charge half the noise inside of a selection, too."""
    found = tuned(
        sampler=fixed_size(examples=60, expected_size=6), selection=GEOMETRIC, values=[0.5] * 1000
    )
    one = fixed_size(examples=60, expected_size=6).run_event(
        NOISE.noise_multiplier, STEPS, RDP, Grouping.NONE
    )
    accountant = rdp.RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    expected = accountant.compose(RepeatAndSelectDpEvent(one, 4.0, 1.0)).get_epsilon(1e-3)
    assert found.privacy.epsilon == pytest.approx(expected, rel=1e-12)
    assert found.privacy.epsilon > epsilon_of(
        one, delta=1e-3, accountant=RDP, relation=Relation.REPLACE_ONE
    )


def test_a_ledger_with_a_budget_takes_a_selection_after_a_run(tmp_path):
    ledger = DiskLedger(tmp_path / "a.ledger", budget=Budget(3.0, 1e-3))
    ledger.open("before", ADD, RDP)
    ledger.authorise(GaussianDpEvent(20.0), ahead=1)
    found = tuned(selection=GEOMETRIC, values=[0.5] * 1000, ledger=ledger, delta=None)
    assert ledger.entries == 2
    assert ledger.epsilon(1e-3) > found.privacy.epsilon


def test_the_best_score_wins_wherever_it_stands(monkeypatch):
    seen = []

    def maker(setting):
        seen.append(setting["lr"])
        return make(setting)

    score = highest(scores(0.25, 0.5, 0.75, 0.125), "merit")
    found = selected(4, monkeypatch, maker=maker, score=score)
    assert found.score == 0.75
    assert found.setting == {"lr": seen[6 + 2]}


def test_looking_at_public_data_costs_nothing_more(monkeypatch):
    other = on_public("other", FEATURES, LABELS, merit=lambda *_: 0.0)
    with_other = selected(2, monkeypatch, evaluate=[other])
    assert with_other.privacy.epsilon == selected(2, monkeypatch).privacy.epsilon
