"""Settings of single stages that are refused, and groups of examples."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial

import pytest
import torch

from adadps import stages
from adadps.engine.noise.randomness import secure
from adadps.engine.waist import Step
from adadps.errors import ContractError, OrderError, SettingError
from adadps.methods.stages import (
    adagrad,
    adam,
    average,
    by_label,
    by_position,
    chain,
    cosine,
    in_advance,
    mix,
    momentum,
    pretrain,
    privatize,
    rmsprop,
    sgd,
)
from support.stage_signals import (
    DATA,
    EVERY,
    PRIVACY,
    parameters,
    per_unit,
    released,
    step,
)

# --- settings of single stages ------------------------------------------------------------------

OUT_OF_RANGE: dict[str, Callable[[], object]] = {
    "clip norm 0": lambda: privatize(clip_norm=0.0, noise_multiplier=1.0),
    "negative clip norm": lambda: privatize(clip_norm=-1.0, noise_multiplier=1.0),
    "clip norm NaN": lambda: privatize(clip_norm=float("nan"), noise_multiplier=1.0),
    "noise without clip": lambda: privatize(clip_norm=float("inf"), noise_multiplier=1.0),
    "negative noise": lambda: privatize(clip_norm=1.0, noise_multiplier=-1.0),
    "infinite noise": lambda: privatize(clip_norm=1.0, noise_multiplier=float("inf")),
    "noise NaN": lambda: privatize(clip_norm=1.0, noise_multiplier=float("nan")),
    "learning rate 0": lambda: sgd(0.0),
    "negative schedule": lambda: sgd(lambda t: -t),
    "infinite learning rate": lambda: adam(float("inf")),
    "adam beta 1": lambda: adam(0.1, betas=(0.9, 1.0)),
    "rmsprop decay 1": lambda: rmsprop(0.1, decay=1.0),
    "adagrad epsilon 0": lambda: adagrad(0.1, epsilon=0.0),
    "momentum 1": lambda: momentum(1.0),
    "no epochs": lambda: pretrain(DATA, rmsprop(0.1), epochs=0),
    "empty groups": lambda: by_label(0),
    "cosine over no steps": lambda: cosine(0),
}


@pytest.mark.parametrize("build", OUT_OF_RANGE.values(), ids=OUT_OF_RANGE.keys())
def test_settings_out_of_range_are_refused(build):
    with pytest.raises(SettingError, match=r"Expected .* found"):
        build()


@pytest.mark.parametrize("beta", [-0.1, 1.1])
def test_a_share_of_private_gradient_outside_of_0_and_1_is_refused(beta):
    with pytest.raises(SettingError, match="beta"):
        mix(DATA, beta).apply(released(), None, step())


def test_privacy_parameters_have_no_silent_default():
    """Left out, they are open: such a chain is not private, and cannot be applied."""
    given = inspect.signature(privatize).parameters
    for name in ("clip_norm", "noise_multiplier"):
        assert given[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert given[name].default is None
    for stage in (privatize(), privatize(clip_norm=1.0), privatize(noise_multiplier=1.0)):
        method = chain(stage, sgd(0.1))
        assert method.is_open
        assert "no clip norm or no noise yet" in method.exposures[0]
        with pytest.raises(OrderError, match="before the first step"):
            method.apply(None, method.init({}), step())


# --- groups -------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [by_label, in_advance])
def test_privatize_takes_groups(build):
    groups = build(4)
    method = chain(privatize(clip_norm=1.0, noise_multiplier=1.0, groups=groups), sgd(0.1))
    assert method.release.groups is groups
    assert "of 4" in str(method)


def test_no_other_stage_takes_groups():
    takes = {
        name for name in EVERY if "groups" in inspect.signature(getattr(stages, name)).parameters
    }
    assert takes == {"privatize", "average"}


def test_an_average_has_no_groups():
    assert chain(average(), sgd(0.1)).release.groups is None


def test_hazard_03_groups_by_position_are_refused():
    with pytest.raises(ContractError, match="by_label"):
        by_position(4)


def test_a_sum_of_groups_is_divided_by_the_expected_number_of_groups():
    grouped = privatize(clip_norm=100.0, noise_multiplier=0.0, groups=by_label(2))
    alone = privatize(clip_norm=100.0, noise_multiplier=0.0)
    of_groups, _ = grouped.apply(per_unit(), grouped.init(parameters()), step())
    of_each, _ = alone.apply(per_unit(), alone.init(parameters()), step())
    torch.testing.assert_close(of_groups["weight"], 2 * of_each["weight"])


def test_noise_is_asked_for_at_sigma_times_c():
    quiet = privatize(clip_norm=0.5, noise_multiplier=0.0)
    noisy = privatize(clip_norm=0.5, noise_multiplier=3.0)
    without, _ = quiet.apply(per_unit(), quiet.init(parameters()), step())
    found, _ = noisy.apply(per_unit(), noisy.init(parameters()), step())
    torch.testing.assert_close(found["bias"], without["bias"] + 3.0 * 0.5 / 4.0)


def test_noise_from_the_operating_system_differs_each_time():
    now = Step(index=1, expected_size=4.0, noise=secure(), mean_gradient=lambda _batch: {})
    first, second = (PRIVACY.apply(per_unit(), {}, now)[0]["weight"] for _ in range(2))
    assert not torch.equal(first, second)


class Halved:
    """A schedule that is an object of its user's own."""

    def __init__(self, start):
        self.start = start

    def __call__(self, index):
        return self.start / 2**index


def at_least(least, schedule, index):
    return max(least, schedule(index))


def test_schedules_are_described_by_the_same_text_in_every_process():
    """It is a part of the plan: with an address in it no other process could resume the run."""
    assert str(sgd(Halved(1.0))) == "sgd(Halved)"
    assert str(sgd(partial(at_least, 0.1, Halved(1.0)))) == "sgd(at_least(0.1, Halved))"
