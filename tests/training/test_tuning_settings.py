"""Scores, settings and makers of models: what a tuning takes, and what it refuses unpaid."""

import math
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn

from adadps import (
    Accountant,
    Budget,
    accuracy,
    fixed_size,
    on_public,
)
from adadps.accounting.ledger import MemoryLedger
from adadps.errors import ContractError, DataError, SettingError
from adadps.training.tuning import (
    fixed_grid,
    highest,
    lowest,
    private_accuracy,
    private_selection,
    search,
)
from adadps.training.tuning.price import settings_of
from adadps.training.tuning.score import tolerant
from support.tunings import (
    FEATURES,
    LABELS,
    RATES,
    make,
    nothing_drawn,  # noqa: F401
    scores,
    tuned,
)

PLD = Accountant.PLD
SELECTION = private_selection(mean_trials=4, shape=1)


# --- scores ---


@pytest.mark.parametrize(
    ("values", "best"),
    [
        ((0.5, 0.5, 0.5), 0.1),  # ties: the first
        ((0.2, 0.5, 0.5), 0.2),
        ((math.nan, 0.1, 0.0), 0.2),
        ((math.nan, -7.0, math.inf), 0.2),  # what is not finite never wins
        ((math.nan, math.nan, math.nan), 0.1),
    ],
)
def test_ties_and_scores_that_are_not_finite(values, best):
    found = tuned(values=values)
    assert found.setting == {"lr": best}
    expected = [value if math.isfinite(value) else None for value in values]
    assert [row.score for row in found.trials] == expected


def test_the_lowest_score_can_be_the_best():
    score = lowest(scores(0.3, 0.1, math.nan), "merit")
    assert tuned(score=score).setting == {"lr": 0.2}


def test_hazard_21_a_diverged_model_is_the_worst_and_does_not_crash():
    """Accuracy takes NaN for the first class, which would win here."""

    def careful(outputs, targets):
        assert bool(torch.isfinite(outputs).all()), "a metric may refuse NaN"
        return 0.01

    evaluation = on_public("p", FEATURES, torch.zeros(60).long(), accuracy=accuracy, other=careful)
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.bias[0] = math.nan
    assert accuracy(model(FEATURES), torch.zeros(60).long()) == 1.0
    measured = tolerant(evaluation).metrics
    assert math.isnan(measured["accuracy"](model(FEATURES), torch.zeros(60).long()))
    found = tuned(score=highest(evaluation, "accuracy"), grid={"lr": [1e45, 0.0001]})
    assert found.setting == {"lr": 0.0001}
    assert found.trials[0].score is None


# --- settings and makers ---


def test_a_grid_of_one_setting():
    found = tuned(grid=[{}], maker=lambda _: make({"lr": 0.1}), values=[0.5])
    assert found.setting == {}
    assert found.privacy.tuning_trials == 1
    assert found.privacy.epsilon == pytest.approx(found.trial_epsilon, rel=1e-9)
    assert "1 trial of tuning included" in str(found.privacy)


def test_combinations_of_values():
    assert settings_of({"a": [1, 2], "b": ["x", None]}) == [
        {"a": 1, "b": "x"},
        {"a": 1, "b": None},
        {"a": 2, "b": "x"},
        {"a": 2, "b": None},
    ]


@pytest.mark.parametrize(
    "grid",
    [[], {}, {"lr": []}, {"lr": 0.1}, {"lr": "0.1"}, [0.1], [{"lr": math.nan}], [{"lr": [1]}],
     [{"side": object()}], [{1: 2}], [{"lr": np.float32(1.0)}]],
)  # fmt: skip
def test_grids_that_could_not_stand_in_a_result_are_refused(grid):
    with pytest.raises(SettingError, match="Expected settings"):
        tuned(grid=grid)


@pytest.mark.parametrize("selection", [fixed_grid(), SELECTION])
def test_hazard_21_trials_that_share_weights_are_refused_before_paying(selection):
    shared, ledger = nn.Linear(3, 2), MemoryLedger()

    def maker(setting):
        return nn.Sequential(shared), make(setting)[1]

    with pytest.raises(ContractError, match="new model for every trial"):
        tuned(maker=maker, selection=selection, ledger=ledger)
    assert ledger.entries == 0


def test_frozen_layers_may_be_shared():
    frozen = nn.Linear(3, 3).requires_grad_(False)
    found = tuned(maker=lambda s: (nn.Sequential(frozen, nn.Linear(3, 2)), make(s)[1]))
    assert set(found.result.params) == {"1.weight", "1.bias"}


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        ({"maker": lambda _: nn.Linear(3, 2)}, ContractError),
        ({"maker": lambda s: (nn.Linear(4, 2), make(s)[1])}, DataError),
        ({"score": highest(on_public("p", [[1.0]], [0], merit=accuracy), "merit")}, DataError),
        ({"evaluate": [on_public("p", [[1.0]], [0], merit=accuracy)]}, DataError),
        ({"epochs": 2}, ContractError),
        ({"steps": None}, ContractError),
        ({"budget": Budget(1.0, 1e-5), "ledger": MemoryLedger()}, ContractError),
        ({"delta": 2.0}, SettingError),
        ({"selection": SELECTION, "accountant": PLD}, ContractError),
        ({"selection": SELECTION, "progress": True}, ContractError),
        ({"sampler": fixed_size(examples=60, expected_size=6), "accountant": PLD}, ContractError),
    ],
)
@pytest.mark.usefixtures("nothing_drawn")
def test_bad_input_is_refused_before_anything_is_drawn(broken, error):
    with pytest.raises(error, match="Expected"):
        tuned(**broken)


def test_an_unknown_metric_is_refused():
    with pytest.raises(SettingError, match="Known: merit"):
        highest(scores(1.0), "accuracy")


@pytest.mark.parametrize("broken", [{"examples": 0}, {"noise_multiplier": 0.0}])
def test_a_private_score_without_noise_or_examples_is_refused(broken):
    given = {"examples": 60, "noise_multiplier": 9.0, **broken}
    with pytest.raises(SettingError):
        private_accuracy("v", FEATURES, LABELS, **given)


def test_planning_leaves_the_generator_of_torch_alone():
    """The first trial's weights are those that a single run would begin with."""
    seen = []

    def maker(setting):
        model, method = make(setting)
        seen.append(model.weight.detach().clone())
        return model, method

    torch.manual_seed(5)
    expected = nn.Linear(3, 2).weight.detach().clone()
    torch.manual_seed(5)
    tuned(maker=maker)
    assert torch.equal(seen[2 * len(RATES["lr"])], expected)  # each is made twice to compare


def test_a_fixed_grid_shows_its_progress(monkeypatch):
    bars = []

    @contextmanager
    def bar(total, shown, label):
        bars.append([total, shown, label, 0])

        class Bar:
            def advance(self):
                bars[-1][3] += 1

        yield Bar()

    monkeypatch.setattr(search, "progress_bar", bar)
    tuned(progress=True)
    assert bars == [[3, True, "tuning", 3]]
