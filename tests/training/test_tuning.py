"""Tuning on private data is paid for: fixed grids, and what all tunings have in common."""

import math

import numpy as np
import pytest
import torch
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    NeighboringRelation,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    pld,
    rdp,
)
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from scipy import stats
from torch import nn

from adadps import (
    Accountant,
    Budget,
    BudgetError,
    DiskLedger,
    accuracy,
    adadps,
    dp_sgd,
    fit,
    load_result,
    on_held_out,
    on_public,
    privatize,
    reproducible_not_private,
    side,
)
from adadps.accounting.ledger import MemoryLedger
from adadps.accounting.ledger.summary import summarise
from adadps.data.provenance import AssumedPublic
from adadps.engine.noise.randomness import REPRODUCIBLE_MARK, secure
from adadps.errors import ContractError, DataError
from adadps.methods import plain_sgd
from adadps.training.tuning import (
    TuningResult,
    calibrate_tuning,
    fixed_grid,
    highest,
    private_accuracy,
    private_selection,
)
from adadps.training.tuning.trial import Trials
from support.ledgers import spend_all
from support.problems import cross_entropy
from support.tunings import (
    DATA,
    FEATURES,
    LABELS,
    NOISE,
    SAMPLER,
    STEPS,
    make,
    nothing_drawn,  # noqa: F401
    tuned,
)

PLD, RDP = Accountant.PLD, Accountant.RDP
STEP = PoissonSampledDpEvent(0.1, GaussianDpEvent(4.0))
SELECTION = private_selection(mean_trials=4, shape=1)


def by_rdp(event, delta=1e-3):
    return rdp.RdpAccountant().compose(event).get_epsilon(delta)


# --- the total ---


@pytest.mark.usefixtures("real_accounting")
def test_hazard_21_a_fixed_grid_costs_all_its_trials_by_pld():
    found = tuned()
    accountant = pld.PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, 1e-4)
    expected = accountant.compose(SelfComposedDpEvent(STEP, 3 * STEPS)).get_epsilon(1e-3)
    assert found.privacy.accountant == "pld"
    assert found.privacy.epsilon == pytest.approx(expected, rel=1e-9)
    assert found.privacy.mechanism_epsilon == found.privacy.epsilon
    assert found.trial_epsilon < expected


@pytest.mark.usefixtures("real_accounting")
def test_hazard_21_a_fixed_grid_costs_all_its_trials_by_rdp():
    found = tuned(accountant=RDP)
    expected = by_rdp(SelfComposedDpEvent(STEP, 3 * STEPS))
    assert found.privacy.epsilon == pytest.approx(expected, rel=1e-9)
    assert found.trial_epsilon == pytest.approx(by_rdp(SelfComposedDpEvent(STEP, STEPS)), rel=1e-9)


def test_hazard_21_settings_with_different_noise_are_each_composed_at_their_price():
    def maker(setting):
        noise = privatize(clip_norm=1.0, noise_multiplier=setting["noise"])
        return nn.Linear(3, 2), dp_sgd(noise, lr=0.1)

    found = tuned(maker=maker, grid={"noise": [2.0, 4.0]}, accountant=RDP, values=(1.0, 2.0))
    accountant = rdp.RdpAccountant()
    for noise in (2.0, 4.0):
        accountant.compose(PoissonSampledDpEvent(0.1, GaussianDpEvent(noise)), STEPS)
    assert found.privacy.epsilon == pytest.approx(accountant.get_epsilon(1e-3), rel=1e-9)
    assert found.privacy.noise_multiplier == 4.0


def released_before():
    return side.fixed(
        {"weight": (torch.tensor([1.0, 2.0, 3.0]), 1)},
        source="a noised histogram",
        public_because="it was released with noise",
        event=GaussianDpEvent(7.0),
    )


def measured_now():
    return side.noisy_frequencies(
        (FEATURES > 0).float(), clip_norm=1.0, noise_multiplier=7.0, floor=0.1, source="the data"
    )


@pytest.mark.parametrize("selection", [fixed_grid(), SELECTION])
@pytest.mark.parametrize("source", [released_before, measured_now])
def test_hazard_21_side_information_with_a_price_is_paid_in_every_trial(source, selection):
    known = source()
    found = tuned(
        maker=lambda setting: (nn.Linear(3, 2), adadps(known, NOISE, lr=setting["lr"])),
        selection=selection,
        accountant=RDP,
        values=[0.5] * 1000,
    )
    trial = ComposedDpEvent([GaussianDpEvent(7.0), SelfComposedDpEvent(STEP, STEPS)])
    grid = selection == fixed_grid()
    whole = SelfComposedDpEvent(trial, 3) if grid else RepeatAndSelectDpEvent(trial, 4.0, 1.0)
    assert found.privacy.epsilon == pytest.approx(by_rdp(whole), rel=1e-9)
    assert found.trial_epsilon == pytest.approx(by_rdp(trial), rel=1e-9)


def test_hazard_21_a_private_score_is_part_of_every_trial():
    score = private_accuracy("validation", FEATURES, LABELS, examples=60, noise_multiplier=9.0)
    found = tuned(score=score, accountant=RDP)
    accountant = rdp.RdpAccountant().compose(STEP, 3 * STEPS).compose(GaussianDpEvent(9.0), 3)
    assert found.privacy.epsilon == pytest.approx(accountant.get_epsilon(1e-3), rel=1e-9)
    assert "part of ε" in found.looked_at[0]["protection"]
    assert found.looked_at[0]["declared"] == "private"


def test_hazard_21_a_private_score_is_noised_on_the_public_grid():
    """100 scores of one model: mean and variance by normal and χ² laws, false alarms 1e-7 each."""
    model = nn.Linear(3, 2)
    result = fit(model, cross_entropy, DATA, method=make({"lr": 0.1})[1], sampler=SAMPLER, steps=1)
    score = private_accuracy("validation", FEATURES, LABELS, examples=60, noise_multiplier=9.0)
    noise = secure()
    counts = np.array([score.value(result, model, noise) * 60 for _ in range(100)])
    lattice = counts * 2**7  # 2^(3 - 10) is the grid's width
    assert lattice == pytest.approx(np.rint(lattice), abs=1e-6)
    right = accuracy(result.outputs(model, FEATURES), LABELS) * 60
    assert abs(counts.mean() - right) < 5.4 * 9.0 / 10
    low, high = stats.chi2(100).ppf([5e-8, 1 - 5e-8])
    assert low < (((counts - right) / 9.0) ** 2).sum() < high


def test_a_private_score_counts_right_answers_and_no_infinite_ones():
    class Silent:
        def release(self, total, *, standard_deviation):
            assert standard_deviation == 9.0
            return total

    model = nn.Linear(3, 2)
    result = fit(model, cross_entropy, DATA, method=make({"lr": 0.1})[1], sampler=SAMPLER, steps=1)
    score = private_accuracy("v", FEATURES, LABELS, examples=120, noise_multiplier=9.0)
    expected = accuracy(result.outputs(model, FEATURES), LABELS) / 2  # 120 are declared
    assert score.value(result, model, Silent()) == pytest.approx(expected)
    result.params["bias"][0] = math.inf
    assert score.value(result, model, Silent()) == 0.0


# --- paid beforehand ---


@pytest.mark.usefixtures("nothing_drawn")
@pytest.mark.parametrize("selection", [fixed_grid(), SELECTION])
def test_hazard_21_a_total_beyond_the_budget_is_refused_before_anything_is_drawn(selection):
    one = calibrate_tuning(
        SAMPLER, STEPS, selection=fixed_grid(), settings=1, budget=Budget(1.0, 1e-3), accountant=RDP
    )

    def maker(setting):
        noise = privatize(clip_norm=1.0, noise_multiplier=one)
        return nn.Linear(3, 2), dp_sgd(noise, lr=setting["lr"])

    with pytest.raises(BudgetError, match=r"3 settings within epsilon = 1 .* Nothing was drawn"):
        tuned(
            maker=maker, selection=selection, accountant=RDP, delta=None, budget=Budget(1.0, 1e-3)
        )


@pytest.mark.usefixtures("nothing_drawn")
@pytest.mark.parametrize("selection", [fixed_grid(), SELECTION])
def test_hazard_21_a_total_beyond_what_is_left_is_refused_without_a_charge(selection, tmp_path):
    ledger = DiskLedger(tmp_path / "a.ledger", budget=Budget(2.0, 1e-3))
    ledger.open("before", SAMPLER.relation, RDP)
    spent = spend_all(ledger, GaussianDpEvent(20.0), ahead=100)
    with pytest.raises(BudgetError, match="already spent"):
        tuned(selection=selection, ledger=ledger, delta=None)
    assert ledger.entries == spent


@pytest.mark.parametrize("accountant", [PLD, RDP])
def test_hazard_21_what_calibration_finds_fits_and_a_little_less_does_not(accountant):
    budget = Budget(1.5, 1e-3)
    score = private_accuracy("v", FEATURES, LABELS, examples=60, noise_multiplier=12.0)
    sigma = calibrate_tuning(
        SAMPLER,
        STEPS,
        selection=fixed_grid(),
        settings=3,
        budget=budget,
        accountant=accountant,
        score=score,
    )

    def tuned_with(noise_multiplier):
        noise = privatize(clip_norm=1.0, noise_multiplier=noise_multiplier)
        return tuned(
            maker=lambda setting: (nn.Linear(3, 2), dp_sgd(noise, lr=setting["lr"])),
            score=score,
            accountant=accountant,
            budget=budget,
            delta=None,
        )

    assert 1.49 < tuned_with(sigma).privacy.epsilon <= 1.5
    if accountant is RDP:  # PLD takes seconds for every price
        with pytest.raises(BudgetError):
            tuned_with(sigma - 2e-4)


def test_hazard_21_every_trial_is_on_the_ledger_and_the_ledger_agrees_with_the_result(tmp_path):
    path = tmp_path / "a.ledger"
    found = tuned(ledger=DiskLedger(path))
    held = summarise(path, delta=1e-3)
    assert held["entries"] == 3
    assert [run["steps_planned"] for run in held["runs"]] == [3]
    assert held["epsilon"]["rdp"] == pytest.approx(found.privacy.epsilon, rel=1e-9)
    assert "sgd(0.1) | privatize" in held["runs"][0]["chain"]


def test_hazard_21_a_crash_leaves_the_charge(tmp_path):
    path = tmp_path / "a.ledger"
    with pytest.raises(ZeroDivisionError):
        tuned(score=highest(on_public("p", FEATURES, LABELS, merit=lambda *_: 1 / 0), "merit"),
              ledger=DiskLedger(path))  # fmt: skip
    assert summarise(path, delta=1e-3)["entries"] == 1


def test_a_total_that_is_refused_leaves_even_a_pld_ledger_as_it_was():
    ledger = MemoryLedger(Budget(0.2, 1e-3))
    with pytest.raises(BudgetError, match="a total of"):
        tuned(ledger=ledger, delta=None, steps=40)
    assert tuned(ledger=ledger, delta=None, steps=1).privacy.epsilon <= 0.2


def test_a_pld_ledger_takes_a_fixed_grid_as_one_plan_and_nothing_after_it():
    ledger = MemoryLedger(Budget(3.0, 1e-3))
    tuned(ledger=ledger, delta=None)
    with pytest.raises(ContractError, match="one run on a PLD ledger"):
        tuned(ledger=ledger, delta=None)


def test_an_rdp_ledger_takes_one_tuning_after_the_other_until_it_is_full():
    ledger = MemoryLedger(Budget(0.8, 1e-3))
    count = 0
    while count < 50:
        try:
            tuned(ledger=ledger, delta=None, accountant=RDP)
        except BudgetError:
            break
        count += 1
    assert 2 <= count < 50
    assert ledger.entries == 3 * count
    assert ledger.epsilon(1e-3) <= 0.8


def test_a_trial_cannot_charge_more_than_was_paid(monkeypatch):
    """A `make` that turns to another noise after it was priced is refused."""
    calls = []

    def maker(setting):
        calls.append(setting)
        noise = privatize(clip_norm=1.0, noise_multiplier=4.0 if len(calls) <= 6 else 1.0)
        return nn.Linear(3, 2), dp_sgd(noise, lr=0.1)

    with pytest.raises(ContractError, match="depend only on the setting"):
        tuned(maker=maker)
    calls.clear()
    planned = Trials.plan
    monkeypatch.setattr(  # even if that check were blind
        Trials,
        "plan",
        lambda self, setting, _method, by: planned(self, setting, make(setting)[1], by),
    )
    monkeypatch.setattr("adadps.training.tuning.trial.str", lambda _method: "", raising=False)
    with pytest.raises(BudgetError, match="tuning has paid for"):
        tuned(maker=maker)


# --- what the result says ---


def test_hazard_21_the_result_shows_total_trials_and_what_was_looked_at(tmp_path):
    test = on_held_out("test", FEATURES, LABELS, accuracy=accuracy, every=1)
    found = tuned(evaluate=[test])
    assert found.setting == {"lr": 0.2}
    assert found.score == 0.9
    assert found.privacy.tuning_trials == 3
    assert [(row.setting["lr"], row.score) for row in found.trials] == [
        (0.1, 0.1),
        (0.2, 0.9),
        (0.3, 0.5),
    ]
    assert [(entry["data"], entry["declared"], entry["used"]) for entry in found.looked_at] == [
        ("pilot", "public", "to choose"),
        ("test", "held out", "shown beside"),
    ]
    assert "not part of ε for the records of this data" in found.looked_at[1]["protection"]
    assert f"ε = {found.privacy.epsilon:.3f}" in str(found.privacy)
    assert "3 trials of tuning included" in str(found.privacy)
    assert "lr = 0.2" in str(found)
    assert found.result.settings["lr"] == 0.2
    assert len([entry for entry in found.result.history if entry.data == "test"]) == STEPS


def test_hazard_21_a_saved_tuning_comes_back_whole(tmp_path):
    found = tuned(values=(0.1, math.nan, 0.5))
    loaded = TuningResult.load(found.save(tmp_path / "run"))
    assert loaded.privacy == found.privacy
    assert str(loaded) == str(found)
    assert loaded.trials == found.trials
    assert load_result(tmp_path / "run").privacy.epsilon == found.privacy.epsilon
    assert torch.equal(loaded.result.params["weight"], found.result.params["weight"])


@pytest.mark.parametrize(
    "facts", ["two classes", ["two classes"], AssumedPublic(others=["two classes"])]
)
def test_what_is_assumed_public_stands_in_the_result(facts):
    assert "two classes" in tuned(assumed_public=facts).privacy.assumed_public


def test_the_result_of_a_single_run_is_no_tuning():
    result = fit(nn.Linear(3, 2), cross_entropy, DATA, method=make({"lr": 1.0})[1],
                 sampler=SAMPLER, steps=1)  # fmt: skip
    assert result.privacy.tuning is None
    with pytest.raises(DataError, match="single run"):
        TuningResult(result)


@pytest.mark.parametrize("selection", [fixed_grid(), SELECTION])
def test_hazard_21_one_setting_without_privacy_exposes_the_whole_tuning(selection, tmp_path):
    def maker(setting):
        private = dp_sgd(NOISE, lr=0.1)
        return nn.Linear(3, 2), private if setting["private"] else plain_sgd(lr=0.1)

    found = tuned(
        maker=maker,
        grid=[{"private": True}, {"private": False}],
        selection=selection,
        values=range(100, 0, -1),  # the first trial is the best
        ledger=DiskLedger(tmp_path / "a.ledger"),
    )
    assert found.privacy.epsilon == math.inf
    assert found.privacy.mechanism_epsilon is None
    assert "NOT PRIVATE" in str(found)
    assert any("adds no noise" in reason for reason in found.privacy.not_private_because)
    assert DiskLedger(tmp_path / "a.ledger").epsilon(1e-3) == math.inf
    assert TuningResult.load(found.save(tmp_path / "run")).privacy == found.privacy
    with pytest.raises(BudgetError, match="adds no noise"):
        tuned(maker=maker, grid=[{"private": True}, {"private": False}], selection=selection,
              budget=Budget(9.0, 1e-3), delta=None)  # fmt: skip


@pytest.mark.parametrize("selection", [fixed_grid(), SELECTION])
def test_hazard_21_a_known_seed_marks_the_whole_tuning(selection):
    found = tuned(selection=selection, randomness=reproducible_not_private(1), values=[0.5] * 1000)
    assert found.privacy.epsilon == found.trial_epsilon == math.inf
    assert found.privacy.not_private_because == (REPRODUCIBLE_MARK,)
    assert 0 < found.privacy.mechanism_epsilon < math.inf
    with pytest.raises(BudgetError, match="known seed"):
        tuned(selection=selection, randomness=reproducible_not_private(1), budget=Budget(9.0, 1e-3),
              delta=None)  # fmt: skip
