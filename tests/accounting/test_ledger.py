"""The ledger: what may be spent, what has been spent, and who may spend."""

import itertools
import math
import os
import re
import warnings

import numpy as np
import pytest
import torch
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    SelfComposedDpEvent,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from adadps.accounting.contract import Grouping
from adadps.accounting.epsilon import Budget, calibrate_steps, epsilon_of
from adadps.accounting.ledger import MemoryLedger
from adadps.accounting.samplers import poisson, shuffled
from adadps.data.examples import examples
from adadps.errors import BudgetError, ContractError
from adadps.methods.paper import adadps, dp_sgd
from adadps.methods.side import fixed
from adadps.methods.stages import privatize
from adadps.training.fit import PrivateRun
from adadps.types import Accountant
from support.ledgers import ADD, BUDGET, LARGE, PLD, RDP, REPLACE, SMALL, ZERO, spend_all
from support.problems import squared


def opened(budget=BUDGET, accountant=RDP, relation=ADD):
    ledger = MemoryLedger(budget)
    ledger.open("first", relation, accountant)
    return ledger


def price(*events, accountant=RDP):
    event = ComposedDpEvent(list(events))
    return epsilon_of(event, delta=BUDGET.delta, accountant=accountant, relation=ADD)


PRIVACY = privatize(clip_norm=1.0, noise_multiplier=10.0)


def private_run(method):
    return PrivateRun(
        nn.Linear(2, 1),
        squared,
        examples(np.ones((20, 2), np.float32), np.ones((20, 1), np.float32)),
        method=method,
        sampler=poisson(examples=20, expected_size=10),
        steps=5,
        accountant=RDP,
    )


# --- within the budget ---


def test_a_new_ledger_has_spent_nothing():
    ledger = opened()
    assert (ledger.entries, ledger.epsilon(1e-5)) == (0, 0.0)


def test_what_fits_is_charged():
    ledger = opened()
    ledger.authorise(LARGE)
    assert ledger.entries == 1
    assert ledger.epsilon(1e-5) == price(LARGE)


def test_epsilon_is_given_at_any_delta():
    ledger = opened()
    ledger.authorise(LARGE)
    assert ledger.epsilon(1e-9) > ledger.epsilon(1e-5) > ledger.epsilon(1e-2)


def test_different_events_compose():
    ledger = opened()
    for event in (SMALL, LARGE, SMALL, SMALL):
        ledger.authorise(event)
    assert ledger.epsilon(1e-5) == pytest.approx(price(SelfComposedDpEvent(SMALL, 3), LARGE))


# --- at its end ---


def test_what_does_not_fit_is_refused_and_not_charged():
    ledger = opened()
    ledger.authorise(LARGE)
    before = ledger.epsilon(1e-5)
    with pytest.raises(BudgetError):
        ledger.authorise(GaussianDpEvent(1.0))
    assert (ledger.entries, ledger.epsilon(1e-5)) == (1, before)


def test_a_refusal_says_what_is_spent_and_what_is_left():
    ledger = opened()
    ledger.authorise(LARGE)
    with pytest.raises(BudgetError) as refusal:
        ledger.authorise(GaussianDpEvent(1.0))
    message = str(refusal.value)
    spent = float(re.search(r"found epsilon = ([\d.]+) already spent", message)[1])
    left = float(re.search(r"Left: ([\d.]+)\. Plan fewer steps or more noise", message)[1])
    assert "the budget of epsilon = 1 at delta = 1e-05" in message
    assert spent == pytest.approx(price(LARGE), rel=1e-3)
    assert left == pytest.approx(1 - price(LARGE), rel=1e-3)


def test_something_smaller_may_still_fit_after_a_refusal():
    ledger = opened()
    spend_all(ledger, LARGE)
    ledger.authorise(GaussianDpEvent(1000.0))
    assert ledger.epsilon(1e-5) <= 1.0


SAMPLER, SIGMA = poisson(examples=1000, expected_size=100), 3.0


@pytest.mark.parametrize("ahead", [1, 2, 10_000])
def test_the_ledger_holds_exactly_the_calibrated_number_of_steps(ahead):
    steps = calibrate_steps(SAMPLER, SIGMA, budget=BUDGET, accountant=RDP)
    event = SAMPLER.step_event(SIGMA, 1, RDP, Grouping.NONE)
    assert 20 < steps < 100
    assert spend_all(opened(), event, ahead) == steps


def test_a_pld_ledger_holds_exactly_the_calibrated_number_of_steps():
    sampler = poisson(examples=100, expected_size=100)
    steps = calibrate_steps(sampler, 15.0, budget=BUDGET, accountant=PLD)
    event = sampler.step_event(15.0, 1, PLD, Grouping.NONE)
    assert 5 < steps < 50
    assert spend_all(opened(accountant=PLD), event, ahead=100) == steps


def test_shuffled_steps_fill_the_budget_by_whole_epochs():
    sampler = shuffled(examples=100, expected_size=25)
    steps = calibrate_steps(sampler, 15.0, budget=BUDGET, accountant=RDP)
    ledger = opened(relation=ZERO)
    for index in range(1, steps + 1):
        ledger.authorise(sampler.step_event(15.0, index, RDP, Grouping.NONE))
    assert (ledger.entries, steps % 4) == (steps, 0)
    with pytest.raises(BudgetError):
        ledger.authorise(sampler.step_event(15.0, steps + 1, RDP, Grouping.NONE))


def test_room_that_another_event_has_taken_is_gone():
    """Room that was computed once is computed again after another event was charged."""
    ledger = opened()
    fits = spend_all(opened(), SMALL, ahead=100)
    ledger.authorise(SMALL, ahead=fits)
    ledger.authorise(LARGE)
    assert spend_all(ledger, SMALL, ahead=100) < fits - 1
    assert ledger.epsilon(1e-5) <= 1.0


@given(
    charges=st.lists(
        st.tuples(st.sampled_from([4.0, 8.0, 16.0, 64.0]), st.integers(1, 50)), max_size=12
    )
)
@settings(max_examples=15)
def test_no_order_of_events_overdraws_the_budget(charges):
    ledger, accepted = opened(), []
    for sigma, ahead in charges:
        try:
            ledger.authorise(GaussianDpEvent(sigma), ahead=ahead)
            accepted.append(GaussianDpEvent(sigma))
        except BudgetError:
            assert price(*accepted, GaussianDpEvent(sigma)) > 1.0
    assert ledger.entries == len(accepted)
    assert price(*accepted) <= 1.0 + 1e-12


# --- who may spend ---


def test_nothing_is_charged_before_a_run_is_opened():
    with pytest.raises(ContractError, match=r"`open` before anything is charged\. Open a run"):
        MemoryLedger(BUDGET).authorise(LARGE)


def test_an_rdp_ledger_composes_runs():
    ledger = opened()
    ledger.authorise(SMALL)
    ledger.open("second", ADD, RDP)
    ledger.authorise(SMALL)
    ledger.authorise(LARGE)
    assert ledger.epsilon(1e-5) == pytest.approx(price(SMALL, SMALL, LARGE))


def test_a_second_run_gets_what_the_first_has_left():
    """A filter of one order allows at least nine in ten of the steps of a single run."""
    ledger = opened()
    alone = spend_all(opened(), SMALL, ahead=100)
    for _ in range(5):
        ledger.authorise(SMALL)
    ledger.open("second", ADD, RDP)
    assert 0.9 * alone - 6 <= spend_all(ledger, SMALL, ahead=100) <= alone - 5


def test_a_pld_ledger_refuses_a_second_run():
    ledger = opened(accountant=PLD)
    with pytest.raises(ContractError, match=r"one run on a PLD ledger.*Run with accountant RDP"):
        ledger.open("second", ADD, PLD)


@pytest.mark.parametrize(
    ("relation", "accountant"), [(ZERO, RDP), (REPLACE, RDP), (ADD, PLD), (REPLACE, PLD)]
)
def test_a_run_under_other_terms_is_refused(relation, accountant):
    ledger = opened()
    expected = "Expected a run under 'add or remove one' with rdp"
    with pytest.raises(ContractError, match=rf"{expected}.*found '{relation.value}' with"):
        ledger.open("second", relation, accountant)
    ledger.authorise(LARGE)
    assert ledger.epsilon(1e-5) == price(LARGE)


@pytest.mark.parametrize("steps", [0, 2])
def test_a_run_says_what_its_ledger_was_charged(steps):
    """Side information that was measured privately is paid for before the first step."""
    counts = {"weight": (torch.ones(2), 1)}
    side = fixed(counts, source="noisy counts", public_because="measured with noise", event=LARGE)
    run = private_run(adadps(side, PRIVACY, lr=0.1))
    for batch in itertools.islice(run.batches(), steps):
        run.step(batch)
    assert run.ledger.epsilon(run.delta) > 0
    assert run.epsilon() == pytest.approx(run.ledger.epsilon(run.delta))


def refused_in_a_fork(action):
    """Does a child of this process get a `ContractError` for ``action``?"""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads: none is used
        child = os.fork()
    if child == 0:
        code = 1
        try:
            action()
        except ContractError:
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_hazard_16_a_forked_child_cannot_draw_from_a_run():
    """Parent and child would spend the same budget, on the same batches."""
    run = private_run(dp_sgd(PRIVACY, lr=0.1))
    assert refused_in_a_fork(lambda: next(run.batches()))


def test_hazard_16_a_forked_child_cannot_take_the_step_that_its_parent_paid_for():
    """One charge, two releases of the same batch under different noise."""
    run = private_run(dp_sgd(PRIVACY, lr=0.1))
    batch = next(run.batches())
    assert refused_in_a_fork(lambda: run.step(batch))


# --- custom events ---

EXPOSED = [NonPrivateDpEvent(), SelfComposedDpEvent(NonPrivateDpEvent(), 3)]


@pytest.mark.parametrize("event", EXPOSED)
def test_hazard_24_an_exposure_does_not_fit_any_budget(event):
    ledger = opened(Budget(epsilon=1e6, delta=0.5))
    with pytest.raises(BudgetError):
        ledger.authorise(event)
    assert (ledger.entries, ledger.epsilon(1e-5)) == (0, 0.0)


@pytest.mark.parametrize("event", EXPOSED)
@pytest.mark.parametrize("accountant", Accountant)
def test_hazard_24_without_a_budget_an_exposure_makes_epsilon_infinite(event, accountant):
    ledger = opened(None, accountant)
    ledger.authorise(SMALL)
    ledger.authorise(event)
    ledger.authorise(SMALL)
    assert (ledger.entries, ledger.epsilon(1e-5)) == (3, math.inf)


def test_events_that_reveal_nothing_are_counted_and_free():
    ledger = opened()
    spend_all(ledger, LARGE)
    entries, spent = ledger.entries, ledger.epsilon(1e-5)
    for _ in range(5):
        ledger.authorise(NoOpDpEvent())
    assert (ledger.entries, ledger.epsilon(1e-5)) == (entries + 5, spent)


def test_without_a_budget_everything_is_counted():
    ledger = opened(None)
    for _ in range(100):
        ledger.authorise(GaussianDpEvent(1.0))
    assert ledger.entries == 100
    assert ledger.epsilon(1e-5) == pytest.approx(
        price(SelfComposedDpEvent(GaussianDpEvent(1), 100))
    )
