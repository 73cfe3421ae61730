"""What a private run pays for, refuses before it starts, and learns."""

import copy
import warnings

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent
from torch import nn

from adadps import (
    Accountant,
    Budget,
    BudgetError,
    PrivateRun,
    accuracy,
    adadps,
    examples,
    fit,
    on_held_out,
    poisson,
    privatize,
    side,
)
from adadps.accounting.ledger import MemoryLedger
from adadps.errors import (
    DataError,
    OrderError,
    SettingError,
    SideInformationError,
)
from support.problems import cross_entropy, squared
from support.regressions import SpyLedger, method, model, rows, trained


def test_a_budget_stops_the_run_before_the_step_that_does_not_fit():
    data, budget = rows(), Budget(3.0, 1e-3)
    sampler = poisson(examples=40, expected_size=10)
    run = PrivateRun(
        model(), squared, data, method=method(), sampler=sampler, steps=10**6, budget=budget
    )
    taken = 0

    def train():
        nonlocal taken
        for batch in run.batches():
            run.step(batch)
            taken += 1

    with pytest.raises(BudgetError, match="Left"):
        train()
    assert run.ledger.entries == taken
    assert run.epsilon() <= 3.0 < run.epsilon(taken + 1)


def test_a_refused_construction_leaves_the_ledger_unopened():
    ledger = MemoryLedger()
    wrong = side.fixed({"weight": torch.ones(2, 2)}, source="a", public_because="b")
    privacy = privatize(clip_norm=1.0, noise_multiplier=1.0)
    with pytest.raises(SideInformationError):
        trained(chosen=adadps(wrong, privacy, lr=0.1), ledger=ledger)
    trained(ledger=ledger)


def test_a_label_that_the_loss_refuses_is_found_before_the_first_step():
    data = examples(torch.randn(30, 4), torch.cat([torch.zeros(29), torch.tensor([7.0])]).long())
    with pytest.raises(DataError, match="integers from 0 to 1") as caught:
        fit(
            nn.Linear(4, 2),
            cross_entropy,
            data,
            method=method(),
            sampler=poisson(examples=30, expected_size=1),
            steps=1,
        )
    assert "7" not in str(caught.value)


def test_an_epsilon_without_a_number_is_refused_before_training():
    layer = model()
    with pytest.raises(SettingError):
        trained(chosen=method(noise_multiplier=0.01), layer=layer)
    assert (layer.weight == 0).all()


def test_a_run_cannot_be_copied_and_a_batch_cannot_be_skipped():
    sampler = poisson(examples=40, expected_size=10)
    run = PrivateRun(model(), squared, rows(), method=method(), sampler=sampler, steps=3)
    with pytest.raises(TypeError, match="copy"):
        copy.copy(run)
    batches = run.batches()
    next(batches)
    with pytest.raises(OrderError, match="step"):
        next(batches)


def test_every_step_is_authorised_before_anything_is_drawn():
    class Refusing(MemoryLedger):
        def authorise(self, event, **options):  # noqa: ARG002
            raise BudgetError("no")

    layer = model()
    run = PrivateRun(
        layer,
        squared,
        rows(),
        method=method(),
        sampler=poisson(examples=40, expected_size=10),
        steps=2,
        ledger=Refusing(),
    )

    def untouchable(*_):
        raise AssertionError("something was drawn")

    run._stepper.batches._batches = iter(untouchable, None)
    with pytest.raises(BudgetError):
        next(run.batches())
    assert (layer.weight == 0).all()


def test_a_paid_price_for_side_information_is_composed():
    ledger = SpyLedger()
    priced = side.fixed(
        {"weight": (torch.ones(4), 1)},
        source="noisy counts",
        public_because="measured with noise",
        event=GaussianDpEvent(5.0),
    )
    privacy = privatize(clip_norm=1.0, noise_multiplier=1.0)
    _, result = trained(chosen=adadps(priced, privacy, lr=0.1), ledger=ledger, steps=2)
    _, free = trained(steps=2)
    assert ledger.events[0] == GaussianDpEvent(5.0)
    assert result.privacy.epsilon > free.privacy.epsilon
    assert abs(ledger.epsilon(result.privacy.delta) - result.privacy.epsilon) < 1e-6
    assert not any(isinstance(event, NonPrivateDpEvent) for event in ledger.events)


def test_dropout_and_warnings_are_quiet():
    layer = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(layer=layer)


def test_accountants_agree_with_the_statement():
    data = rows()
    for accountant in Accountant:
        _, result = trained(data, accountant=accountant)
        assert result.privacy.accountant == accountant.value
        assert result.privacy.epsilon > 0


def test_classification_with_integer_targets_trains():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(200, 4)).astype(np.float32)
    labels = (features[:, 0] > 0).astype(np.int64)
    layer = nn.Linear(4, 2)
    result = fit(
        layer,
        cross_entropy,
        examples(features, labels),
        method=method(noise_multiplier=0.5, lr=0.5),
        sampler=poisson(examples=200, expected_size=100),
        steps=60,
        evaluate=[on_held_out("same", features, labels, accuracy=accuracy)],
    )
    assert result.last("accuracy") > 0.8
