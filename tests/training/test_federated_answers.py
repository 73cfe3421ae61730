"""Whatever devices send, or do not send: the round goes on, clipped and noised."""

import math
from dataclasses import replace

import pytest
import torch

from adadps import sparse_linear
from adadps.methods.stages import sgd
from adadps.tensors.sums import RowSparse
from adadps.training.federated.answers import checked_update, grouped_by_form
from support.federations import EVERYBODY, QUIET, SOME, USERS, answer_of, federated, method, model


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
    "other numbers": lambda u: {**u, "bias": torch.zeros(3).to(torch.float8_e4m3fn)},
    "no numbers": lambda u: {**u, "bias": torch.zeros(3, device="meta")},
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


def test_rows_along_another_axis_are_taken_as_a_table():
    """So that one device cannot change the form in which those of others are added up."""
    params, axes = dict(model().named_parameters()), {"weight": 1, "bias": 0}
    turned = BROKEN["another axis"]({"bias": torch.zeros(3)})
    taken = checked_update(turned, params, math.inf, axes)
    assert torch.equal(taken["weight"], turned["weight"].to_dense())
    longer = {**turned, "bias": torch.zeros(3)}
    assert checked_update(longer, params, 1.0, axes) is None, "longer than 1"
    usual = {"weight": rows(ROWS, torch.ones(2, 3)), "bias": torch.zeros(3)}
    assert isinstance(checked_update(usual, params, math.inf, axes)["weight"], RowSparse)


@pytest.mark.parametrize("at_once", [1, 40, 2**24])
def test_answers_of_all_forms_are_added_up_in_pieces(monkeypatch, at_once):
    """Rows, rows along the other axis, and whole tables; in pieces of any size."""
    monkeypatch.setattr("adadps.training.federated.answers.ENTRIES_AT_ONCE", at_once)

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
    assert grouped_by_form([nothing, nothing]) == [[nothing, nothing]]


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
    rounds = []

    def more(run, batch):
        honest(run, batch)
        for node in (1, 77):
            run.answer(batch, node, {name: v + 1 for name, v in run.params.items()})
        for other in ({"index": 0}, {"run": "other"}, {"life": "earlier"}):
            run.answer(replace(batch, **other), 0, answer_of(run, 0))
        rounds.append(batch)

    found = one_round(chosen, more)
    found.answer(rounds[0], 0, answer_of(found, 0))  # after its round
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


@pytest.mark.parametrize("connected", [(), None])
def test_a_round_in_which_nobody_is_asked_is_noised_and_paid(connected):
    run = federated(method(last=(sgd(1.0),)), SOME, rounds=3, weights=model())
    start = model().weight.detach()
    for batch in run.batches():
        if connected is not None:
            assert run.cohort(batch, connected) == ()
        before = run.params["weight"].clone()
        run.step(batch)
        assert not torch.equal(run.params["weight"], before)
    assert not torch.equal(run.params["weight"], start)
    assert run.result().privacy.steps_paid == 3
