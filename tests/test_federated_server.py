"""A server without data against the same method in one process; cohorts, faults, ledgers."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent

from adadps import (
    Budget,
    Checkpoints,
    PrivateRun,
    fixed_size,
    on_held_out,
    poisson,
    shuffled,
    side,
    sparse_linear,
)
from adadps.drawing import Batch
from adadps.errors import (
    BudgetError,
    ContractError,
    OrderError,
    SettingError,
    SideInformationError,
)
from adadps.evaluation import accuracy
from adadps.federated.answers import longest, side_by_side, sound
from adadps.federated.cohorts import Cohorts
from adadps.federated.server import NOT_COMPARED
from adadps.federated.task import Task, task_of
from adadps.row_sparse import RowSparse
from adadps.stages import (
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
from adadps.types import Unit
from federations import (
    LABELS,
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
from problems import cross_entropy

EVERYBODY = poisson(users=USERS, expected_size=USERS)
SOME = poisson(users=USERS, expected_size=2)
QUIET = {"noise_multiplier": 0.0}


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
    ("noise", "sampler"),
    [
        (by_server(), SOME),
        (by_server(), fixed_size(users=USERS, expected_size=2)),
        (by_server(), shuffled(users=USERS, expected_size=2)),
        (in_shares(minimum=2), fixed_size(users=USERS, expected_size=3)),
        (by_each_device(), shuffled(users=USERS, expected_size=2)),
    ],
)
def test_the_same_ledger_as_in_one_process(noise, sampler):
    chosen = method(noise, noise_multiplier=2.0)
    wanted = in_process(chosen, sampler).result().privacy
    found = play(federated(chosen, sampler))[0].result().privacy
    assert found == wanted
    assert 0 < found.epsilon < math.inf
    assert found.unit == "user"


# --- cohorts ---


def drawn(sampler, nodes, rounds):
    cohorts = Cohorts(sampler, np.random.default_rng(5))
    return [cohorts.members(cohorts.next(), nodes) for _ in range(rounds)]


def test_every_connected_node_is_asked_at_the_declared_rate():
    """3 of 8 declared users are connected: each asked with 2/8, within 6 deviations of 4,000."""
    rounds = 4000
    for sampler in (poisson(users=8, expected_size=2), fixed_size(users=8, expected_size=2)):
        asked = drawn(sampler, [30, 10, 20], rounds)
        for node in (10, 20, 30):
            count = sum(node in cohort for cohort in asked)
            assert abs(count - rounds / 4) < 6 * math.sqrt(rounds * 3 / 16)


def test_a_shuffled_epoch_asks_everybody_once():
    for epoch in np.array_split(np.arange(9), 3):
        asked = drawn(shuffled(users=8, expected_size=3), range(8), 9)
        assert sorted(node for index in epoch for node in asked[index]) == list(range(8))


def test_who_comes_back_as_another_node_waits_for_the_next_epoch():
    cohorts = Cohorts(shuffled(users=4, expected_size=1), np.random.default_rng(5))
    asked = []
    for index in range(8):
        places = cohorts.next()
        nodes = [1, 2, 3] if index < 2 else [1, 2, 4]  # 3 has died and is 4 now
        asked.append(cohorts.members(places, nodes))
    assert not any(4 in cohort for cohort in asked[:4])
    assert sum(4 in cohort for cohort in asked[4:]) == 1
    assert not any(3 in cohort for cohort in asked[2:])


def test_more_nodes_than_declared_users_are_refused_before_anybody_is_asked():
    run = federated(method(), SOME)
    batch = next(run.batches())
    with pytest.raises(ContractError, match="at most the 5 declared users, found 6"):
        run.cohort(batch, range(6))
    run.cohort(batch, range(5))  # nothing was drawn
    run.step(batch)


def test_a_cohort_is_drawn_once_a_round():
    run = federated(method(), EVERYBODY)
    batch = next(run.batches())
    run.cohort(batch, range(5))
    with pytest.raises(OrderError, match="one cohort"):
        run.cohort(batch, range(5))


# --- faults ---


def one_round(chosen, answers, sampler=EVERYBODY):
    """The weights after one round in which ``answers(run, batch)`` come."""
    run = federated(chosen, sampler, rounds=1)
    for batch in run.batches():
        run.cohort(batch, range(USERS))
        answers(run, batch)
        run.step(batch)
    return run


def honest(run, batch, nodes=range(1, USERS)):
    for node in nodes:
        run.answer(batch, node, answer_of(run, node))


ROWS = torch.tensor([1, 2])
BROKEN = {
    "none": lambda _: None,
    "a list": lambda u: [u],
    "no names": lambda _: {},
    "a name too few": lambda u: {"weight": u["weight"]},
    "a name too many": lambda u: {**u, "other": u["bias"]},
    "another shape": lambda u: {**u, "bias": torch.zeros(4)},
    "integers": lambda u: {**u, "bias": torch.zeros(3, dtype=torch.int64)},
    "a number": lambda u: {**u, "bias": 1.0},
    "NaN": lambda u: {**u, "bias": torch.tensor([0.0, math.nan, 0.0])},
    "infinity": lambda u: {**u, "bias": torch.tensor([0.0, math.inf, 0.0])},
    "NaN in a row": lambda u: {**u, "weight": rows(ROWS, torch.full((2, 3), math.nan))},
    "a row twice": lambda u: {**u, "weight": rows(torch.tensor([1, 1]), torch.ones(2, 3))},
    "a row outside": lambda u: {**u, "weight": rows(torch.tensor([1, 12]), torch.ones(2, 3))},
    "a row below": lambda u: {**u, "weight": rows(torch.tensor([1, -1]), torch.ones(2, 3))},
    "rows of floats": lambda u: {**u, "weight": rows(torch.ones(2), torch.ones(2, 3))},
    "short rows": lambda u: {**u, "weight": rows(ROWS, torch.ones(2, 2))},
    "another axis": lambda u: {**u, "weight": rows(ROWS, torch.ones(2, 12), axis=0)},
    "no axis": lambda u: {**u, "weight": rows(ROWS, torch.ones(2, 3), axis=7)},
    "another table": lambda u: {**u, "weight": rows(ROWS, torch.ones(2, 3), shape=(3, 13))},
}


def rows(which, values, *, axis=1, shape=(3, 12)):
    return RowSparse(which, values, shape, axis)


@pytest.mark.parametrize("fault", [name for name in BROKEN if name != "another axis"])
def test_a_broken_answer_counts_as_none(fault):
    chosen = method(**QUIET)

    def with_fault(run, batch):
        run.answer(batch, 0, BROKEN[fault](answer_of(run, 0)))
        honest(run, batch)

    wanted = one_round(chosen, honest).params
    found = one_round(chosen, with_fault).params
    for name, value in wanted.items():
        assert torch.equal(found[name], value)


def test_rows_along_another_axis_are_rows_too():
    params = dict(model().named_parameters())
    turned = BROKEN["another axis"]({"bias": torch.zeros(3)})
    assert sound(turned, params, math.inf) is not None
    assert sound({**turned, "bias": torch.zeros(3)}, params, 1.0) is None, "longer than 1"


@pytest.mark.parametrize("at_once", [1, 40, 2**24])
def test_answers_of_all_forms_are_added_up_in_pieces(monkeypatch, at_once):
    """Rows, rows along the other axis, and whole tables; in pieces of any size."""
    monkeypatch.setattr("adadps.federated.answers.ENTRIES_AT_ONCE", at_once)

    def whole(run, batch):
        for node in range(USERS):
            update = answer_of(run, node)
            run.answer(batch, node, {**update, "weight": update["weight"].to_dense()})

    def mixed(run, batch):
        for node in range(USERS):
            update = answer_of(run, node)
            full = update["weight"].to_dense()
            forms = [update["weight"], rows(torch.arange(3), full, axis=0), full]
            run.answer(batch, node, {**update, "weight": forms[node % 3]})

    wanted, found = (one_round(method(**QUIET), answers).params for answers in (whole, mixed))
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value)


def test_an_answer_without_any_rows_is_one():
    """The device of somebody who has none of the words of a model without bias."""
    nothing = {"weight": rows(torch.empty(0, dtype=torch.int64), torch.empty(0, 3))}
    run = federated(method(**QUIET), EVERYBODY, rounds=1, weights=sparse_linear(12, 3, bias=False))
    before = run.params["weight"].clone()
    for batch in run.batches():
        run.answer(batch, run.cohort(batch, range(USERS))[0], nothing)
        run.step(batch)
    assert torch.equal(run.params["weight"], before)
    assert side_by_side([nothing, nothing]) == [[nothing, nothing]]


def test_a_huge_answer_is_clipped_by_the_server():
    """One device sends 10^30 in every entry: the mean moves by C/b, and no further."""
    chosen = method(**QUIET, last=(sgd(1.0),))

    def with_fault(run, batch):
        run.answer(batch, 0, {name: torch.full_like(v, 1e30) for name, v in run.params.items()})
        honest(run, batch)

    wanted, found = one_round(chosen, honest).params, one_round(chosen, with_fault).params
    moved = math.sqrt(sum(float((found[n] - v).double().square().sum()) for n, v in wanted.items()))
    assert moved == pytest.approx(0.3 / USERS, rel=1e-4)


def test_second_unasked_and_late_answers_are_dropped():
    chosen = method(**QUIET)
    wanted = one_round(chosen, honest)

    def more(run, batch):
        honest(run, batch)
        for node in (1, 77):
            run.answer(batch, node, {name: v + 1 for name, v in run.params.items()})
        run.answer(Batch(batch.run, 0), 0, answer_of(run, 0))  # of another round
        run.answer(Batch("other", 1), 0, answer_of(run, 0))

    found = one_round(chosen, more)
    found.answer(Batch(found.name, 1), 0, answer_of(found, 0))  # after its round
    for name, value in wanted.params.items():
        assert torch.equal(found.params[name], value)


def test_a_broken_answer_cannot_be_mended_by_a_second_one():
    chosen = method(**QUIET)

    def again(run, batch):
        run.answer(batch, 0, {})
        run.answer(batch, 0, answer_of(run, 0))
        honest(run, batch)

    wanted, found = one_round(chosen, honest).params, one_round(chosen, again).params
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


@pytest.mark.parametrize("asked", [True, False])
def test_a_round_without_answers_is_noised_and_paid(asked):
    run = federated(method(last=(sgd(1.0),)), SOME, rounds=3, weights=model())
    start = model().weight.detach()
    for batch in run.batches():
        if asked:
            run.cohort(batch, range(USERS))
        before = run.params["weight"].clone()
        run.step(batch)
        assert not torch.equal(run.params["weight"], before)
    assert not torch.equal(run.params["weight"], start)
    assert run.result().privacy.steps_paid == 3


# --- noise of devices ---

C, SIGMA = 0.5, 1.5


def noise_on(noise, sampler, answering, *, rounds=1):
    """Mean square of what one round adds to a million weights, from devices that bring nothing."""
    wide = torch.nn.Linear(1000, 1000, bias=False)
    torch.nn.init.zeros_(wide.weight)
    chosen = method(noise, clip_norm=C, noise_multiplier=SIGMA, last=(sgd(1.0),), before=())
    chosen = chain(train_locally(lr=1.0, batch_size=1), *chosen.steps)
    run = federated(chosen, sampler, rounds=rounds, weights=wide)
    deviation = run.task.noise * C
    generator = torch.Generator().manual_seed(1)
    for batch in run.batches():
        cohort = run.cohort(batch, range(sampler.examples))
        for node in cohort[:answering]:
            own = torch.randn(1000, 1000, generator=generator) * deviation
            run.answer(batch, node, {"weight": own})
        run.step(batch)
    size = sampler.expected_size
    return run, float((run.params["weight"] * size).double().square().mean())


WITHIN = 6 * math.sqrt(2 / 1e6)
"""Six deviations of the mean of a million squares: false alarms below 1e-8."""


@pytest.mark.parametrize(
    ("noise", "sampler", "answering", "expected"),
    [
        (by_server(), poisson(users=6, expected_size=6), 6, SIGMA),
        (by_server(), poisson(users=6, expected_size=6), 0, SIGMA),
        (in_shares(minimum=3), fixed_size(users=6, expected_size=6), 3, SIGMA),
        (in_shares(minimum=3), fixed_size(users=6, expected_size=6), 6, SIGMA * math.sqrt(2)),
        (in_shares(minimum=2, share=0.5), fixed_size(users=6, expected_size=6), 4, SIGMA),
        (by_each_device(), shuffled(users=6, expected_size=6), 4, SIGMA * 2),
    ],
)
def test_noise_is_there_once(noise, sampler, answering, expected):
    """Devices' noise is not added again, what they leave out is topped up, nothing is clipped."""
    _, found = noise_on(noise, sampler, answering)
    assert abs(found / (C * expected) ** 2 - 1) < WITHIN


def test_too_few_shares_are_discarded_and_stay_paid():
    run, found = noise_on(in_shares(minimum=3), fixed_size(users=6, expected_size=6), 2, rounds=2)
    assert found == 0
    assert run.discarded == 2
    assert run.result().privacy.steps_paid == 2


def test_without_any_answer_by_each_device_nothing_is_added():
    run, found = noise_on(by_each_device(), shuffled(users=6, expected_size=6), 0)
    assert (found, run.discarded) == (0, 0)


@pytest.mark.parametrize("noise", [in_shares(minimum=2), by_each_device()])
def test_an_honest_answer_with_noise_is_taken_as_it_is(noise):
    """Far longer than C, and neither clipped nor refused; ten times as much noise is refused."""
    params = {"weight": torch.zeros(100, 100)}
    task = task_of(method(noise, clip_norm=C, noise_multiplier=SIGMA))
    answer = {"weight": torch.randn(100, 100) * task.noise * C}
    assert float(answer["weight"].norm()) > 10 * C
    assert sound(answer, params, longest(task, params)) == answer
    wild = {"weight": 10 * answer["weight"]}
    assert sound(wild, params, longest(task, params)) is None


def test_a_refused_answer_does_not_count_as_noise():
    """Four answers, one of them beyond what is honest: the server tops up for three."""
    sampler = fixed_size(users=6, expected_size=6)
    chosen = method(in_shares(minimum=1, share=0.5), clip_norm=C, noise_multiplier=SIGMA)
    chosen = chain(train_locally(lr=1.0, batch_size=1), chosen.release, sgd(1.0))
    wide = torch.nn.Linear(1000, 1000, bias=False)
    torch.nn.init.zeros_(wide.weight)
    run = federated(chosen, sampler, rounds=1, weights=wide)
    for batch in run.batches():
        first, *others = run.cohort(batch, range(6))
        run.answer(batch, first, {"weight": torch.full((1000, 1000), 1e6)})
        for node in others[:3]:
            run.answer(batch, node, {"weight": torch.zeros(1000, 1000)})
        run.step(batch)
    found = float((run.params["weight"] * 6).double().square().mean())
    assert abs(found / (C**2 * (SIGMA**2 - 3 * 0.25)) - 1) < WITHIN


def test_a_device_clips_before_its_noise():
    """The mean of many noisy answers is the clipped update: no bias from the noise."""
    run = federated(method(**QUIET), EVERYBODY)
    wanted = answer_of(run, 3)
    found = [answer_of(run, 3, task=replace(run.task, noise=0.01)) for _ in range(40)]
    bias = torch.stack([answer["bias"] for answer in found]).double().mean(0)
    tolerance = 6 * 0.01 * 0.3 / math.sqrt(40)
    assert torch.allclose(bias, wanted["bias"].double(), rtol=0, atol=tolerance)
    assert all(isinstance(answer["weight"], torch.Tensor) for answer in found), "noise everywhere"
    assert isinstance(wanted["weight"], RowSparse), "own words alone"


def test_a_device_brings_at_most_so_many_rows():
    chosen = method(most=1, clip_norm=math.inf, noise_multiplier=0.0)
    run = federated(chosen, EVERYBODY)
    seen = {tuple(answer_of(run, 3)["weight"].rows.tolist()) for _ in range(60)}
    own = WORDS[LABELS.shape[0] - 10 : LABELS.shape[0] - 3]
    assert seen == {tuple(row.indices.tolist()) for row in own.sorted_indices()}


# --- refusals, before anything is paid ---


@pytest.mark.parametrize(
    ("chosen", "error", "text"),
    [
        (chain(privatize(clip_norm=1.0, noise_multiplier=1.0, groups=by_user(most=1)), sgd(1.0)),
         ContractError, "train_locally"),
        (chain(train_locally(lr=1.0, batch_size=1), privatize(clip_norm=1.0, noise_multiplier=1.0),
               sgd(1.0)), ContractError, "each user as one"),
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
        federated(method(in_shares(minimum=3)), fixed_size(users=USERS, expected_size=2))


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
    """Without noise the same weights; with noise, what was lost is paid for again."""
    quiet = method(**QUIET)
    whole = play(federated(quiet, EVERYBODY, rounds=6))[0].params
    kept = Checkpoints(tmp_path / "quiet", every=2)
    play(federated(quiet, EVERYBODY, rounds=6, checkpoints=kept), until=4)
    again, _ = play(federated(quiet, EVERYBODY, rounds=6, checkpoints=kept))
    for name, value in whole.items():
        torch.testing.assert_close(again.params[name], value)


def test_lost_rounds_are_paid_for_again(tmp_path):
    kept = Checkpoints(tmp_path, every=3)
    first = federated(method(), SOME, rounds=7, checkpoints=kept)
    for batch in first.batches():
        first.cohort(batch, range(USERS))
        if batch.index == 5:
            break  # dies in round 5, which is paid for: 4 and 5 are lost
        first.step(batch)
    del first
    run, _ = play(federated(method(), SOME, rounds=7, checkpoints=kept))
    found = run.result().privacy
    assert (found.steps, found.steps_paid) == (7, 9)
    assert found.epsilon > federated(method(), SOME, rounds=7).epsilon(7)
