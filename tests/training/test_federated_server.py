"""A server without data against the same method in one process; refusals, and what is kept."""

import json
import math
from dataclasses import replace

import pytest
import torch
from dp_accounting import GaussianDpEvent

from adadps import Budget, Checkpoints, PrivateRun, fixed_size, on_held_out, shuffled, side
from adadps.errors import (
    BudgetError,
    ContractError,
    DeviceError,
    SettingError,
    SideInformationError,
)
from adadps.methods.stages import (
    adam,
    average,
    by_each_device,
    by_server,
    by_user,
    chain,
    in_shares,
    precondition,
    privatize,
    sgd,
    train_locally,
)
from adadps.training.evaluation import accuracy
from adadps.training.federated.server import NOT_COMPARED
from adadps.training.federated.task import Task, task_of
from adadps.types import Unit
from support.federations import (
    EVERYBODY,
    LABELS,
    QUIET,
    SOME,
    USERS,
    WORDS,
    all_rows,
    answer_of,
    federated,
    known_words,
    method,
    model,
    play,
)
from support.problems import cross_entropy


def in_process(chosen, sampler, *, kind="sparse", weights=None, rounds=4, **options):
    run = PrivateRun(
        weights or model(kind),
        cross_entropy,
        all_rows(kind),
        method=chosen,
        sampler=sampler,
        steps=rounds,
        **options,
    )
    for batch in run.batches():
        run.step(batch)
    return run


def gaussian(noise_multiplier):
    return {"GaussianDpEvent": {"noise_multiplier": noise_multiplier}}


# --- one method, two engines ---


@pytest.mark.parametrize("kind", ["sparse", "dense"])
@pytest.mark.parametrize(("hidden", "last"), [(False, None), (True, None), (False, (adam(0.1),))])
def test_the_same_model_as_in_one_process(kind, hidden, last):
    """Without noise, with a clip that bites, and with everybody: up to float32."""
    chosen = method(**QUIET, last=last, at="0.weight" if hidden else "weight")
    wanted = in_process(chosen, EVERYBODY, kind=kind, weights=model(kind, hidden=hidden))
    run = federated(chosen, EVERYBODY, weights=model(kind, hidden=hidden))
    found, _ = play(run, kind=kind, hidden=hidden)
    for name, value in wanted.params.items():
        torch.testing.assert_close(found.params[name], value, rtol=1e-4, atol=1e-6)
        assert not torch.equal(value, dict(model(kind, hidden=hidden).named_parameters())[name])


def test_the_same_model_with_side_information_at_the_server():
    """The server scales, then clips: devices must leave the clip to it."""
    chosen = method(**QUIET, before=(precondition(known_words()),))
    assert task_of(chosen).clip_norm == math.inf
    wanted = in_process(chosen, EVERYBODY).params
    found, _ = play(federated(chosen, EVERYBODY))
    for name, value in wanted.items():
        torch.testing.assert_close(found.params[name], value, rtol=1e-4, atol=1e-6)


def test_the_same_average_without_privacy():
    chosen = chain(train_locally(lr=0.7, batch_size=2), average(groups=by_user(most=99)), sgd(1.0))
    wanted = in_process(chosen, EVERYBODY)
    found, _ = play(federated(chosen, EVERYBODY))
    assert found.epsilon() == math.inf
    torch.testing.assert_close(
        found.params["weight"], wanted.params["weight"], rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize(
    ("noise", "sampler", "event"),
    [
        (by_server(), SOME, (
            {"PoissonSampledDpEvent": {"sampling_probability": 0.4, "event": gaussian(2.0)}}, 4)),
        (by_server(), fixed_size(users=USERS, expected_size=2), (
            {"SampledWithoutReplacementDpEvent": {
                "source_dataset_size": 5, "sample_size": 2, "event": gaussian(1.0)}}, 4)),
        (by_server(), shuffled(users=USERS, expected_size=2), (gaussian(2.0), 2)),
        (in_shares(minimum=2), shuffled(users=USERS, expected_size=3), (gaussian(2.0), 2)),
        (by_each_device(), shuffled(users=USERS, expected_size=2), (gaussian(2.0), 2)),
    ],
)  # fmt: skip
def test_the_same_ledger_as_in_one_process(noise, sampler, event):
    """By the events of the contract's table, spelled out; what is assumed apart."""
    chosen = method(noise, noise_multiplier=2.0)
    wanted = in_process(chosen, sampler).result().privacy
    found = play(federated(chosen, sampler))[0].result().privacy
    assert replace(found, assumed_public=wanted.assumed_public) == wanted
    assert 0 < found.epsilon < math.inf
    charged = [charge for charge in found.charges if "NoOp" not in charge["event"]]
    assert [(json.loads(one["event"]), one["count"]) for one in charged] == [event]
    assert found.unit == "user"


def test_hazard_14_users_weigh_the_same_however_many_rows_they_have():
    """1 row or 7: what a user brings is added once, and divided by the expected cohort."""
    chosen = chain(train_locally(lr=0.7, batch_size=2), average(groups=by_user(most=99)), sgd(1.0))
    for sampler in (EVERYBODY, SOME):
        run = federated(chosen, sampler, rounds=1)
        for batch in run.batches():
            before = {name: value.clone() for name, value in run.params.items()}
            asked = run.cohort(batch, range(USERS))
            updates = [answer_of(run, node) for node in asked]
            for node, update in zip(asked, updates, strict=True):
                run.answer(batch, node, update)
            run.step(batch)
        moved = before["bias"] - run.params["bias"]
        wanted = sum((update["bias"] for update in updates), torch.zeros(3))
        torch.testing.assert_close(moved, wanted / sampler.expected_size)


# --- refusals, before anything is paid ---


@pytest.mark.parametrize(
    ("chosen", "error", "text"),
    [
        (chain(privatize(clip_norm=1.0, noise_multiplier=1.0, groups=by_user(most=1)), sgd(1.0)),
         ContractError, "train_locally"),
        (chain(train_locally(lr=1.0, batch_size=1), privatize(clip_norm=1.0, noise_multiplier=1.0),
               sgd(1.0)), ContractError, "clips by user"),
        (method(in_shares(minimum=1), before=(precondition(known_words()),)),
         ContractError, "right after"),
        (method(before=(precondition(side.fixed(
            {"weight": (torch.ones(12), 1)}, source="x", public_because="y",
            event=GaussianDpEvent(1.0))),)), SideInformationError, "for one user"),
        (method(before=(precondition(side.noisy_frequencies(
            WORDS, clip_norm=1.0, noise_multiplier=9.0, floor=0.1, source="x")),)),
         ContractError, "that is given"),
    ],
)  # fmt: skip
def test_methods_that_devices_cannot_follow_are_refused(chosen, error, text):
    with pytest.raises(error, match=text):
        federated(chosen, fixed_size(users=USERS, expected_size=2))


def test_a_price_by_user_is_paid_first():
    bought = side.fixed(
        {"weight": (torch.ones(12), 1)},
        source="a survey",
        public_because="noised",
        event=GaussianDpEvent(3.0),
        unit=Unit.USER,
    )
    run = federated(method(before=(precondition(bought),)), SOME, rounds=2)
    play(run)
    assert any("3.0" in charge["event"] for charge in run.result().privacy.charges)


@pytest.mark.parametrize("noise", [in_shares(minimum=2), by_each_device()])
def test_poisson_cohorts_with_noise_of_devices_are_refused(noise):
    with pytest.raises(ContractError, match="known guarantee"):
        federated(method(noise), SOME)


def test_a_minimum_above_the_cohort_is_refused():
    with pytest.raises(SettingError, match="Lower the minimum"):
        federated(method(in_shares(minimum=3)), shuffled(users=USERS, expected_size=2))


def test_a_minimum_above_the_last_cohort_of_an_epoch_is_refused():
    """Five users in cohorts of three: the second has two, and could never count."""
    with pytest.raises(SettingError, match="at most 2 answers"):
        federated(method(in_shares(minimum=3)), shuffled(users=USERS, expected_size=3))
    run, _ = play(federated(method(in_shares(minimum=2)), shuffled(users=USERS, expected_size=3)))
    assert run.discarded == 0


def test_a_plan_beyond_its_budget_is_refused():
    with pytest.raises(BudgetError, match="Nothing was drawn"):
        federated(method(), SOME, rounds=500, budget=Budget(epsilon=1.0, delta=1e-3))


@pytest.mark.parametrize("wrong", [{"noise": -1.0}, {"most": 0}, {"epochs": 1.5}, {"lr": 0.0}])
def test_a_device_refuses_senseless_tasks(wrong):
    sent = task_of(method()).as_settings()
    assert Task.from_settings(sent) == task_of(method())
    with pytest.raises(SettingError, match="Expected"):
        Task.from_settings({**sent, **wrong})
    with pytest.raises(SettingError, match="settings"):
        Task.from_settings({**sent, "more": 1})


# --- what is said, and what is kept ---


def test_nothing_about_answers_is_said():
    """Two runs with everybody and with nobody leave the same record but for the weights."""
    records = []
    for nodes in (range(USERS), ()):
        run, _ = play(federated(method(), SOME), nodes=nodes)
        found = run.result()
        records.append((found.privacy, found.settings, found.history, found.debug))
        assert run.discarded == 0
    assert records[0] == records[1]


def test_public_rows_that_devices_may_have_are_said_to_be_assumed_away():
    """In one process such rows are left out; the server cannot look for them on devices."""
    corpus = side.corpus_frequencies(WORDS[:5], source="a corpus", public_because="published")
    known = side.frequency(corpus, floor=0.1)
    chosen = method(before=(precondition(known),))
    assumed = federated(chosen, SOME, assumed_public=["three classes"]).result().privacy
    assert NOT_COMPARED in assumed.assumed_public
    assert "three classes" in assumed.assumed_public
    assert NOT_COMPARED not in federated(method(), SOME).result().privacy.assumed_public


def test_evaluation_on_held_out_data():
    run, _ = play(federated(method(), EVERYBODY))
    held = on_held_out("test", WORDS, LABELS, accuracy=accuracy)
    found = run.evaluate(held)
    outputs = torch.from_numpy(WORDS.toarray()) @ run.params["weight"].T + run.params["bias"]
    assert found[0].value == pytest.approx(accuracy(outputs, torch.from_numpy(LABELS)))
    assert run.result().history == tuple(found)


def test_a_new_server_goes_on_where_the_old_one_died(tmp_path):
    """Without noise, with the same weights."""
    quiet = method(**QUIET)
    whole = play(federated(quiet, EVERYBODY, rounds=6))[0].params
    kept = Checkpoints(tmp_path / "quiet", every=2)
    play(federated(quiet, EVERYBODY, rounds=6, checkpoints=kept), until=4)
    again, _ = play(federated(quiet, EVERYBODY, rounds=6, checkpoints=kept))
    for name, value in whole.items():
        torch.testing.assert_close(again.params[name], value)


def test_an_answer_to_the_round_of_a_dead_server_is_dropped(tmp_path):
    """The round has the same number in the new one's life, and is another round."""
    kept = Checkpoints(tmp_path, every=1)
    quiet = method(**QUIET)
    first = federated(quiet, EVERYBODY, rounds=2, checkpoints=kept)
    old = next(iter(first.batches()))
    first.cohort(old, range(USERS))
    stale = answer_of(first, 0)
    del first
    run = federated(quiet, EVERYBODY, rounds=2, checkpoints=kept)
    before = {name: value.clone() for name, value in run.params.items()}
    batch = next(iter(run.batches()))
    assert (batch.run, batch.index) == (old.run, old.index)
    run.cohort(batch, range(USERS))
    run.answer(old, 0, stale)
    with pytest.raises(DeviceError, match="Expected an answer that counts"):
        run.step(batch)
    assert all(torch.equal(run.params[name], value) for name, value in before.items())


def test_lost_rounds_are_paid_for_again(tmp_path):
    kept = Checkpoints(tmp_path, every=3)
    first = federated(method(), SOME, rounds=7, checkpoints=kept)
    for batch in first.batches():
        first.cohort(batch, ())
        if batch.index == 5:
            break  # dies in round 5, which is paid for: 4 and 5 are lost
        first.step(batch)
    del first
    run, _ = play(federated(method(), SOME, rounds=7, checkpoints=kept))
    found = run.result().privacy
    assert (found.steps, found.steps_paid) == (7, 9)
    assert found.epsilon > federated(method(), SOME, rounds=7).epsilon(7)


def test_with_a_budget_a_resumed_server_takes_fewer_rounds(tmp_path):
    """What was lost is paid for from the same budget."""
    whole = federated(method(), SOME, rounds=7)
    budget = Budget(epsilon=1.001 * whole.epsilon(7), delta=whole.delta)
    options = {"rounds": 7, "budget": budget, "checkpoints": Checkpoints(tmp_path, every=3)}
    first = federated(method(), SOME, **options)
    for batch in first.batches():
        first.cohort(batch, ())
        if batch.index == 5:
            break
        first.step(batch)
    del first
    found = play(federated(method(), SOME, **options))[0].result().privacy
    assert (found.steps, found.steps_paid) == (5, 7)
    assert found.epsilon <= budget.epsilon
