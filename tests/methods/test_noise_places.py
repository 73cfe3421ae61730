"""Who adds the noise, how much there is on the sum, and what may be claimed for it."""

import math

import numpy as np
import pytest
import torch

from adadps import by_user, dp_sgd, examples, fit, fixed_size, poisson, privatize, shuffled
from adadps.data.sparse_rows import sparse_linear
from adadps.engine.waist import Step
from adadps.errors import ContractError, SettingError
from adadps.methods.stages import by_each_device, by_server, in_shares
from adadps.methods.stages.noise_place import deviation
from adadps.types import Accountant
from support.problems import cross_entropy

USERS, COHORT, SIGMA = 40, 8, 1.5


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (by_server(), SIGMA),
        (in_shares(minimum=8), SIGMA),
        (in_shares(minimum=4), SIGMA * math.sqrt(2)),
        (in_shares(minimum=1), SIGMA * math.sqrt(8)),
        (in_shares(minimum=4, share=0.1), SIGMA),
        (by_each_device(), SIGMA * math.sqrt(8)),
    ],
)
def test_noise_of_a_sum_of_eight(place, expected):
    assert deviation(place, SIGMA, answers=8) == pytest.approx(expected)
    assert expected >= SIGMA


def test_the_server_tops_up_what_devices_leave_out():
    place = in_shares(minimum=2, share=0.5)
    for answers in range(2, 20):
        assert deviation(place, SIGMA, answers) >= SIGMA * (1 - 1e-12)
    assert place.topped_up(SIGMA, 9) == 0.0
    assert place.topped_up(SIGMA, 8) == pytest.approx(0.5)


@pytest.mark.parametrize("place", [by_server(), in_shares(minimum=2), by_each_device()])
def test_what_is_released_has_that_noise(place):
    """An empty cohort's sum is noise alone: its variance over a million weights, within 6σ."""
    stage = privatize(clip_norm=0.5, noise_multiplier=SIGMA, groups=by_user(most=3, noise=place))
    params = {"weight": torch.zeros(1000, 1000)}
    from adadps.engine.chunked import ChunkedGradients
    from adadps.engine.noise.randomness import secure

    step = Step(index=1, expected_size=COHORT, noise=secure(), mean_gradient=None)
    released, _ = stage.apply(ChunkedGradients(()), params, step)
    found = float((released["weight"] * COHORT).double().square().mean())
    wanted = (0.5 * deviation(place, SIGMA, COHORT)) ** 2
    assert abs(found / wanted - 1) < 6 * math.sqrt(2 / 1e6)


def trained(place, sampler):
    rng = np.random.default_rng(1)
    data = examples(rng.normal(size=(80, 3)), rng.integers(2, size=80), users=np.arange(80) % USERS)
    private = privatize(clip_norm=1.0, noise_multiplier=SIGMA, groups=by_user(most=2, noise=place))
    model = sparse_linear(3, 2, bias=False)
    return fit(model, cross_entropy, data, method=dp_sgd(private, lr=0.1), sampler=sampler,
               steps=10, progress=False, delta=1e-3)  # fmt: skip


def test_each_place_is_accounted_for_what_it_is():
    cohorts = {"users": USERS, "expected_size": COHORT}
    server = trained(by_server(), poisson(**cohorts)).privacy
    shares = trained(in_shares(minimum=4), shuffled(**cohorts)).privacy
    alone = trained(by_each_device(), shuffled(**cohorts)).privacy
    assert shares.epsilon == alone.epsilon, "both per participation"
    paid = [charge for charge in alone.charges if "Gaussian" in charge["event"]]
    assert [charge["count"] for charge in paid] == [2], "10 steps are 2 epochs"
    assert server.epsilon < alone.epsilon < math.inf
    assert "noise by each device" in trained(by_each_device(), shuffled(**cohorts)).method


@pytest.mark.parametrize(
    ("place", "sampler"),
    [
        (in_shares(minimum=2), poisson(users=USERS, expected_size=COHORT)),
        (in_shares(minimum=2), fixed_size(users=USERS, expected_size=COHORT)),
        (by_each_device(), poisson(users=USERS, expected_size=COHORT)),
        (by_each_device(), fixed_size(users=USERS, expected_size=COHORT)),
    ],
)
def test_what_cannot_be_accounted_is_refused(place, sampler):
    with pytest.raises(ContractError, match="known guarantee"):
        trained(place, sampler)


def test_a_minimum_that_cannot_be_reached_is_refused():
    with pytest.raises(SettingError, match="Lower the minimum"):
        trained(in_shares(minimum=9), shuffled(users=USERS, expected_size=COHORT))


@pytest.mark.parametrize("wrong", [{"minimum": 0}, {"minimum": 1.5}, {"minimum": 2, "share": -1}])
def test_wrong_shares_are_refused(wrong):
    with pytest.raises(SettingError, match="Expected"):
        in_shares(**wrong)


def test_the_accountant_can_be_chosen_where_two_fit():
    private = privatize(clip_norm=1.0, noise_multiplier=2.0, groups=by_user(most=1))
    sampler = poisson(users=USERS, expected_size=COHORT)
    assert set(sampler.accountants(private.groups.grouping)) == {Accountant.PLD, Accountant.RDP}
