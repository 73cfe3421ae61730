"""What is charged to delta itself is subtracted from it, by every accountant and every ledger."""

import math

import pytest
from dp_accounting import ComposedDpEvent, GaussianDpEvent, SelfComposedDpEvent

from adadps import Accountant, Budget
from adadps.accounting.epsilon import calibrate_noise, epsilon_of
from adadps.accounting.events import (
    DeltaDpEvent,
    delta_of,
    event_of,
    in_words,
    text_of,
    without_delta,
)
from adadps.accounting.ledger import DiskLedger, MemoryLedger
from adadps.accounting.ledger.summary import summarise
from adadps.accounting.samplers import poisson
from adadps.errors import BudgetError
from adadps.types import Relation

ADD = Relation.ADD_OR_REMOVE_ONE
GAUSS, MOST = GaussianDpEvent(4.0), DeltaDpEvent(9e-6)


def epsilon(event, delta, accountant):
    return epsilon_of(event, delta=delta, accountant=accountant, relation=ADD)


@pytest.mark.parametrize("accountant", Accountant)
def test_epsilon_is_that_at_what_is_left_of_delta(accountant):
    both = ComposedDpEvent([GAUSS, MOST])
    assert epsilon(both, 1e-5, accountant) == pytest.approx(epsilon(GAUSS, 1e-6, accountant))
    assert epsilon(both, 1e-5, accountant) > epsilon(GAUSS, 1e-5, accountant)
    assert epsilon(MOST, 1e-5, accountant) == 0.0, "nothing but delta"
    twice = SelfComposedDpEvent(both, 2)
    assert epsilon(twice, 1e-5, accountant) == math.inf, "more than there is"
    assert delta_of(twice) == pytest.approx(18e-6)
    assert delta_of(without_delta(twice)) == 0


def test_it_is_written_and_read_like_any_other_event():
    assert event_of(text_of(MOST)) == MOST
    assert in_words(MOST) == "9e-06 of delta"


@pytest.mark.parametrize("accountant", Accountant)
@pytest.mark.parametrize("on_disk", [False, True])
def test_a_ledger_subtracts_it(tmp_path, accountant, on_disk):
    limit = epsilon(SelfComposedDpEvent(GAUSS, 10), 1e-5, accountant)
    budget = Budget(limit, 1e-5)
    ledger = DiskLedger(tmp_path / "l", budget=budget) if on_disk else MemoryLedger(budget)
    ledger.open("run", ADD, accountant)
    assert ledger.room(GAUSS, 20) == 10
    ledger.authorise(MOST)
    left = ledger.room(GAUSS, 20)
    assert left < 10
    assert epsilon(SelfComposedDpEvent(GAUSS, left), 1e-6, accountant) <= limit
    assert epsilon(SelfComposedDpEvent(GAUSS, left + 1), 1e-6, accountant) > limit
    for _ in range(left):
        ledger.authorise(GAUSS)
    with pytest.raises(BudgetError):
        ledger.authorise(GAUSS)
    with pytest.raises(BudgetError):
        ledger.authorise(DeltaDpEvent(1e-6))
    assert ledger.epsilon(1e-5) == pytest.approx(
        epsilon(SelfComposedDpEvent(GAUSS, left), 1e-6, accountant)
    )
    if on_disk:
        ledger.close()
        assert summarise(tmp_path / "l")["delta_spent"] == 9e-6


def test_a_filter_over_several_runs_subtracts_it(tmp_path):
    budget = Budget(1.0, 1e-5)
    rooms = []
    for spent in (False, True):
        ledger = MemoryLedger(budget)
        ledger.open("first", ADD, Accountant.RDP)
        ledger.authorise(GaussianDpEvent(30.0), ahead=5)
        if spent:
            ledger.authorise(MOST)
        ledger.open("second", ADD, Accountant.RDP)
        rooms.append(ledger.room(GaussianDpEvent(30.0), 1000))
        with pytest.raises(BudgetError):
            ledger.authorise(DeltaDpEvent(1e-5))
    assert 0 < rooms[1] < rooms[0]


def test_noise_is_calibrated_beside_it():
    sampler, budget = poisson(examples=1000, expected_size=50), Budget(1.0, 1e-4)
    options = {"budget": budget, "accountant": Accountant.RDP}
    alone = calibrate_noise(sampler, 100, **options)
    beside = calibrate_noise(sampler, 100, besides=(DeltaDpEvent(9e-5),), **options)
    less = calibrate_noise(sampler, 100, budget=Budget(1.0, 1e-5), accountant=Accountant.RDP)
    assert beside == pytest.approx(less, abs=2e-4)
    assert beside > alone
