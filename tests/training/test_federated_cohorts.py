"""Who is asked in a round: connected nodes at the declared rate, once."""

import math

import numpy as np
import pytest

from adadps import fixed_size, poisson, shuffled
from adadps.errors import ContractError, OrderError
from adadps.training.federated.answers import Cohorts
from support.federations import EVERYBODY, SOME, answer_of, federated, method


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
    for node in run.cohort(batch, range(5)):  # nothing was drawn
        run.answer(batch, node, answer_of(run, node))
    run.step(batch)


def test_a_cohort_is_drawn_once_a_round():
    run = federated(method(), EVERYBODY)
    batch = next(run.batches())
    run.cohort(batch, range(5))
    with pytest.raises(OrderError, match="one cohort"):
        run.cohort(batch, range(5))
