"""`fit` without a noise multiplier: it calibrates its own, and nothing is given twice."""

import math

import pytest
import torch

import adadps
from adadps import (
    Accountant,
    Budget,
    DiskLedger,
    PrivateRun,
    by_user,
    calibrate_noise,
    chain,
    dp_sgd,
    examples,
    fit,
    losses,
    poisson,
    privatize,
    side,
)
from adadps.accounting.epsilon import epsilon_of_run
from adadps.accounting.ledger import MemoryLedger
from adadps.errors import AdadpsError, ContractError, OrderError
from adadps.methods import plain_sgd
from adadps.methods.stages import precondition, sgd

BUDGET = Budget(epsilon=2.0, delta=1e-4)
COMMON = {"clip_norm": 1.0, "batch_size": 50, "epochs": 2, "budget": BUDGET}
QUICK = {"accountant": Accountant.RDP}


def model():
    return torch.nn.Linear(3, 2)


def data(users=None):
    rows = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    return examples(rows, (rows[:, 0] > 0).long(), users=users)


def trained(held=None, **options):
    return fit(model(), losses.cross_entropy, held or data(), **{**COMMON, **QUICK, **options})


def test_noise_is_calibrated_to_the_budget():
    privacy = trained(method=dp_sgd(lr=1.0)).privacy
    sampler = poisson(examples=400, expected_size=50)
    expected = calibrate_noise(sampler, 16, budget=BUDGET, accountant=Accountant.RDP)
    assert privacy.noise_multiplier == expected
    assert privacy.steps == 16
    assert privacy.clip_norm == 1.0
    assert 1.95 < privacy.epsilon <= 2.0
    assert privacy.delta == BUDGET.delta


def test_the_tightest_accountant_is_the_default():
    privacy = fit(
        model(), losses.cross_entropy, data(), method=dp_sgd(lr=1.0), **{**COMMON, "epochs": 1}
    ).privacy
    assert privacy.accountant == "pld"
    assert 1.9 < privacy.epsilon <= 2.0


def test_the_number_of_examples_is_said_to_be_read_off_unless_it_is_declared():
    read = trained(method=dp_sgd(lr=1.0)).privacy.assumed_public
    assert "the number of examples, read off the data: 400" in read
    declared = trained(method=dp_sgd(lr=1.0), examples=380).privacy
    assert "the number of examples, declared as 380" in declared.assumed_public
    assert declared.sampler["examples"] == 380
    assert not any("read off" in fact for fact in declared.assumed_public)


def test_a_loop_of_ones_own_takes_the_same_arguments():
    run = PrivateRun(
        model(), losses.cross_entropy, data(), method=dp_sgd(lr=1.0), **COMMON, **QUICK
    )
    for batch in run.batches():
        run.step(batch)
    assert run.taken == 16
    assert run.result().privacy.epsilon <= 2.0


def test_side_information_stands_before_an_open_privatize():
    weights = side.fixed(
        {"weight": (torch.tensor([1.0, 2.0, 4.0]), 1)}, source="made up", public_because="made up"
    )
    by_name = trained(method=adadps.adadps(weights, lr=1.0))
    by_hand = trained(method=chain(precondition(weights), privatize(), sgd(1.0)))
    assert by_name.method == by_hand.method
    assert by_name.method.startswith("precondition")


def test_users_are_counted_where_users_are_clipped():
    held = data(users=torch.arange(400) // 2)
    method = dp_sgd(privatize(groups=by_user(most=2)), lr=1.0)
    privacy = trained(held, method=method).privacy
    assert privacy.unit == "user"
    assert "the number of users, read off the data: 200" in privacy.assumed_public
    assert privacy.steps == 8


def test_paid_side_information_leaves_less_for_the_steps():
    counts = side.noisy_frequencies(
        (data().features > 0).double().numpy(),
        clip_norm=1.0,
        noise_multiplier=8.0,
        floor=0.1,
        source="which entries are positive",
    )
    paid = trained(method=adadps.adadps(counts, lr=1.0)).privacy
    free = trained(method=dp_sgd(lr=1.0)).privacy
    assert paid.noise_multiplier > free.noise_multiplier
    assert paid.epsilon <= 2.0


def test_a_ledger_alone_gives_its_whole_budget():
    ledger = MemoryLedger(BUDGET)
    result = trained(method=dp_sgd(lr=1.0), budget=None, ledger=ledger)
    assert 1.95 < result.privacy.epsilon <= 2.0
    with pytest.raises(AdadpsError, match="Nothing was drawn"):
        trained(method=dp_sgd(lr=1.0), budget=None, ledger=ledger)


def test_a_share_of_a_ledger_is_calibrated_for(tmp_path):
    with DiskLedger(tmp_path / "ledger", budget=Budget(8.0, 1e-4)) as ledger:
        shares = [
            trained(method=dp_sgd(lr=1.0), budget=Budget(1.0, 1e-4), ledger=ledger).privacy.epsilon
            for _ in range(2)
        ]
        assert all(0.9 < share <= 1.0 for share in shares)
        assert ledger.entries == 32


def test_the_same_call_resumes(tmp_path):
    first = PrivateRun(
        model(),
        losses.cross_entropy,
        data(),
        method=dp_sgd(lr=1.0),
        checkpoints=adadps.Checkpoints(tmp_path / "run", every=2),
        **COMMON,
        **QUICK,
    )
    batches = first.batches()
    for _ in range(6):
        first.step(next(batches))
    next(batches)  # the checkpoint after six steps, and a step that is paid for and lost
    first.ledger.close()
    result = trained(method=dp_sgd(lr=1.0), checkpoints=tmp_path / "run")
    assert result.privacy.steps < 16, "lost steps were paid for, so the run ends earlier"
    assert result.privacy.epsilon <= 2.0


REFUSED = {
    "no batch size": ({"batch_size": None}, "batch_size or a sampler"),
    "both batch size and sampler": (
        {"sampler": poisson(examples=400, expected_size=50)},
        "give it alone",
    ),
    "a declared number beside a sampler": (
        {"sampler": poisson(examples=400, expected_size=50), "batch_size": None, "examples": 3},
        "give it alone",
    ),
    "no budget": ({"budget": None}, r"Expected a budget to calibrate.*noise_multiplier"),
    "no clip norm": ({"clip_norm": None}, "Expected a clip norm"),
    "two clip norms": ({"method": dp_sgd(privatize(clip_norm=2.0), lr=1.0)}, "one clip norm"),
    "two lengths": ({"steps": 4}, "either steps or epochs"),
    "no length": ({"epochs": None}, "either steps or epochs"),
    "no method": ({"method": "dp-sgd"}, "Expected a method"),
    "a clip norm for nothing to clip": ({"method": plain_sgd(1.0)}, "one clip norm"),
}


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_missing_or_given_twice_is_named(options, message):
    with pytest.raises(AdadpsError, match=message):
        trained(**{"method": dp_sgd(lr=1.0), **options})


def test_only_the_clip_norm_may_be_left_open():
    method = dp_sgd(privatize(noise_multiplier=3.0), lr=1.0)
    privacy = trained(method=method, budget=None).privacy
    assert (privacy.clip_norm, privacy.noise_multiplier) == (1.0, 3.0)


def test_hazard_24_an_open_method_has_no_epsilon():
    method, sampler = dp_sgd(lr=1.0), poisson(examples=400, expected_size=50)
    assert method.is_open
    assert "no noise yet" in method.exposures[0]
    spent = epsilon_of_run(method, sampler, 4, delta=1e-4, accountant=Accountant.RDP)
    assert math.isinf(spent)


def test_hazard_24_an_open_method_cannot_be_run():
    with pytest.raises(ContractError, match="Expected a clip norm"):
        PrivateRun(
            model(),
            losses.cross_entropy,
            data(),
            method=dp_sgd(lr=1.0),
            sampler=poisson(examples=400, expected_size=50),
            steps=2,
        )
    with pytest.raises(OrderError, match="before the first step"):
        privatize().apply(None, {}, None)


def test_debugging_survives_empty_batches():
    run = PrivateRun(
        model(),
        losses.cross_entropy,
        data(),
        method=dp_sgd(privatize(clip_norm=1.0, noise_multiplier=1.0), lr=1.0),
        sampler=poisson(examples=400, expected_size=0.01),
        steps=5,
        debug=True,
    )
    for batch in run.batches():
        run.step(batch)
    assert [fact["batch_size"] for fact in run.result().debug].count(0.0) >= 4
