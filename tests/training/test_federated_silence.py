"""A round in which all who were asked are silent ends the run, with nothing released."""

import pytest
import torch

from adadps import Checkpoints, poisson, shuffled
from adadps.errors import ContractError, DeviceError
from adadps.methods.stages import by_each_device, by_server, in_shares
from support.federations import EVERYBODY, QUIET, USERS, answer_of, federated, method, play

EACH_ONCE = shuffled(users=USERS, expected_size=USERS)
PLACES = {
    "server": (by_server(), EVERYBODY),
    "shares": (in_shares(minimum=2), EACH_ONCE),
    "devices": (by_each_device(), EACH_ONCE),
}
SILENT = {
    "no answer": lambda _run, _batch: None,
    "an error": lambda run, batch: run.answer(batch, 0, None),
    "another shape": lambda run, batch: run.answer(batch, 0, {"weight": torch.zeros(2)}),
    "who was not asked": lambda run, batch: run.answer(batch, 77, answer_of(run, 0)),
}


def weights_of(run):
    return {name: value.clone() for name, value in run.params.items()}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", SILENT)
def test_silence_releases_nothing_and_stays_paid(place, kind):
    noise, sampler = PLACES[place]
    run = federated(method(noise), sampler)
    before, rounds = weights_of(run), run.batches()
    batch = next(rounds)
    assert run.cohort(batch, range(USERS))
    SILENT[kind](run, batch)
    with pytest.raises(DeviceError, match=r"in round 1, found none.*stays paid"):
        run.step(batch)
    assert all(torch.equal(run.params[name], value) for name, value in before.items())
    found = run.result().privacy
    assert (found.steps, found.steps_paid, run.discarded) == (0, 1, 0)
    with pytest.raises(ContractError, match="interrupted"):
        next(rounds)


def test_one_answer_is_no_silence():
    run = federated(method(), EVERYBODY)
    batch = next(run.batches())
    run.cohort(batch, range(USERS))
    run.answer(batch, 0, answer_of(run, 0))
    run.answer(batch, 1, None)
    run.step(batch)
    assert run.taken == 1


def test_a_cohort_of_nobody_is_no_silence():
    """Poisson sampling draws one now and then; it is noised and paid for like any other."""
    seldom = poisson(users=USERS, expected_size=0.05)
    run, asked = play(federated(method(), seldom, rounds=10))
    assert () in asked, "19 of 20 cohorts are empty"
    assert run.taken == run.result().privacy.steps_paid == 10


def test_what_was_taken_before_the_silence_is_kept(tmp_path):
    """And a resumed run pays for its rounds alone, beside the silent one."""
    options = {"rounds": 4, "checkpoints": Checkpoints(tmp_path, every=10)}
    run, _ = play(federated(method(**QUIET), EVERYBODY, **options), until=2)
    wanted, batch = weights_of(run), next(run.batches())
    run.cohort(batch, range(USERS))
    with pytest.raises(DeviceError):
        run.step(batch)
    del run
    again = federated(method(**QUIET), EVERYBODY, **options)
    assert again.taken == 2
    assert all(torch.equal(again.params[name], value) for name, value in wanted.items())
    assert play(again)[0].taken == 4


def test_the_silent_round_counts_in_epsilon(tmp_path):
    options = {"rounds": 4, "checkpoints": Checkpoints(tmp_path, every=10)}
    run, _ = play(federated(method(), EVERYBODY, **options), until=2)
    batch = next(run.batches())
    run.cohort(batch, range(USERS))
    with pytest.raises(DeviceError):
        run.step(batch)
    del run
    found = play(federated(method(), EVERYBODY, **options))[0].result().privacy
    assert (found.steps, found.steps_paid) == (4, 5)
    assert found.epsilon == federated(method(), EVERYBODY, rounds=5).epsilon(5)
