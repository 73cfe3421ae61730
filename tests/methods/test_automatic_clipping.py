"""Automatic clipping: gradients divided by their norms, with the price of the usual clip."""

from __future__ import annotations

import pytest
import torch

import adadps
from adadps import Budget, examples, fit, poisson
from adadps.accounting.epsilon import epsilon_of_run
from adadps.engine.losses import cross_entropy
from adadps.engine.waist import Units
from adadps.errors import ContractError, SettingError
from adadps.methods import dp_sgd, dp_sgd_auto_clip
from adadps.methods.stages import (
    by_each_device,
    by_label,
    by_user,
    chain,
    clip_automatically,
    in_shares,
    privatize,
    sgd,
    train_locally,
)
from adadps.report.card import card_of, markdown_of
from adadps.training.federated.task import task_of
from adadps.types import Accountant
from support.neighbouring_sums import UNSOUND, rows_of_many_sizes, steps_of

PRIVACY = privatize(clip_norm=2.0, noise_multiplier=4.0)


@pytest.mark.parametrize("gamma", [1e-6, 0.01, 1.0, 100.0])
@pytest.mark.parametrize("chunk", [None, 3])
def test_one_row_moves_the_sum_by_less_than_the_clip_norm(gamma, chunk):
    release = clip_automatically(PRIVACY, stability=gamma)
    features, targets = rows_of_many_sizes()
    everyone, _, noise = steps_of(release, features, targets, chunk=chunk)
    assert [deviation for _, deviation in noise.asked] == [8.0, 8.0]
    moves = []
    for left_out in range(len(features)):
        kept = torch.arange(len(features)) != left_out
        others, _, _ = steps_of(release, features[kept], targets[kept], chunk=chunk)
        moves.append(float((everyone - others).norm()))
    assert max(moves) <= 2.0
    assert max(moves) > 1.9 * min(1.0, 1 / gamma)  # the bound is not met by releasing nothing


def test_a_gradient_that_is_not_finite_contributes_nothing():
    features, targets = rows_of_many_sizes()
    release = clip_automatically(PRIVACY)
    kept = torch.arange(len(features)) != UNSOUND
    everyone, _, _ = steps_of(release, features, targets)
    finite, _, _ = steps_of(release, features[kept], targets[kept])
    torch.testing.assert_close(everyone, finite, rtol=0, atol=0)


def test_a_group_is_normalised_as_one():
    features, targets = rows_of_many_sizes()
    units = Units(torch.tensor([0, 0, 0, 1, 1, 1, 1, 1, 1, 1]), 2, 0.5)
    grouped = privatize(clip_norm=2.0, noise_multiplier=4.0, groups=by_label(2))
    features[UNSOUND], targets[UNSOUND] = 1.0, 1.0
    total, _, _ = steps_of(clip_automatically(grouped), features, targets, units=units)
    assert 2.0 < float(total.norm()) <= 4.0


def test_the_clip_norm_is_one_where_it_is_open():
    assert dp_sgd_auto_clip(lr=0.1).release.clip_norm == 1.0
    assert dp_sgd_auto_clip(PRIVACY, lr=0.1).release.clip_norm == 2.0


def test_noise_is_calibrated_as_for_dp_sgd_and_the_card_says_how_it_clips():
    rows = torch.randn(200, 4)
    results = [
        fit(
            torch.nn.Linear(4, 2),
            cross_entropy,
            examples(rows, (rows[:, 0] > 0).long()),
            method=method,
            batch_size=20,
            steps=5,
            budget=Budget(epsilon=1.0, delta=1e-3),
        )
        for method in (dp_sgd_auto_clip(lr=0.5), dp_sgd(privatize(clip_norm=1.0), lr=0.5))
    ]
    automatic, usual = (result.privacy for result in results)
    assert automatic.noise_multiplier == usual.noise_multiplier
    assert automatic.epsilon == usual.epsilon <= 1.0
    card = card_of(results[0].describe())
    assert card["mechanism"]["clipping"] == "every gradient g is multiplied by C / (‖g‖ + 0.01)"
    assert card["mechanism"]["clipping"] in markdown_of(card)
    assert "clipping" not in card_of(results[1].describe())["mechanism"]


def test_epsilon_of_a_run_is_that_of_dp_sgd_and_noise_may_wait():
    sampler = poisson(examples=1000, expected_size=50)
    spent = [
        epsilon_of_run(method, sampler, 100, delta=1e-5, accountant=Accountant.RDP)
        for method in (dp_sgd_auto_clip(PRIVACY, lr=0.1), dp_sgd(PRIVACY, lr=0.1))
    ]
    assert spent[0] == spent[1] > 0
    assert dp_sgd_auto_clip(PRIVACY, lr=0.1).allows_late_noise


def test_debugging_states_no_share_that_was_clipped():
    """Every gradient is normalised: none of them is clipped, and none is left as it is."""
    rows = torch.randn(50, 4)
    result = fit(
        torch.nn.Linear(4, 2),
        cross_entropy,
        examples(rows, (rows[:, 0] > 0).long()),
        method=dp_sgd_auto_clip(PRIVACY, lr=0.1),
        sampler=poisson(examples=50, expected_size=50),
        steps=2,
        debug=True,
    )
    for entry in result.debug:
        assert entry["largest_norm"] > 0
        assert "clipped_fraction" not in entry


def test_users_are_normalised_as_one_and_protected_as_one():
    rows, users = torch.randn(60, 4), torch.arange(60) % 12
    privacy = privatize(noise_multiplier=3.0, groups=by_user(most=3))
    result = fit(
        torch.nn.Linear(4, 2),
        cross_entropy,
        examples(rows, (rows[:, 0] > 0).long(), users=users),
        method=dp_sgd_auto_clip(privacy, lr=0.5),
        sampler=poisson(users=12, expected_size=4),
        steps=3,
    )
    assert result.privacy.unit == "user"
    assert 0 < result.privacy.epsilon < float("inf")


@pytest.mark.parametrize("place", [in_shares(minimum=2), by_each_device()])
def test_devices_that_add_noise_clip_at_a_fixed_norm(place):
    privacy = privatize(noise_multiplier=3.0, groups=by_user(most=3, noise=place))
    with pytest.raises(ContractError, match="devices clip at a fixed norm"):
        clip_automatically(privacy)


def test_only_the_server_of_a_federation_normalises():
    privacy = privatize(noise_multiplier=3.0, groups=by_user(most=3))
    local = train_locally(lr=0.1, batch_size=4)
    method = chain(local, clip_automatically(privacy), sgd(1.0))
    assert task_of(method).clip_norm == float("inf")


@pytest.mark.parametrize("stability", [0.0, -1.0, 1e-9, float("inf"), float("nan")])
def test_a_stability_outside_its_range_is_refused(stability):
    with pytest.raises(SettingError):
        clip_automatically(PRIVACY, stability=stability)


def test_one_rule_of_clipping_at_a_time():
    with pytest.raises(ContractError, match="one rule"):
        clip_automatically(clip_automatically(PRIVACY))
    with pytest.raises(SettingError, match="finite clip_norm"):
        clip_automatically(privatize(clip_norm=float("inf"), noise_multiplier=0.0))


def test_it_is_exported():
    assert adadps.methods.dp_sgd_auto_clip is dp_sgd_auto_clip
