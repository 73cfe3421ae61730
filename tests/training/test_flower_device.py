"""The device's part with Flower's own types: what it pays, and what it answers."""

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent

pytest.importorskip("flwr", reason="needs Flower: pip install 'adadps[federated]'")

from flwr.app import (
    ArrayRecord,
    ConfigRecord,
)

from adadps import Accountant, Budget, DiskLedger, Relation, examples, shuffled
from adadps.accounting.epsilon import epsilon_of
from adadps.accounting.ledger import MemoryLedger
from adadps.methods.stages import by_each_device
from adadps.training.federated.flower import train_on_device
from support.federations import EVERYBODY, USERS, method, model, rows_of
from support.flower_grid import Nodes, as_a_server_app, honest, strategy  # noqa: F401
from support.problems import cross_entropy


def question(noise=None, sampler=EVERYBODY):
    held = strategy(method(noise, noise_multiplier=2.0), sampler)
    return held.configure_train(1, None, ConfigRecord(), Nodes(honest))[0]


def test_a_device_pays_on_a_ledger_of_its_own(tmp_path):
    """Whatever the server asks for: its budget is for three answers, over all processes."""
    budget = Budget(epsilon=1.01 * price_of_three(), delta=1e-3)
    message = question(by_each_device(), shuffled(users=USERS, expected_size=USERS))
    answered = []
    for _ in range(5):
        with DiskLedger(tmp_path / "own", budget=budget) as own:
            reply = train_on_device(
                message, model=model(), loss=cross_entropy, data=rows_of(0), ledger=own
            )
        answered.append(reply.has_content())
        if reply.has_content():
            assert set(reply.content) == {"adadps.update"}, "dense: noise is everywhere"
    assert answered == [True, True, True, False, False]


def price_of_three():
    three = SelfComposedDpEvent(GaussianDpEvent(2.0), 3)
    return epsilon_of(three, delta=1e-3, accountant=Accountant.RDP, relation=Relation.ZERO_OUT)


def test_an_answer_without_noise_fits_no_budget_of_a_device():
    own = MemoryLedger(Budget(epsilon=1e3, delta=1e-3))
    reply = train_on_device(
        question(), model=model(), loss=cross_entropy, data=rows_of(0), ledger=own
    )
    assert reply.has_error()
    assert own.entries == 0


def test_the_server_does_not_hear_why_a_device_failed():
    def secret():
        raise ValueError("the patient in row 7")

    reply = train_on_device(question(), model=model(), loss=cross_entropy, data=secret)
    assert reply.has_error()
    assert reply.error.reason == "no answer"
    wrong = examples(np.zeros((1, 4), np.float32), [0])
    reply = train_on_device(question(), model=model(), loss=cross_entropy, data=wrong)
    assert reply.error.reason == "no answer"


@pytest.mark.parametrize("rows", ["none", "a wrong label", "a reader that fails"])
def test_a_device_that_adds_noise_answers_whatever_its_rows_are(rows):
    """Else the sum would tell that somebody's rows are of no use: with less noise, or none."""
    message = question(by_each_device(), shuffled(users=USERS, expected_size=USERS))

    def fails():
        raise OSError("disk")

    held = {
        "none": lambda: examples(np.zeros((0, 12), np.float32), np.zeros(0, np.int64)),
        "a wrong label": examples(np.ones((1, 12), np.float32), [17]),
        "a reader that fails": fails,
    }
    reply = train_on_device(message, model=model(), loss=cross_entropy, data=held[rows])
    assert reply.has_content()
    update = reply.content["adadps.update"]
    assert {name: update[name].numpy().shape for name in update} == {
        "weight": (3, 12),
        "bias": (3,),
    }
    # on its grid one of some thousand numbers is zero by chance: half of 36 are so never
    assert np.count_nonzero(update["weight"].numpy()) > 18, "noise everywhere"


def test_a_diverged_device_answers_with_zero():
    message = question()
    arrays = {name: torch.full_like(p, 1e38) for name, p in model().state_dict().items()}
    message.content["arrays"] = ArrayRecord(arrays)
    reply = train_on_device(message, model=model(), loss=cross_entropy, data=rows_of(0))
    assert float(np.abs(reply.content["adadps.update"]["bias"].numpy()).max()) == 0
