"""A run that is resumed pays for what was lost, and says so."""

import pytest

import adadps
import adadps.accounting.ledger.summary
from adadps import Accountant, Budget, BudgetError, DiskLedger, epsilon_of_run, shuffled
from adadps.errors import ContractError
from support.resuming import NOISY, SOME, Measured, advance, begin


def test_hazard_16_steps_that_were_lost_are_paid_twice(tmp_path):
    advance(begin(tmp_path), until=7)  # checkpoint after 4
    result = advance(begin(tmp_path)).result()
    assert (result.privacy.steps, result.privacy.steps_paid) == (12, 15)
    expected = epsilon_of_run(
        adadps.dp_sgd(NOISY, lr=0.1), SOME, 15, delta=1 / 300, accountant=Accountant.PLD
    )
    assert result.privacy.epsilon == pytest.approx(expected, rel=1e-12)
    with DiskLedger(tmp_path / "ledger") as ledger:
        assert ledger.entries == 15


def test_hazard_16_a_kill_before_the_first_checkpoint_is_paid_too(tmp_path):
    first = advance(begin(tmp_path), until=3)
    second = begin(tmp_path)
    assert (second.taken, second.name) == (0, first.name)
    assert advance(second).result().privacy.steps_paid == 15


@pytest.mark.parametrize("until", [1, 3, 7])
@pytest.mark.parametrize("accountant", Accountant)
def test_hazard_16_a_budget_ends_the_resumed_run_earlier(tmp_path, accountant, until):
    method = adadps.dp_sgd(NOISY, lr=0.1)
    planned = epsilon_of_run(method, SOME, 12, delta=1e-3, accountant=accountant)
    options = {"budget": Budget(planned * 1.0001, 1e-3), "accountant": accountant}
    advance(begin(tmp_path, **options), until=until)
    resumed = advance(begin(tmp_path, **options))
    lost = until % 4
    assert (resumed.taken, resumed.steps) == (12 - lost, 12 - lost)
    privacy = resumed.result().privacy
    assert privacy.steps_paid == 12
    assert privacy.epsilon == pytest.approx(planned, rel=1e-12)
    assert list(begin(tmp_path, **options).batches()) == []


def test_a_budget_with_room_lets_the_resumed_run_finish(tmp_path):
    options = {"budget": Budget(5.0, 1e-3)}
    advance(begin(tmp_path, **options), until=7)
    assert advance(begin(tmp_path, **options)).taken == 12


def test_a_shared_ledger_counts_all_lives_as_one_run(tmp_path):
    with DiskLedger(tmp_path / "shared", budget=Budget(2.0, 1e-3)) as ledger:
        advance(begin(tmp_path / "run", ledger=ledger), until=7)
    with DiskLedger(tmp_path / "shared") as ledger:
        resumed = advance(begin(tmp_path / "run", ledger=ledger))
        assert ledger.entries == 15
        assert resumed.accountant is Accountant.RDP
        assert resumed.epsilon() == pytest.approx(ledger.epsilon(resumed.delta), rel=1e-12)
    assert not (tmp_path / "run" / "ledger").exists()
    shown = adadps.accounting.ledger.summary.summarise(tmp_path / "shared")
    assert [(run["steps_reserved"], run["lives"]) for run in shown["runs"]] == [(15, 2)]
    assert not shown["filter"]


def test_a_resumed_shuffled_run_pays_for_a_new_epoch(tmp_path):
    by_epoch = shuffled(examples=30, expected_size=6)  # 5 steps an epoch
    options = {"sampler": by_epoch, "steps": 10, "every": 3}
    advance(begin(tmp_path, **options), until=4)
    resumed = begin(tmp_path, **options)
    assert resumed.taken == 3
    result = advance(resumed).result()
    two_epochs_more = epsilon_of_run(
        adadps.dp_sgd(NOISY, lr=0.1), by_epoch, 15, delta=1 / 300, accountant=Accountant.PLD
    )
    assert result.privacy.epsilon == pytest.approx(two_epochs_more, rel=1e-12)


@pytest.mark.parametrize(("until", "payments"), [(None, 1), (7, 1), (2, 2)])
def test_measured_side_information_is_drawn_once_for_each_payment(tmp_path, until, payments):
    source = Measured()
    method = adadps.adadps(source, NOISY, lr=0.1)
    advance(begin(tmp_path, method), until=until)
    resumed = advance(begin(tmp_path, method))
    assert source.drawn == payments
    with DiskLedger(tmp_path / "ledger") as ledger:
        assert ledger.entries == resumed.result().privacy.steps_paid + payments
        assert resumed.epsilon() == pytest.approx(ledger.epsilon(resumed.delta), rel=1e-6)


def test_measured_side_information_is_paid_before_it_is_drawn(tmp_path):
    source = Measured()
    with pytest.raises(BudgetError):
        begin(tmp_path, adadps.adadps(source, NOISY, lr=0.1), budget=Budget(0.01, 1e-3))
    assert source.drawn == 0


@pytest.mark.parametrize("accountant", Accountant)
def test_a_run_on_a_shared_ledger_keeps_to_its_own_epsilon_too(tmp_path, accountant):
    """The ledger has room for all that is lost; the run has not."""
    planned = epsilon_of_run(
        adadps.dp_sgd(NOISY, lr=0.1), SOME, 12, delta=1e-3, accountant=accountant
    )
    own = planned * 1.0001
    with DiskLedger(tmp_path / "shared", budget=Budget(50.0, 1e-3)) as ledger:
        share = Budget(own, 1e-3)
        options = {"ledger": ledger, "budget": share, "accountant": accountant}
        for _ in range(3):
            advance(begin(tmp_path / "run", **options), until=7)
        result = advance(begin(tmp_path / "run", **options)).result()
    assert result.privacy.epsilon <= own
    assert result.privacy.steps < 12


def test_epsilon_at_another_delta_than_the_budgets_is_refused(tmp_path):
    with pytest.raises(ContractError, match="delta of the budget"):
        begin(tmp_path, budget=Budget(3.0, 1e-5), delta=0.1)
