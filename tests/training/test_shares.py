"""A run's share of a ledger, and budgets that a run must not leave behind half used."""

import os
import traceback
from dataclasses import replace

import pytest
import torch
from dp_accounting import GaussianDpEvent
from torch import nn

from adadps import (
    Budget,
    DiskLedger,
    PrivateRun,
    dp_sgd,
    examples,
    fit,
    losses,
    poisson,
    privatize,
)
from adadps import adadps as adadps_method
from adadps.accounting.ledger import MemoryLedger, disk
from adadps.accounting.noisy_counts.price import Paid
from adadps.errors import AdadpsError, BudgetError, ContractError, DataError, OrderError
from adadps.methods.side import noisy_frequencies
from adadps.methods.stages import average, chain, sgd
from adadps.training.checkpoint import Checkpoints
from adadps.training.describe import plan_of
from adadps.training.evaluation import accuracy, on_public
from adadps.training.tuning import fixed_grid, highest, tune
from adadps.types import Accountant, Relation

DELTA = 1e-5
SHARE = Budget(0.5, DELTA)
LOUD = dp_sgd(privatize(clip_norm=1.0, noise_multiplier=0.7), lr=0.1)
STEPS = 8


def data(rows=200):
    return examples(torch.randn(rows, 3), torch.randint(2, (rows,)))


def run(method=LOUD, *, steps=STEPS, **options):
    model = nn.Linear(3, 2)
    return PrivateRun(
        model, losses.cross_entropy, data(), method=method, batch_size=20, steps=steps, **options
    )


def trained(method=LOUD, *, steps=STEPS, **options):
    model = nn.Linear(3, 2)
    return fit(
        model, losses.cross_entropy, data(), method=method, batch_size=20, steps=steps, **options
    )


def finished(held):
    for batch in held.batches():
        held.step(batch)
    return held.result()


LEDGERS = {
    "without a budget": lambda _: MemoryLedger(),
    "with a larger budget": lambda _: MemoryLedger(Budget(8.0, DELTA)),
    "on disk": lambda folder: DiskLedger(folder / "a.ledger", budget=Budget(8.0, DELTA)),
}


@pytest.mark.parametrize("make", LEDGERS.values(), ids=LEDGERS.keys())
def test_a_loop_of_your_own_keeps_its_share(make, tmp_path):
    ledger = make(tmp_path)
    held = run(ledger=ledger, budget=SHARE, accountant=Accountant.RDP)
    with pytest.raises(BudgetError, match=r"within its share of the ledger, epsilon = 0\.5"):
        finished(held)
    assert held.result().privacy.epsilon <= SHARE.epsilon
    assert ledger.epsilon(DELTA) <= SHARE.epsilon


def test_a_share_that_is_large_enough_takes_all_steps():
    held = run(ledger=MemoryLedger(), budget=Budget(50.0, DELTA))
    assert finished(held).privacy.steps == STEPS


def test_a_resumed_run_keeps_its_share(tmp_path):
    method = dp_sgd(privatize(clip_norm=1.0, noise_multiplier=4.0), lr=0.1)
    whole = trained(method, accountant=Accountant.RDP, delta=DELTA).privacy.epsilon
    share = Budget(whole, DELTA)
    options = {
        "budget": share,
        "accountant": Accountant.RDP,
        "checkpoints": Checkpoints(tmp_path / "run", every=2),
    }
    with DiskLedger(tmp_path / "a.ledger") as ledger:
        first = run(method, ledger=ledger, **options)
        batches = first.batches()
        for _ in range(5):
            first.step(next(batches))  # the fifth is not in a checkpoint, and is lost
    with DiskLedger(tmp_path / "a.ledger") as ledger:
        again = run(method, ledger=ledger, **options)
        result = finished(again)
        assert result.privacy.steps < STEPS
        assert result.privacy.epsilon <= whole
        assert ledger.epsilon(DELTA) <= whole


def test_side_information_counts_in_the_share():
    features = torch.rand(200, 3)
    rows = examples(features, torch.randint(2, (200,)))
    known = noisy_frequencies(
        features.numpy(), clip_norm=1.0, noise_multiplier=1.0, floor=0.1, source="these rows"
    )
    method = adadps_method(known, privatize(clip_norm=1.0, noise_multiplier=20.0), lr=0.1)
    ledger = MemoryLedger()
    with pytest.raises(BudgetError, match="side information alone does not fit"):
        PrivateRun(
            nn.Linear(3, 2), losses.cross_entropy, rows, method=method, batch_size=20, steps=2,
            ledger=ledger, budget=Budget(0.01, DELTA),
        )  # fmt: skip
    assert ledger.entries == 0


@pytest.mark.parametrize("accountant", list(Accountant))
def test_side_information_and_steps_within_a_share(accountant):
    features = torch.rand(200, 3)
    known = noisy_frequencies(
        features.numpy(), clip_norm=1.0, noise_multiplier=20.0, floor=0.1, source="these rows"
    )
    method = adadps_method(known, privatize(clip_norm=1.0, noise_multiplier=20.0), lr=0.1)
    held = PrivateRun(
        nn.Linear(3, 2), losses.cross_entropy, examples(features, torch.randint(2, (200,))),
        method=method, batch_size=20, steps=2, accountant=accountant,
        ledger=MemoryLedger(), budget=Budget(5.0, DELTA),
    )  # fmt: skip
    assert finished(held).privacy.steps == 2


def test_steps_reserved_ahead_are_within_the_share(tmp_path):
    quiet = dp_sgd(privatize(clip_norm=1.0, noise_multiplier=3.0), lr=0.1)
    with DiskLedger(tmp_path / "a.ledger") as ledger:
        held = run(quiet, steps=1600, ledger=ledger, budget=SHARE, accountant=Accountant.RDP)
        with pytest.raises(BudgetError, match="within its share"):
            finished(held)
        assert 0.9 * SHARE.epsilon < ledger.epsilon(DELTA) <= SHARE.epsilon
        assert held.result().privacy.epsilon <= SHARE.epsilon


def side_by_side(first, second):
    for batch, other in zip(first.batches(), second.batches(), strict=True):
        first.step(batch)
        second.step(other)


def test_two_lives_at_once_do_not_spend_a_share_twice(tmp_path):
    method = dp_sgd(privatize(clip_norm=1.0, noise_multiplier=3.0), lr=0.1)
    every = Checkpoints(tmp_path / "run", every=30)
    options = {"budget": SHARE, "accountant": Accountant.RDP, "checkpoints": every}
    with DiskLedger(tmp_path / "a.ledger") as ledger:
        first = run(method, steps=40, ledger=ledger, **options)
        second = run(method, steps=40, ledger=ledger, **options)
        with pytest.raises(ContractError, match="both would spend the same share"):
            side_by_side(first, second)
        assert ledger.epsilon(DELTA) <= SHARE.epsilon


NOT_PRIVATE = {
    "average": {"method": chain(average(), sgd(0.1))},
    "debug": {"debug": True},
}


@pytest.mark.parametrize("options", NOT_PRIVATE.values(), ids=NOT_PRIVATE.keys())
@pytest.mark.parametrize("of", [lambda **o: finished(run(**o)), trained], ids=["run", "fit"])
def test_a_run_that_is_not_private_has_no_share(of, options):
    ledger = MemoryLedger()
    with pytest.raises(BudgetError, match="not private"):
        of(ledger=ledger, budget=SHARE, **options)
    assert ledger.entries == 0


def test_a_refusal_names_the_limit_that_was_missed():
    method = dp_sgd(privatize(clip_norm=1.0, noise_multiplier=4.0), lr=0.1)
    cost = trained(method, accountant=Accountant.RDP, delta=DELTA).privacy.epsilon
    ledger = MemoryLedger(Budget(1.2 * cost, DELTA))
    share = Budget(1.1 * cost, DELTA)
    options = {"ledger": ledger, "accountant": Accountant.RDP, "budget": share}
    trained(method, **options)
    with pytest.raises(BudgetError, match=rf"{1.2 * cost:g} .* beside {STEPS} charges on"):
        trained(method, **options)
    with pytest.raises(BudgetError, match=r"epsilon = 0\.01 at"):
        trained(method, **{**options, "budget": Budget(0.01, DELTA)})


def test_a_refused_plan_leaves_its_folder_as_it_was(tmp_path):
    with pytest.raises(BudgetError):
        trained(budget=SHARE, checkpoints=tmp_path / "run")
    quiet = dp_sgd(privatize(clip_norm=1.0, noise_multiplier=8.0), lr=0.1)
    result = trained(quiet, budget=SHARE, checkpoints=tmp_path / "run")
    assert result.privacy.steps == STEPS
    with pytest.raises(ContractError, match="Give the same one"):
        trained(quiet, budget=Budget(3.0, DELTA), checkpoints=tmp_path / "run")


def test_a_ledger_that_was_there_survives_a_refusal(tmp_path):
    (tmp_path / "run").mkdir()
    DiskLedger(tmp_path / "run" / "ledger", budget=SHARE).close()
    for _ in range(2):
        with pytest.raises(BudgetError):
            trained(checkpoints=tmp_path / "run")
    with DiskLedger(tmp_path / "run" / "ledger") as ledger:
        assert ledger.budget == SHARE
        assert ledger.entries == 0


REFUSED = {
    "another delta": {"delta": 1e-3},
    "noise that cannot be priced": {
        "method": dp_sgd(privatize(clip_norm=1.0, noise_multiplier=1e-5), lr=0.1)
    },
}


@pytest.mark.parametrize("options", REFUSED.values(), ids=REFUSED.keys())
def test_other_refusals_leave_nothing_either(tmp_path, options):
    with pytest.raises(AdadpsError):
        trained(**{"budget": SHARE, **options}, checkpoints=tmp_path / "run")
    assert not (tmp_path / "run" / "ledger").exists()


def test_a_plan_beside_a_measurement_is_refused_and_not_cut_short():
    method = dp_sgd(privatize(clip_norm=1.0, noise_multiplier=3.0), lr=0.1)
    ledger = MemoryLedger(SHARE)
    event = GaussianDpEvent(20.0)
    ledger.open("first", Relation.ADD_OR_REMOVE_ONE, Accountant.RDP, plan_with(method, event))
    ledger.authorise(event, run="first")
    with pytest.raises(BudgetError, match="Expected 400 steps"):
        trained(method, steps=400, ledger=ledger, accountant=Accountant.RDP,
                measured=Paid("first", (event,)))  # fmt: skip
    assert ledger.entries == 1


def plan_with(method, event):
    sampler = poisson(examples=200, expected_size=20)
    return replace(plan_of(method, sampler, 400, Accountant.RDP, (event,)), paid_first=1)


def test_a_ledger_that_is_removed_while_it_is_opened_takes_no_charges(tmp_path, monkeypatch):
    path = tmp_path / "a.ledger"
    DiskLedger(path).close()
    usual = disk.connect

    def removed_meanwhile(place):
        connection = usual(place)
        place.unlink()
        return connection

    monkeypatch.setattr(disk, "connect", removed_meanwhile)
    ledger = DiskLedger(path)
    with pytest.raises(DataError, match="stay in its place"):
        ledger.open("first", Relation.ADD_OR_REMOVE_ONE, Accountant.RDP)


def test_open_methods_are_not_tuned(tmp_path):
    rows = data()
    pilot = on_public("pilot", torch.randn(10, 3), torch.randint(2, (10,)), accuracy=accuracy)
    with DiskLedger(tmp_path / "a.ledger") as ledger:
        with pytest.raises(OrderError, match="Nothing was paid"):
            tune(
                lambda setting: (nn.Linear(3, 2), dp_sgd(lr=setting["lr"])),
                losses.cross_entropy,
                rows,
                grid={"lr": [0.1, 1.0]},
                score=highest(pilot, "accuracy"),
                selection=fixed_grid(),
                steps=2,
                sampler=poisson(examples=200, expected_size=20),
                ledger=ledger,
            )
        assert ledger.entries == 0


UNFIT = {
    "half an example": ({"examples": 200.5}, "whole number of examples"),
    "a truth for steps": ({"steps": True}, "whole number of steps"),
    "half a step": ({"steps": 2.5}, "whole number of steps"),
    "a text for the accountant": ({"accountant": "rdp"}, "an accountant"),
    "a pair for the budget": ({"budget": (2, 1e-4)}, "a budget"),
}


@pytest.mark.parametrize(("options", "expected"), UNFIT.values(), ids=UNFIT.keys())
def test_values_of_other_types_are_refused(options, expected):
    with pytest.raises(AdadpsError, match=expected):
        trained(**options)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_ledger_in_memory_is_not_spent_on_both_sides_of_a_fork():
    ledger = MemoryLedger(Budget(1.0, DELTA))
    held = run(dp_sgd(privatize(clip_norm=1.0, noise_multiplier=9.0), lr=0.1), ledger=ledger)
    pid = os.fork()
    if pid == 0:
        ended = 1
        try:
            ledger.authorise(GaussianDpEvent(9.0), run=held.name)
        except ContractError as error:
            ended = 0 if "fork of that process" in str(error) else 2
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(ended)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert finished(held).privacy.steps == STEPS
