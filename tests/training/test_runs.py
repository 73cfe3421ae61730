"""Runs: the loop of one's own, evaluation, history, pieces, groups, warm starts, devices."""

import numpy as np
import pytest
import torch
from torch import nn

from adadps import (
    Accountant,
    Budget,
    BudgetError,
    PrivateRun,
    Relation,
    accuracy,
    dp_sgd,
    examples,
    fit,
    fixed_size,
    load_result,
    on_held_out,
    on_public,
    poisson,
    privatize,
    public_examples,
    shuffled,
    side,
)
from adadps.accounting.ledger import MemoryLedger
from adadps.errors import ContractError
from adadps.methods import dp_sgd_weighted, plain_sgd, warm_start
from adadps.methods.stages import by_label, in_advance
from support.problems import cross_entropy, squared

PRIVACY = privatize(clip_norm=1.0, noise_multiplier=1.0)


def separable(size=300, width=6, seed=0):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(size, width)).astype(np.float32)
    return examples(features, (features[:, 0] > 0).astype(np.int64))


def zeros(width=6, classes=2):
    layer = nn.Linear(width, classes)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def test_a_loop_of_ones_own_equals_fit():
    data, sampler = separable(), poisson(examples=300, expected_size=50)
    from adadps import reproducible_not_private

    one, other = zeros(), zeros()
    options = {"method": dp_sgd(PRIVACY, lr=0.5), "sampler": sampler, "steps": 5}
    fit(one, cross_entropy, data, randomness=reproducible_not_private(1), **options)
    run = PrivateRun(other, cross_entropy, data, randomness=reproducible_not_private(1), **options)
    for batch in run.batches():
        run.step(batch)
    assert torch.equal(one.weight, other.weight)
    assert run.result().privacy.steps == 5


def test_the_batch_shows_nothing_of_its_content():
    run = PrivateRun(
        zeros(),
        cross_entropy,
        separable(),
        method=dp_sgd(PRIVACY, lr=0.5),
        sampler=poisson(examples=300, expected_size=50),
        steps=1,
    )
    batch = next(run.batches())
    assert vars(batch).keys() == {"run", "index", "life"}


def test_a_batch_that_was_not_used_is_offered_again_without_a_new_charge():
    ledger = MemoryLedger()
    run = PrivateRun(
        zeros(),
        cross_entropy,
        separable(),
        method=dp_sgd(PRIVACY, lr=0.5),
        sampler=poisson(examples=300, expected_size=50),
        steps=3,
        ledger=ledger,
    )
    assert next(run.batches()) == next(run.batches())
    assert ledger.entries == 1


def test_history_holds_declared_data_only_and_curves_by_step():
    data = separable()
    result = fit(
        zeros(),
        cross_entropy,
        data,
        method=plain_sgd(0.5),
        sampler=shuffled(examples=300, expected_size=100),
        steps=6,
        evaluate=[
            on_public("public", data.features, data.targets, every=2, accuracy=accuracy),
            on_held_out("test", data.features, data.targets, accuracy=accuracy),
        ],
    )
    public = [entry for entry in result.history if entry.data == "public"]
    assert [entry.step for entry in public] == [2, 4, 6]
    assert [entry.declared for entry in result.history if entry.data == "test"] == ["held out"]
    assert public[-1].epoch == pytest.approx(2.0)
    assert result.last("accuracy", "test") > 0.9


@pytest.mark.parametrize(
    "sampler",
    [
        poisson(examples=300, expected_size=60),
        fixed_size(examples=300, expected_size=60),
        shuffled(examples=300, expected_size=60),
        poisson(examples=300, expected_size=60, relation=Relation.REPLACE_ONE),
    ],
    ids=["poisson", "fixed", "shuffled", "poisson, replace"],
)
def test_every_sampler_trains_and_states_its_terms(sampler):
    result = fit(
        zeros(),
        cross_entropy,
        separable(),
        method=dp_sgd(PRIVACY, lr=0.5),
        sampler=sampler,
        steps=4,
    )
    assert result.privacy.private
    assert result.privacy.relation == sampler.relation.value
    assert result.privacy.delta == pytest.approx(1 / 3000)


@pytest.mark.parametrize(
    ("groups", "relation"),
    [(by_label(5), Relation.ADD_OR_REMOVE_ONE), (in_advance(5), Relation.REPLACE_ONE)],
    ids=["by label", "in advance"],
)
def test_groups_train_and_without_clipping_change_nothing(groups, relation):
    data = separable()
    sampler = poisson(examples=300, expected_size=300, relation=relation)
    exposed = privatize(clip_norm=1e9, noise_multiplier=0.0, groups=groups)
    grouped, alone = zeros(), zeros()
    fit(grouped, cross_entropy, data, method=dp_sgd(exposed, lr=0.5), sampler=sampler, steps=3)
    fit(alone, cross_entropy, data, method=plain_sgd(0.5), sampler=sampler, steps=3)
    torch.testing.assert_close(grouped.weight, alone.weight, rtol=1e-4, atol=1e-5)


def test_groups_in_advance_need_the_declared_number():
    from adadps.errors import DataError

    sampler = poisson(examples=310, expected_size=50, relation=Relation.REPLACE_ONE)
    method = dp_sgd(privatize(clip_norm=1.0, noise_multiplier=1.0, groups=in_advance(5)), lr=0.1)
    with pytest.raises(DataError, match="310"):
        fit(zeros(), cross_entropy, separable(), method=method, sampler=sampler, steps=1)


def test_a_warm_start_moves_the_weights_before_the_first_private_step():
    data = separable()
    public = public_examples(
        data.features, data.targets, source="a survey", public_because="open", batch_size=30
    )
    layer = zeros()
    run = PrivateRun(
        layer,
        cross_entropy,
        data,
        method=warm_start(public, PRIVACY, lr=0.1, public_lr=0.01),
        sampler=poisson(examples=300, expected_size=50),
        steps=1,
    )
    outputs = run.objective.outputs(run.params, data.features)
    assert accuracy(outputs, data.targets) > 0.9
    assert run.ledger.entries == 0


def test_a_reparametrised_model_predicts_through_its_feature_weights(tmp_path):
    data = separable()
    frequencies = side.given_frequencies(
        [1.0, 9.0, 9.0, 9.0, 9.0, 9.0], source="a list", public_because="published"
    )
    method = dp_sgd_weighted(side.frequency(frequencies, floor=0.01), PRIVACY, lr=2.0)
    result = fit(
        zeros(),
        cross_entropy,
        data,
        method=method,
        sampler=poisson(examples=300, expected_size=100),
        steps=30,
        evaluate=[on_held_out("test", data.features, data.targets, accuracy=accuracy)],
    )
    assert result.last("accuracy") > 0.9
    back = load_result(result.save(tmp_path / "run"))
    assert torch.equal(back.feature_weights, result.feature_weights)
    assert back.feature_weights[0] == back.feature_weights.max()
    outputs = back.outputs(zeros(), data.features)
    assert accuracy(outputs, data.targets) == result.last("accuracy")


def test_a_plan_beyond_its_budget_is_refused_before_the_first_step():
    layer = zeros()
    with pytest.raises(BudgetError, match="Nothing was drawn"):
        fit(
            layer,
            cross_entropy,
            separable(),
            method=dp_sgd(PRIVACY, lr=0.5),
            sampler=poisson(examples=300, expected_size=50),
            steps=1000,
            budget=Budget(1.0, 1e-5),
        )
    assert (layer.weight == 0).all()


def test_a_budget_beside_a_ledger_is_this_runs_share():
    def on(ledger, budget, noise_multiplier):
        return fit(
            zeros(),
            cross_entropy,
            separable(),
            method=dp_sgd(privatize(clip_norm=1.0, noise_multiplier=noise_multiplier), lr=0.5),
            sampler=poisson(examples=300, expected_size=50),
            steps=3,
            budget=budget,
            ledger=ledger,
            accountant=Accountant.RDP,
        )

    ledger = MemoryLedger(Budget(4.0, 1e-5))
    with pytest.raises(BudgetError, match=r"3 steps within epsilon = 1 .*Nothing was drawn"):
        on(ledger, Budget(1.0, 1e-5), 1.0)
    assert ledger.entries == 0
    assert on(ledger, Budget(1.0, 1e-5), 4.0).privacy.epsilon <= 1.0
    with pytest.raises(ContractError, match="delta of the ledger"):
        on(ledger, Budget(1.0, 1e-6), 4.0)


def test_two_runs_on_an_rdp_ledger_compose():
    ledger = MemoryLedger()
    for _ in range(2):
        result = fit(
            zeros(),
            cross_entropy,
            separable(),
            method=dp_sgd(PRIVACY, lr=0.5),
            sampler=poisson(examples=300, expected_size=50),
            steps=3,
            ledger=ledger,
            accountant=Accountant.RDP,
        )
    assert ledger.entries == 6
    assert ledger.epsilon(result.privacy.delta) > result.privacy.epsilon


def test_frozen_parameters_stay_as_they_are():
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    before = model[0].weight.detach().clone()
    result = fit(
        model,
        cross_entropy,
        separable(),
        method=dp_sgd(PRIVACY, lr=0.5),
        sampler=poisson(examples=300, expected_size=50),
        steps=2,
    )
    assert torch.equal(model[0].weight, before)
    assert set(result.params) == {"2.weight", "2.bias"}


def test_training_works_in_float64():
    data = examples(torch.randn(50, 3, dtype=torch.float64), torch.randn(50, 1).double())
    model = nn.Linear(3, 1).double()
    fit(
        model,
        squared,
        data,
        method=dp_sgd(PRIVACY, lr=0.1),
        sampler=poisson(examples=50, expected_size=10),
        steps=2,
    )
    assert model.weight.dtype == torch.float64
