"""Side information from a run's own past releases: DP² and scale-then-privatize."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse

from adadps import examples, fit, poisson, sparse_linear
from adadps.accounting.epsilon import epsilon_of_run
from adadps.engine.losses import cross_entropy
from adadps.engine.passes.validation import objective
from adadps.engine.waist import NoisySum, Step
from adadps.errors import ContractError, OrderError, SettingError, SideInformationError
from adadps.methods import dp2, dp_sgd, scale_then_privatize
from adadps.methods.side import delayed_releases, fixed, release_moments, uniform, whiten
from adadps.methods.stages import (
    by_user,
    chain,
    momentum,
    precondition,
    privatize,
    reparametrise,
    sgd,
    train_locally,
    unscale,
)
from adadps.report.html.reports import noise_section
from adadps.training.federated.task import task_of
from adadps.types import Accountant
from support.neighbouring_sums import INPUTS, OUTPUTS, Silent, rows_of_many_sizes, squared
from support.stage_signals import DATA, TOLD

PRIVACY = privatize(clip_norm=2.0, noise_multiplier=4.0)
METHODS = {
    "dp2": dp2(PRIVACY, lr=0.3, preconditioned_lr=0.1, delay=2, reuse=2, epsilon=1e-2),
    "scale_then_privatize": scale_then_privatize(PRIVACY, lr=0.1),
}
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())


class Drawn(Silent):
    """Normal noise of a seed, and a record of the sums before it."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.draws = torch.Generator().manual_seed(seed)

    def release(self, total, *, standard_deviation):
        drawn = torch.randn(total.shape, generator=self.draws, dtype=torch.float64)
        return super().release(total, standard_deviation=standard_deviation) + (
            standard_deviation * drawn
        )


def world(method, batches, *, late=False):
    """Run a few steps; return for each the D that was applied, and the sum before the noise."""
    torch.manual_seed(1)
    features, targets = rows_of_many_sizes()
    data = examples(features, targets)
    held = objective(torch.nn.Linear(INPUTS, OUTPUTS), squared, data)
    params = held.params()
    states, applied, sums = method.init(params), [], []
    for index, rows in enumerate(batches, start=1):
        noise = Drawn(index)
        step = Step(
            index=index,
            expected_size=4.0,
            noise=noise,
            mean_gradient=lambda _batch: {},
            late=late,
        )
        gradients = held.per_unit(params, data.take(torch.tensor(rows, dtype=torch.long)), None)
        update, states = method.apply(gradients, states, step)
        assert not any(isinstance(leaf, NoisySum) for leaf in update.values())
        applied.append({name: value.clone() for name, value in step.applied.popitem()[1].items()})
        sums.append(torch.cat([total.flatten() for total in noise.totals]))
        for name, value in params.items():
            value.add_(update[name].to(value.dtype))
    return applied, sums, states


HISTORY = [[0, 3, 4], [5, 6], [2, 7, 4], [1, 3, 5, 7]]


@every_method
@pytest.mark.parametrize("last", [[9], [0, 3, 4, 8], []])
def test_a_step_is_preconditioned_by_the_past_alone(method, last):
    """Two worlds that differ in the last batch have the same D in it, and another one after it."""
    one, _, _ = world(method, [*HISTORY[:3], HISTORY[3]])
    other, _, _ = world(method, [*HISTORY[:3], last])
    for name, value in one[3].items():
        assert torch.equal(value, other[3][name])
    assert any(bool((value != 1).any()) for value in one[3].values())


@every_method
def test_one_row_moves_the_sum_by_at_most_the_clip_norm(method):
    """Whatever D the past has led to, gradients are clipped after it."""
    everyone = list(range(10))
    _, with_all, _ = world(method, [*HISTORY[:3], everyone])
    moves = []
    for left_out in everyone:
        _, without, _ = world(method, [*HISTORY[:3], [r for r in everyone if r != left_out]])
        moves.append(float((with_all[3] - without[3]).norm()))
    assert 1.9 < max(moves) <= 2.0


@every_method
def test_it_learns_from_noisy_releases_only(method):
    """Without any private row the state still moves: by the noise."""
    _, sums, states = world(method, [[], [], []])
    assert all(not bool(total.any()) for total in sums)
    second = states[0][0] if method is METHODS["scale_then_privatize"] else states[0][1]
    assert all(bool((value > 0).all()) for value in second.values())


@every_method
def test_noise_is_drawn_at_once_although_late_noise_is_offered(method):
    assert not method.allows_late_noise
    for now, later in zip(
        world(method, HISTORY)[1], world(method, HISTORY, late=True)[1], strict=True
    ):
        assert torch.equal(now, later)


@every_method
def test_epsilon_is_that_of_dp_sgd_and_the_source_is_stated(method):
    sampler = poisson(examples=1000, expected_size=50)
    spent = [
        epsilon_of_run(each, sampler, 100, delta=1e-5, accountant=Accountant.RDP)
        for each in (method, dp_sgd(PRIVACY, lr=0.1))
    ]
    assert spent[0] == spent[1] > 0
    assert method.exposures == ()
    words = sparse.random(40, 6, density=0.4, format="csr", random_state=0, dtype=np.float32)
    result = fit(
        sparse_linear(6, 3),
        cross_entropy,
        examples(words, np.arange(40) % 3),
        method=method,
        sampler=poisson(examples=40, expected_size=4),
        steps=6,
    )
    (known,) = result.side_information
    assert "its own releases" in known["source"]
    assert known["public_because"] == "computed from what this run has released and paid for"
    assert "price" not in known
    (point, *others) = noise_section({"mine": result}).points or ("",)
    moves = "changes from step to step" in point
    assert moves is (method is METHODS["scale_then_privatize"])  # its noise is scaled back
    assert not others


@pytest.mark.parametrize(
    "side",
    [release_moments(decay=0.9), fixed({"weight": (torch.tensor([1.0, 0.5, 4.0]), 1)}, **TOLD)],
    ids=["own releases", "fixed"],
)
def test_without_clip_the_scale_cancels(side):
    """D before the sum and 1/D after it leave the plain gradient, if nothing lies between them."""
    rows = [[3, 4], [5], [6, 7, 5]]
    exposed = privatize(clip_norm=float("inf"), noise_multiplier=0.0)
    there_and_back = chain(precondition(side), exposed, unscale(side), momentum(0.5), sgd(0.1))
    plain = chain(precondition(uniform()), exposed, momentum(0.5), sgd(0.1))
    _, _, scaled = world(there_and_back, rows)
    _, _, usual = world(plain, rows)
    for name, value in usual[-2].items():
        torch.testing.assert_close(scaled[-2][name], value)


def test_the_noise_is_as_long_as_that_of_dp_sgd_but_distributed_like_the_gradients():
    """Σ (1/D)² is the number of weights: with m, the length of the noise does not change."""
    applied, _, _ = world(METHODS["scale_then_privatize"], HISTORY)
    for scale in applied[1:]:
        inverse = torch.cat([(1 / value).flatten() for value in scale.values()])
        assert len(inverse) == OUTPUTS * (INPUTS + 1)
        assert float(inverse.square().mean()) == pytest.approx(1.0)


def test_users_are_protected_as_one():
    rows, users = torch.randn(60, 4), torch.arange(60) % 12
    privacy = privatize(clip_norm=1.0, noise_multiplier=3.0, groups=by_user(most=3))
    for method in (
        dp2(privacy, lr=0.3, preconditioned_lr=0.1, delay=2),
        scale_then_privatize(privacy, lr=0.1),
    ):
        result = fit(
            torch.nn.Linear(4, 2),
            cross_entropy,
            examples(rows, (rows[:, 0] > 0).long(), users=users),
            method=method,
            sampler=poisson(users=12, expected_size=4),
            steps=5,
        )
        assert result.privacy.unit == "user"
        assert 0 < result.privacy.epsilon < float("inf")


# --- refusals -----------------------------------------------------------------------------------


def test_unscale_needs_the_same_source_before_the_clip():
    with pytest.raises(OrderError, match=r"no stage has applied the scale"):
        chain(
            precondition(release_moments()), PRIVACY, unscale(release_moments(decay=0.5)), sgd(0.1)
        )
    own = release_moments()
    with pytest.raises(OrderError, match=r"no stage has applied the scale"):
        chain(PRIVACY, precondition(own), unscale(own), sgd(0.1))
    with pytest.raises(OrderError, match="released"):
        chain(precondition(own), unscale(own), PRIVACY, sgd(0.1))


def test_matrices_cannot_be_taken_back():
    source = whiten(DATA, refresh_every=1)
    stage = unscale(source)
    step = Step(index=1, expected_size=1.0, noise=Silent(), mean_gradient=lambda _batch: {})
    with pytest.raises(SideInformationError, match="matrices"):
        stage.apply({}, None, step)


@pytest.mark.parametrize("side", [delayed_releases(delay=2), release_moments()])
def test_what_is_not_known_before_the_run_cannot_weight_features_or_go_to_devices(side):
    with pytest.raises(SideInformationError, match="known before the first step"):
        reparametrise(side)
    privacy = privatize(clip_norm=1.0, noise_multiplier=3.0, groups=by_user(most=3))
    local = train_locally(lr=0.1, batch_size=4)
    with pytest.raises(ContractError, match="changes with the run"):
        task_of(chain(local, precondition(side), privacy, sgd(1.0)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"delay": 0},
        {"delay": 1.5},
        {"delay": 2, "reuse": 0},
        {"delay": 2, "decay": 1.0},
        {"delay": 2, "epsilon": 0.0},
        {"delay": 2, "gain": -1.0},
    ],
)
def test_settings_of_delayed_releases_outside_their_range_are_refused(wrong):
    with pytest.raises(SettingError):
        delayed_releases(**wrong)


@pytest.mark.parametrize("wrong", [{"decay": 1.0}, {"decay": -0.1}, {"epsilon": 0.0}])
def test_settings_of_release_moments_outside_their_range_are_refused(wrong):
    with pytest.raises(SettingError):
        release_moments(**wrong)
