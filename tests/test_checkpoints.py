"""Checkpoints: a run that is resumed is the same training, pays for what was lost, and says so."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent
from safetensors import SafetensorError
from scipy import sparse
from torch import nn

import adadps
import adadps.ledger.summary
from adadps import (
    Accountant,
    Budget,
    BudgetError,
    Checkpoints,
    ContractError,
    DataError,
    DiskLedger,
    MemoryLedger,
    PrivateRun,
    chain,
    epsilon_of_run,
    examples,
    fit,
    on_public,
    poisson,
    privatize,
    public_examples,
    reproducible_not_private,
    shuffled,
    side,
    sparse_linear,
)
from adadps.side.source import Transform
from adadps.stages import momentum, precondition, rmsprop, sgd
from problems import cross_entropy

RNG = np.random.default_rng(5)
DENSE = RNG.normal(size=(30, 6)).astype(np.float32)
WORDS = sparse.random(30, 6, density=0.4, format="csr", random_state=RNG, dtype=np.float32)
LABELS = RNG.integers(3, size=30)
TOLD = {"source": "a table", "public_because": "made up for a test"}
PUBLIC = public_examples(RNG.normal(size=(8, 6)), RNG.integers(3, size=8), batch_size=4, **TOLD)
FREQUENCIES = side.given_frequencies(np.arange(1, 7) / 6, **TOLD)
FREQUENT = side.frequency(FREQUENCIES, floor=0.01, power=0.5)
FULL = side.fixed({"weight": torch.linspace(0.5, 2, 18).view(3, 6)}, **TOLD)
RMS = side.public(PUBLIC, side.RMSPropStatistics(decay=0.9, epsilon=1e-3), refresh_every=3)
ADAM = side.public(
    PUBLIC, side.AdamStatistics(mixing=0.5, first_decay=0.9, second_decay=0.99, epsilon=1e-3)
)
SILENT = privatize(clip_norm=0.5, noise_multiplier=0.0)
NOISY = privatize(clip_norm=1.0, noise_multiplier=5.0)
METHODS = {
    "dp_sgd": adadps.dp_sgd(SILENT, 0.3),
    "dp_adam": adadps.dp_adam(SILENT, 0.1),
    "dp_rmsprop": adadps.dp_rmsprop(SILENT, 0.1),
    "dp_adagrad": adadps.dp_adagrad(SILENT, 0.1),
    "frequency": adadps.adadps(FREQUENT, SILENT, lr=0.3),
    "full diagonal": adadps.adadps(FULL, SILENT, lr=0.3),
    "weight decay": chain(precondition(FREQUENT), SILENT, sgd(0.3, weight_decay=0.1)),
    "public rmsprop": adadps.adadps(RMS, SILENT, lr=0.3),
    "public adam": adadps.adadps(ADAM, SILENT, lr=0.3),
    "momentum": chain(SILENT, momentum(0.9, debias=True), sgd(0.3)),
    "mixed": chain(
        SILENT, adadps.stages.mix(PUBLIC, 0.7), momentum(0.9), precondition(RMS), sgd(0.3)
    ),
    "weighted": adadps.dp_sgd_weighted(FREQUENT, SILENT, lr=0.3),
    "warm start": chain(adadps.stages.pretrain(PUBLIC, rmsprop(0.01), epochs=2), SILENT, sgd(0.3)),
    "decaying rate": adadps.dp_sgd(SILENT, lambda t: 0.5 / t),
}
KINDS = {"dense": DENSE, "words": WORDS}
EVERYONE = poisson(examples=30, expected_size=30)
SOME = poisson(examples=30, expected_size=6)


def model():
    torch.manual_seed(3)
    return sparse_linear(6, 3, bias=False)


def begin(folder, method=None, *, features=DENSE, sampler=SOME, steps=12, every=4, **options):
    return PrivateRun(
        model(),
        cross_entropy,
        examples(features, LABELS),
        method=method or adadps.dp_sgd(NOISY, 0.1),
        sampler=sampler,
        steps=steps,
        checkpoints=Checkpoints(folder, every=every),
        **options,
    )


def advance(run, until=None):
    """Step until ``until`` steps are taken; then the process is as good as dead."""
    for batch in run.batches():
        run.step(batch)
        if batch.index == until:
            break
    return run


def weights(run):
    return {name: value.clone() for name, value in run.params.items()}


# --- the same training --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", METHODS)
def test_a_resumed_run_ends_with_the_very_same_weights(tmp_path, name, kind):
    options = {"method": METHODS[name], "features": KINDS[kind], "sampler": EVERYONE}
    whole = advance(begin(tmp_path / "whole", **options))
    for stop in (2, 6, 9):
        advance(begin(tmp_path / "parts", **options), until=stop)
    resumed = begin(tmp_path / "parts", **options)
    assert resumed.taken == 8
    advance(resumed)
    for parameter, value in weights(whole).items():
        assert torch.equal(value, resumed.params[parameter]), parameter
    assert whole.history == resumed.history


def test_measurements_of_earlier_lives_stay(tmp_path):
    watched = on_public("few", DENSE, LABELS, every=1, accuracy=adadps.accuracy)
    run = begin(tmp_path)
    for batch in run.batches():
        run.step(batch)
        run.evaluate(watched)
        if batch.index == 5:
            break
    resumed = begin(tmp_path)
    assert [entry.step for entry in resumed.history] == [1, 2, 3, 4]
    assert resumed.history == run.history[:4]


def test_a_finished_run_is_only_read_again(tmp_path):
    options = {
        "method": adadps.dp_sgd(NOISY, 0.1),
        "sampler": SOME,
        "steps": 6,
        "checkpoints": tmp_path / "run",
        "evaluate": [on_public("few", DENSE, LABELS, accuracy=adadps.accuracy)],
    }
    first = fit(model(), cross_entropy, examples(DENSE, LABELS), **options)
    again = fit(model(), cross_entropy, examples(DENSE, LABELS), **options)
    assert first.privacy == again.privacy
    assert first.history == again.history != ()
    assert torch.equal(first.params["weight"], again.params["weight"])


def test_a_run_that_is_resumed_at_its_end_is_measured_there(tmp_path):
    options = {"steps": 12, "every": 12}
    advance(begin(tmp_path, **options))  # nobody has evaluated
    result = fit(
        model(),
        cross_entropy,
        examples(DENSE, LABELS),
        method=adadps.dp_sgd(NOISY, 0.1),
        sampler=SOME,
        steps=12,
        checkpoints=tmp_path,
        evaluate=[on_public("few", DENSE, LABELS, accuracy=adadps.accuracy)],
    )
    assert [entry.step for entry in result.history] == [12]


def test_noise_and_batches_are_drawn_afresh(tmp_path):
    advance(begin(tmp_path / "one"), until=4)
    advance(begin(tmp_path / "one"), until=5)  # writes nothing after step 4
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    ends = [weights(advance(begin(tmp_path / name))) for name in ("one", "other")]
    assert not torch.equal(ends[0]["weight"], ends[1]["weight"])


# --- what it costs ------------------------------------------------------------------------------


def test_hazard_16_steps_that_were_lost_are_paid_twice(tmp_path):
    advance(begin(tmp_path), until=7)  # checkpoint after 4
    result = advance(begin(tmp_path)).result()
    assert (result.privacy.steps, result.privacy.steps_paid) == (12, 15)
    expected = epsilon_of_run(
        adadps.dp_sgd(NOISY, 0.1), SOME, 15, delta=1 / 300, accountant=Accountant.PLD
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
    method = adadps.dp_sgd(NOISY, 0.1)
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
    shown = adadps.ledger.summary.summarise(tmp_path / "shared")
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
        adadps.dp_sgd(NOISY, 0.1), by_epoch, 15, delta=1 / 300, accountant=Accountant.PLD
    )
    assert result.privacy.epsilon == pytest.approx(two_epochs_more, rel=1e-12)


class Measured:
    """Side information that is drawn when it is read, and has a price."""

    provenance = FREQUENCIES.provenance
    event = GaussianDpEvent(20.0)

    def __init__(self):
        self.drawn = 0

    def init(self, params):
        return params

    def observe(self, state, _step):
        if isinstance(state, Transform):
            return state, state
        self.drawn += 1
        scale = {name: torch.rand(p.shape).double() + 1 for name, p in state.items()}
        return Transform(scale, lent=False), Transform(scale, lent=False)


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


# --- refusals -----------------------------------------------------------------------------------


def test_another_plan_is_refused(tmp_path):
    advance(begin(tmp_path), until=5)
    for other in (
        {"method": adadps.dp_adam(NOISY, 0.1)},
        {"steps": 13},
        {"sampler": poisson(examples=30, expected_size=5)},
        {"accountant": Accountant.RDP},
    ):
        with pytest.raises(ContractError, match="Expected"):
            begin(tmp_path, **other)
    assert advance(begin(tmp_path)).taken == 12


def test_another_ledger_is_refused(tmp_path):
    advance(begin(tmp_path / "run"), until=5)
    with (
        DiskLedger(tmp_path / "empty") as empty,
        pytest.raises(ContractError, match="ledger on which run"),
    ):
        begin(tmp_path / "run", ledger=empty, accountant=Accountant.PLD)
    with pytest.raises(ContractError, match="in memory"):
        begin(tmp_path / "run", ledger=MemoryLedger())


def test_a_ledger_in_memory_serves_as_long_as_it_lives(tmp_path):
    ledger = MemoryLedger()
    advance(begin(tmp_path, ledger=ledger), until=7)
    assert advance(begin(tmp_path, ledger=ledger)).result().privacy.steps_paid == 15
    assert ledger.entries == 15


def test_hazard_16_an_old_copy_of_the_ledger_is_refused(tmp_path):
    advance(begin(tmp_path / "run"), until=4)
    with DiskLedger(tmp_path / "run" / "ledger"):
        pass  # closing it folds its journal in
    shutil.copytree(tmp_path / "run", tmp_path / "old")
    advance(begin(tmp_path / "run"), until=8)
    shutil.rmtree(tmp_path / "old" / "step-00000000", ignore_errors=True)
    advance(begin(tmp_path / "run"))
    for file in ("ledger", "ledger-wal", "ledger-shm"):
        (tmp_path / "run" / file).unlink(missing_ok=True)
    shutil.copy(tmp_path / "old" / "ledger", tmp_path / "run" / "ledger")
    with pytest.raises(ContractError, match="old copy"):
        begin(tmp_path / "run")


def test_hazard_16_a_seed_cannot_be_resumed(tmp_path):
    advance(begin(tmp_path, randomness=reproducible_not_private(1)), until=5)
    with pytest.raises(ContractError, match="same noise"):
        begin(tmp_path, randomness=reproducible_not_private(1))


@pytest.mark.parametrize("options", [{"debug": True}, {"randomness": None}])
def test_hazard_24_a_life_that_was_not_private_marks_the_whole_run(tmp_path, options):
    marked = {"randomness": reproducible_not_private(1)} if "randomness" in options else options
    advance(begin(tmp_path, **marked), until=5)
    privacy = advance(begin(tmp_path)).result().privacy
    assert not privacy.private
    assert privacy.not_private_because


def test_a_model_of_another_shape_is_refused(tmp_path):
    advance(begin(tmp_path), until=5)
    with pytest.raises(DataError, match="shapes"):
        PrivateRun(
            nn.Linear(6, 3),
            cross_entropy,
            examples(DENSE, LABELS),
            method=adadps.dp_sgd(NOISY, 0.1),
            sampler=SOME,
            steps=12,
            checkpoints=tmp_path,
        )


def test_a_state_that_cannot_be_kept_is_refused_before_the_first_step(tmp_path):
    class Odd(Measured):
        event = FREQUENT.event

        def init(self, _params):
            return {"state": object()}

    with pytest.raises(ContractError, match="object"):
        begin(tmp_path, adadps.adadps(Odd(), NOISY, lr=0.1))


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("something")
    with pytest.raises(DataError, match="file"):
        begin(tmp_path / "file")
    with pytest.raises(adadps.SettingError, match="every"):
        Checkpoints(tmp_path, every=0)


def test_two_processes_on_one_folder_do_not_mix(tmp_path):
    advance(begin(tmp_path), until=5)
    one, other = begin(tmp_path), begin(tmp_path)
    advance(one, until=9)
    with pytest.raises(DataError, match="alone"):
        advance(other)


# --- what a hostile reader would try --------------------------------------------------------------


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
        begin(tmp_path / "other", adadps.dp_sgd(nearly, 0.1))


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
    monkeypatch.setattr(run, "_gradients", lambda _drawn: 1 / 0)
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
        next(run._drawing._batches)
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
        adadps.dp_sgd(NOISY, 0.1), by_epoch, 10, delta=1e-3, accountant=Accountant.PLD
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
        "method": adadps.dp_sgd(NOISY, 0.1),
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
        "method": adadps.dp_sgd(NOISY, 0.1),
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
    assert Checkpoints(tmp_path).latest().taken == 4


@pytest.mark.parametrize("wrong", [b"folder", 3])
def test_odd_folders_are_refused(wrong):
    with pytest.raises(adadps.SettingError, match="folder"):
        begin_with(wrong)
    for every in ("3", 2.5, 0):
        with pytest.raises(adadps.SettingError, match="every"):
            Checkpoints("folder", every=every)


def begin_with(checkpoints):
    return PrivateRun(
        model(),
        cross_entropy,
        examples(DENSE, LABELS),
        method=adadps.dp_sgd(NOISY, 0.1),
        sampler=SOME,
        steps=12,
        checkpoints=checkpoints,
    )


# --- what is in it ------------------------------------------------------------------------------


def newest(folder):
    return sorted(folder.glob("step-*"))[-1]


def test_hazard_23_a_checkpoint_holds_noised_weights_and_no_trace_of_batches(tmp_path):
    held = {}
    for name, features in (("one", WORDS), ("other", WORDS[::-1].tocsr() * 2)):
        method = adadps.adadps(FREQUENT, NOISY, lr=0.1)
        advance(begin(tmp_path / name, method, features=features), until=9)
        folder = newest(tmp_path / name)
        assert {path.name for path in folder.iterdir()} == {
            "checkpoint.json",
            "tensors.safetensors",
        }
        content = json.loads((folder / "checkpoint.json").read_text())
        held[name] = {k: v for k, v in content.items() if k not in ("run", "ledger", "digest")}
    assert held["one"] == held["other"]  # nothing in the text depends on the data


def test_hazard_23_weights_in_a_checkpoint_have_all_their_noise(tmp_path):
    """Rows that no batch has touched must be noised as well."""
    nothing = sparse.csr_matrix((30, 6), dtype=np.float32)
    method = adadps.adadps(FREQUENT, NOISY, lr=0.1)
    run = advance(begin(tmp_path, method, features=nothing, steps=8), until=5)
    before = Checkpoints(tmp_path).latest().params["weight"]
    start = model().weight.detach()
    assert bool((before != start).all())
    assert torch.equal(begin(tmp_path, method, features=nothing, steps=8).params["weight"], before)
    del run


def test_only_the_newest_checkpoint_is_kept(tmp_path):
    advance(begin(tmp_path))
    assert [path.name for path in tmp_path.glob("*step-*")] == ["step-00000012"]


def test_drafts_of_killed_processes_are_removed(tmp_path):
    advance(begin(tmp_path), until=5)
    (tmp_path / ".adadps-abc").mkdir()
    advance(begin(tmp_path))
    assert not list(tmp_path.glob(".adadps-*"))


def damage_truncate(folder, name):
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])


def damage_flip(folder, name):
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(bytes(content))


def damage_remove(folder, name):
    (folder / name).unlink()


@pytest.mark.parametrize("name", ["checkpoint.json", "tensors.safetensors"])
@pytest.mark.parametrize("damage", [damage_truncate, damage_flip, damage_remove])
def test_hazard_23_a_damaged_checkpoint_is_refused_and_left_as_it_is(tmp_path, damage, name):
    advance(begin(tmp_path), until=5)
    damage(newest(tmp_path), name)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with pytest.raises(DataError, match="step-00000004"):
        begin(tmp_path)
    after = sorted(path.name for path in tmp_path.rglob("*"))
    assert [name for name in before if "ledger" not in name] == [
        name for name in after if "ledger" not in name
    ]


def test_a_full_disk_is_told_and_loses_nothing(tmp_path, monkeypatch):
    run = begin(tmp_path)

    def full(*_arguments):
        raise SafetensorError("I/O error: No space left on device")  # as safetensors says it

    monkeypatch.setattr("adadps.result.save_file", full)
    with pytest.raises(DataError, match="No space"):
        advance(run)
    monkeypatch.undo()
    assert not list(tmp_path.glob(".adadps-*"))
    assert advance(begin(tmp_path)).result().privacy.steps_paid == 16


def test_a_checkpoint_says_when_it_is_due():
    assert [t for t in range(1, 11) if Checkpoints("x", every=4).is_due(t, 10)] == [4, 8, 10]
    assert [t for t in range(1, 201) if Checkpoints("x").is_due(t, 200)] == list(range(4, 201, 4))
    assert replace(Checkpoints("x"), every=3).every == 3
