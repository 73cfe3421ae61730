"""DP-AdamBC: Adam whose second moment is rid of the noise."""

from __future__ import annotations

import math

import pytest
import torch

from adadps import poisson
from adadps.accounting.epsilon import epsilon_of_run
from adadps.engine.waist import Step
from adadps.errors import OrderError, SettingError
from adadps.methods import dp_adam_bc, dp_sgd
from adadps.methods.stages import (
    adam_bc,
    average,
    by_each_device,
    by_label,
    by_user,
    chain,
    in_shares,
    momentum,
    privatize,
)
from adadps.types import Accountant
from support.stage_signals import PRIVACY, Loud, parameters, per_unit


def released(stage, **facts):
    step = Step(index=1, expected_size=4.0, noise=Loud(), mean_gradient=lambda _batch: {}, **facts)
    return stage.apply(per_unit(), stage.init(parameters()), step)[0]


def test_the_release_says_how_much_noise_is_in_each_entry():
    assert released(PRIVACY).deviation == 2.0 * 1.0 / 4
    assert released(average()).deviation == 0.0
    silent = privatize(clip_norm=float("inf"), noise_multiplier=0.0)
    assert released(silent).deviation == 0.0


def test_groups_are_divided_by_their_own_number():
    """Four examples in groups of two are two units."""
    grouped = privatize(clip_norm=3.0, noise_multiplier=2.0, groups=by_label(2))
    assert released(grouped).deviation == 2.0 * 3.0 / 2


@pytest.mark.parametrize(
    ("place", "expected"),
    [(None, 2.0), (in_shares(minimum=2), math.sqrt(6.0)), (by_each_device(), math.sqrt(12.0))],
    ids=["server", "shares", "devices"],
)
def test_noise_that_answers_bring_along_counts(place, expected):
    """Three answers: 3 shares of 2/√2 each, or 3 times all of the noise."""
    users = by_user(most=2, noise=place)
    stage = privatize(clip_norm=1.0, noise_multiplier=2.0, groups=users)
    assert released(stage, answers=3).deviation == pytest.approx(expected / 4)


def test_pure_noise_leaves_the_floor():
    """A long run of noise alone: Adam divides by the noise, DP-AdamBC by the root of the floor."""
    torch.manual_seed(0)
    stage, params = adam_bc(1.0, betas=(0.0, 0.999), floor=1e-2), {"w": torch.zeros(2000)}
    state = stage.init(params)
    for index in range(1, 400):
        noise = released(PRIVACY)
        noise.clear()
        noise["w"] = noise.deviation * torch.randn(2000, dtype=torch.float64)
        step = Step(index=index, expected_size=4.0, noise=Loud(), mean_gradient=lambda _batch: {})
        update, state = stage.apply(noise, state, step)
    second = state[1]["w"] / (1 - 0.999**399)
    assert float((second - 0.25).mean()) == pytest.approx(0.0, abs=0.002)
    divisor = (noise["w"] / -update["w"]).median()
    assert float(divisor) == pytest.approx(0.1, abs=0.01)


def test_noise_that_changes_is_averaged_as_the_squares_are():
    """Noise falls to nothing: what the first step has left in v̂ is still subtracted."""
    stage, params = adam_bc(1.0, betas=(0.0, 0.5), floor=1e-9), {"w": torch.zeros(1)}
    state = stage.init(params)
    for index, (value, deviation) in enumerate(((2.0, 2.0), (3.0, 0.0)), start=1):
        signal = released(PRIVACY)
        signal.clear()
        signal["w"], signal.deviation = torch.tensor([value], dtype=torch.float64), deviation
        step = Step(index=index, expected_size=4.0, noise=Loud(), mean_gradient=lambda _batch: {})
        update, state = stage.apply(signal, state, step)
    # v̂ = (½·½·4 + ½·9) / ¾, of which the noise is (½·½·4) / ¾
    assert float(update["w"]) == pytest.approx(-3.0 / math.sqrt(4.5 / 0.75))


def test_it_must_follow_the_release():
    with pytest.raises(OrderError, match=r"adam_bc.*right after `privatize"):
        chain(PRIVACY, momentum(0.9), adam_bc(0.1))
    stage = adam_bc(0.1)
    step = Step(index=1, expected_size=4.0, noise=Loud(), mean_gradient=lambda _batch: {})
    with pytest.raises(OrderError, match=r"right after the release"):
        stage.apply(dict(released(PRIVACY)), stage.init(parameters()), step)


@pytest.mark.parametrize("wrong", [{"floor": 0.0}, {"floor": -1.0}, {"betas": (0.9, 1.0)}])
def test_settings_outside_their_range_are_refused(wrong):
    with pytest.raises(SettingError):
        adam_bc(0.1, **wrong)


def test_epsilon_is_that_of_dp_sgd_and_noise_is_drawn_at_once():
    sampler = poisson(examples=1000, expected_size=50)
    spent = [
        epsilon_of_run(method, sampler, 100, delta=1e-5, accountant=Accountant.RDP)
        for method in (dp_adam_bc(PRIVACY, lr=0.1), dp_sgd(PRIVACY, lr=0.1))
    ]
    assert spent[0] == spent[1] > 0
    assert not dp_adam_bc(PRIVACY, lr=0.1).allows_late_noise
