"""Ways to make a resumed run claim less than it spent, found by reading the code with ill will."""

import shutil

import pytest
import torch
from dp_accounting import GaussianDpEvent
from torch import nn

import adadps
import adadps.accounting.ledger.summary
from adadps import (
    Accountant,
    Budget,
    BudgetError,
    Checkpoints,
    DiskLedger,
    PrivateRun,
    epsilon_of_run,
    examples,
    fit,
    on_public,
    privatize,
    shuffled,
    side,
)
from adadps.accounting.ledger import MemoryLedger
from adadps.errors import ContractError, DataError
from support.problems import cross_entropy
from support.resuming import (
    DENSE,
    FREQUENT,
    LABELS,
    NOISY,
    SOME,
    TOLD,
    WORDS,
    Measured,
    advance,
    begin,
    model,
)


def test_hazard_24_a_life_that_was_not_private_is_on_the_ledger_if_nowhere_else(tmp_path):
    """It dies before it has a checkpoint to leave a mark in."""
    for where in ({}, {"ledger": MemoryLedger()}):
        folder = tmp_path / str(len(where))
        advance(begin(folder, **where), until=5)
        advance(begin(folder, debug=True, **where), until=7)
        privacy = advance(begin(folder, **where)).result().privacy
        assert not privacy.private
        assert "charged as not private" in "".join(privacy.not_private_because)


def test_hazard_16_before_the_first_checkpoint_another_ledger_is_refused_too(tmp_path):
    advance(begin(tmp_path / "memory", ledger=MemoryLedger()), until=3)
    with pytest.raises(ContractError, match="does not know what was spent"):
        begin(tmp_path / "memory", ledger=MemoryLedger())
    advance(begin(tmp_path / "disk"), until=3)
    for file in (tmp_path / "disk").glob("ledger*"):
        file.unlink()
    with pytest.raises(ContractError, match="does not know what was spent"):
        begin(tmp_path / "disk")


def test_hazard_16_another_price_of_the_same_side_information_is_another_plan(tmp_path):
    def priced(sigma):
        named = {"weight": torch.ones(3, 6)}
        return side.fixed(named, event=GaussianDpEvent(sigma), **TOLD)

    advance(begin(tmp_path, adadps.adadps(priced(1.0), NOISY, lr=0.1)), until=5)
    with pytest.raises(ContractError, match="plan"):
        begin(tmp_path, adadps.adadps(priced(100.0), NOISY, lr=0.1))
    nearly = privatize(clip_norm=1.0, noise_multiplier=5.0000001)
    advance(begin(tmp_path / "other"), until=5)
    with pytest.raises(ContractError, match="plan"):
        begin(tmp_path / "other", adadps.dp_sgd(nearly, lr=0.1))


@pytest.mark.parametrize("memory", [True, False])
def test_hazard_16_epsilon_is_what_the_ledger_holds_however_often_a_run_is_opened(tmp_path, memory):
    by_epoch = shuffled(examples=30, expected_size=6)
    with DiskLedger(tmp_path / "ledger") as disk:
        ledger = MemoryLedger() if memory else disk
        options = {"sampler": by_epoch, "ledger": ledger, "accountant": Accountant.RDP}
        runs = [begin(tmp_path / "run", **options) for _ in range(4)]
        for run in runs:
            run.step(next(run.batches()))
        for run in runs:
            assert run.epsilon() == pytest.approx(ledger.epsilon(run.delta), rel=1e-9)


class Stop(BaseException):
    """Like Ctrl-C."""


def test_hazard_16_a_run_whose_step_failed_does_not_go_on(tmp_path, monkeypatch):
    """Without its noise, a failed step would show in the weights of the steps around it."""
    run = begin(tmp_path)
    batches = run.batches()
    run.step(next(batches))
    batch = next(batches)
    monkeypatch.setattr(run._stepper, "_gradients", lambda _drawn: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run.step(batch)
    monkeypatch.undo()
    with pytest.raises(ContractError, match="interrupted"):
        next(run.batches())
    resumed = advance(begin(tmp_path))
    assert resumed.result().privacy.steps_paid == 14


def test_hazard_16_an_interrupted_draw_does_not_begin_an_epoch_for_free(tmp_path, monkeypatch):
    run = begin(tmp_path, sampler=shuffled(examples=30, expected_size=6))
    run.step(next(run.batches()))

    def interrupted():
        next(run._stepper.batches._batches)
        raise Stop

    monkeypatch.setattr(run, "_draw", interrupted)
    with pytest.raises(Stop):
        next(run.batches())
    monkeypatch.undo()
    with pytest.raises(ContractError, match="interrupted"):
        next(run.batches())


def test_an_older_life_on_the_same_model_cannot_step(tmp_path):
    shared = model()
    options = {
        "method": adadps.adadps(FREQUENT, NOISY, lr=0.1),
        "sampler": SOME,
        "steps": 12,
        "checkpoints": Checkpoints(tmp_path, every=2),
    }
    old = PrivateRun(shared, cross_entropy, examples(WORDS, LABELS), **options)
    advance(old, until=3)
    new = PrivateRun(shared, cross_entropy, examples(WORDS, LABELS), **options)
    new.step(next(new.batches()))
    with pytest.raises(ContractError, match="one run at a time"):
        old.step(next(old.batches()))


def test_checkpoints_are_written_however_the_loop_is_driven(tmp_path):
    one = begin(tmp_path / "next", every=2)
    for _ in range(4):
        one.step(next(one.batches()))
    assert Checkpoints(tmp_path / "next").latest().taken == 2
    other = begin(tmp_path / "zip", every=2)
    for _, batch in zip(range(4), other.batches(), strict=False):
        other.step(batch)
    other.result()
    assert Checkpoints(tmp_path / "zip").latest().taken == 4


def test_a_metric_may_return_a_tensor(tmp_path):
    watched = on_public("few", DENSE, LABELS, accuracy=lambda *_: torch.tensor(0.5))
    run = begin(tmp_path)
    for batch in run.batches():
        run.step(batch)
        run.evaluate(watched)
    assert Checkpoints(tmp_path).latest().history[0].value == 0.5


@pytest.mark.parametrize("until", [1, 3])
def test_a_resumed_shuffled_run_ends_where_its_budget_ends(tmp_path, until):
    by_epoch = shuffled(examples=30, expected_size=6)
    options = {"sampler": by_epoch, "steps": 10, "every": 3}
    planned = epsilon_of_run(
        adadps.dp_sgd(NOISY, lr=0.1), by_epoch, 10, delta=1e-3, accountant=Accountant.PLD
    )
    options["budget"] = Budget(planned * 1.0001, 1e-3)
    advance(begin(tmp_path, **options), until=until)
    advance(begin(tmp_path, **options))  # ends earlier, and does not raise
    with DiskLedger(tmp_path / "ledger") as ledger:
        assert ledger.epsilon(1e-3) <= planned * 1.0001


@pytest.mark.parametrize("until", [1, 2])
def test_side_information_that_is_paid_again_leaves_room_for_fewer_steps(tmp_path, until):
    method = adadps.adadps(Measured(), NOISY, lr=0.1)
    planned = epsilon_of_run(method, SOME, 12, delta=1e-3, accountant=Accountant.RDP)
    options = {"budget": Budget(planned * 1.02, 1e-3), "accountant": Accountant.RDP}
    advance(begin(tmp_path, method, **options), until=until)
    resumed = advance(begin(tmp_path, method, **options))
    assert 0 <= resumed.taken < 12
    assert resumed.epsilon() <= planned * 1.02


def test_looking_at_a_folder_removes_nothing(tmp_path):
    advance(begin(tmp_path), until=5)
    (tmp_path / ".adadps-draft").mkdir()
    Checkpoints(tmp_path).latest()
    assert (tmp_path / ".adadps-draft").exists()


def test_other_frozen_weights_are_refused(tmp_path):
    def with_frozen(seed):
        torch.manual_seed(seed)
        layers = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
        layers[0].requires_grad_(False)
        return layers

    options = {
        "method": adadps.dp_sgd(NOISY, lr=0.1),
        "sampler": SOME,
        "steps": 12,
        "checkpoints": Checkpoints(tmp_path, every=2),
    }
    data = examples(DENSE, LABELS)
    advance(PrivateRun(with_frozen(1), cross_entropy, data, **options), until=3)
    with pytest.raises(DataError, match="frozen"):
        PrivateRun(with_frozen(2), cross_entropy, data, **options)
    assert advance(PrivateRun(with_frozen(1), cross_entropy, data, **options)).taken == 12


def test_a_folder_whose_checkpoint_was_deleted_begins_anew_and_has_paid(tmp_path):
    advance(begin(tmp_path), until=7)
    for folder in tmp_path.glob("step-*"):
        shutil.rmtree(folder)
    again = begin(tmp_path)
    assert again.taken == 0
    assert advance(again).result().privacy.steps_paid == 7 + 12


def test_a_plan_that_was_refused_leaves_the_folder_free(tmp_path):
    ledger = DiskLedger(tmp_path / "ledger", budget=Budget(0.3, 1e-3))
    options = {
        "method": adadps.dp_sgd(NOISY, lr=0.1),
        "sampler": SOME,
        "ledger": ledger,
        "checkpoints": tmp_path / "run",
    }
    with pytest.raises(BudgetError):
        fit(model(), cross_entropy, examples(DENSE, LABELS), steps=500, **options)
    result = fit(model(), cross_entropy, examples(DENSE, LABELS), steps=1, **options)
    assert result.privacy.steps == 1


def test_a_finished_run_that_is_read_again_leaves_the_model_as_usual(tmp_path):
    options = {"features": WORDS, "method": adadps.adadps(FREQUENT, NOISY, lr=0.1)}
    advance(begin(tmp_path, **options))
    layer = nn.Linear(6, 3, bias=False)
    PrivateRun(
        layer,
        cross_entropy,
        examples(WORDS, LABELS),
        method=options["method"],
        sampler=SOME,
        steps=12,
        checkpoints=tmp_path,
    )
    assert layer.weight.is_contiguous()


def test_folders_are_ordered_by_number(tmp_path):
    advance(begin(tmp_path), until=5)
    (tmp_path / "step-00000004").rename(tmp_path / "step-100000004")
    (tmp_path / "step-99999999").mkdir()
    with pytest.raises(DataError, match="step-100000004"):
        Checkpoints(tmp_path).latest()


@pytest.mark.parametrize("wrong", [b"folder", 3])
def test_odd_folders_are_refused(wrong):
    with pytest.raises(adadps.errors.SettingError, match="folder"):
        begin_with(wrong)
    for every in ("3", 2.5, 0):
        with pytest.raises(adadps.errors.SettingError, match="every"):
            Checkpoints("folder", every=every)


def begin_with(checkpoints):
    return PrivateRun(
        model(),
        cross_entropy,
        examples(DENSE, LABELS),
        method=adadps.dp_sgd(NOISY, lr=0.1),
        sampler=SOME,
        steps=12,
        checkpoints=checkpoints,
    )
