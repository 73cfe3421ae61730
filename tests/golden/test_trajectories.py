"""Three exact steps of every method, recomputed from the paper's formulas in plain numpy."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from adadps.errors import SideInformationError
from adadps.methods import paper as methods
from adadps.methods.side import fixed, uniform
from adadps.methods.stages import (
    Chain,
    average,
    chain,
    momentum,
    privatize,
    reparametrise,
    sgd,
)
from support.trajectories import (
    ADAGRAD,
    ADAM,
    AS_PUBLIC,
    BATCHES,
    DEBIASED,
    EXPECTED_SIZE,
    INPUTS,
    LR,
    PRIVACY,
    PRIVATE,
    PUBLIC,
    RATE,
    RMSPROP,
    SIDE,
    SIGMA,
    START,
    TOLD,
    A,
    C,
    D,
    Direction,
    MovingAverage,
    Vector,
    X,
    Y,
    Z,
    adadps_adagrad,
    adadps_adam,
    adadps_rmsprop,
    adagrad_of,
    adam_of,
    after_public_pretraining,
    descended,
    dp_adam_pub,
    dp_gradient,
    dp_r_pub,
    gradients,
    mean_gradient,
    noised,
    normalised_rows,
    pda_dpmd,
    prepared,
    private_gradients,
    rmsprop_of,
    third_door,
    trained,
    whitened_gradients,
)


@dataclass(frozen=True)
class Case:
    """A method of the library and its formula."""

    method: Chain
    direction: Direction
    start: Vector | None = None


def cases() -> dict[str, Case]:
    return {
        "dp_sgd": Case(methods.dp_sgd(PRIVACY, lr=LR), dp_gradient),
        "dp_adam": Case(methods.dp_adam(PRIVACY, lr=LR), adam_of(dp_gradient)),
        "dp_rmsprop": Case(methods.dp_rmsprop(PRIVACY, lr=LR), rmsprop_of(dp_gradient)),
        "dp_adagrad": Case(methods.dp_adagrad(PRIVACY, lr=LR), adagrad_of(dp_gradient)),
        "adadps": Case(
            methods.adadps(SIDE, PRIVACY, lr=LR),
            lambda w, t: noised(D * private_gradients(w, t), t),
        ),
        "adadps_public with rmsprop": Case(
            methods.adadps_public(PUBLIC, RMSPROP, PRIVACY, lr=LR), adadps_rmsprop(PUBLIC)
        ),
        "adadps_public with adam": Case(
            methods.adadps_public(PUBLIC, ADAM, PRIVACY, lr=LR), adadps_adam()
        ),
        "adadps_public with adagrad": Case(
            methods.adadps_public(PUBLIC, ADAGRAD, PRIVACY, lr=LR), adadps_adagrad()
        ),
        "adadps_two_sided": Case(
            methods.adadps_two_sided(SIDE, SIDE, PRIVACY, lr=LR),
            lambda w, t: D * noised(D * private_gradients(w, t), t),
        ),
        "whitened": Case(
            methods.whitened(PUBLIC, PRIVACY, lr=LR, refresh_every=1),
            lambda w, t: noised(whitened_gradients(w, t), t),
        ),
        "dp_sgd_weighted": Case(methods.dp_sgd_weighted(SIDE, PRIVACY, lr=LR), third_door),
        "dp_r_pub": Case(methods.dp_r_pub(PUBLIC, RMSPROP, PRIVACY, lr=LR), dp_r_pub()),
        "dp_adam_pub": Case(
            methods.dp_adam_pub(PUBLIC, DEBIASED, PRIVACY, lr=LR, beta1=0.8, beta2=0.6),
            dp_adam_pub(),
        ),
        "pda_dpmd": Case(methods.pda_dpmd(PUBLIC, PRIVACY, lr=LR, steps=5), pda_dpmd),
        "warm_start": Case(
            methods.warm_start(PUBLIC, PRIVACY, lr=LR, public_lr=0.01),
            dp_gradient,
            after_public_pretraining(),
        ),
        "ideal": Case(
            methods.ideal(PRIVATE, RMSPROP, PRIVACY, lr=LR, batch_size=3), adadps_rmsprop(AS_PUBLIC)
        ),
        "adas": Case(methods.adas(SIDE, LR), lambda w, t: D * mean_gradient(w, t)),
        "plain_sgd": Case(methods.plain_sgd(LR), mean_gradient),
        "plain_adam": Case(methods.plain_adam(LR), adam_of(mean_gradient)),
        "plain_rmsprop": Case(methods.plain_rmsprop(LR), rmsprop_of(mean_gradient)),
    }


def assert_path(found: list[Vector], expected: list[Vector]) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", cases().keys())
def test_three_steps(name):
    case = cases()[name]
    start = START if case.start is None else case.start
    assert_path(trained(case.method), list(descended(case.direction, start)))


def test_every_method_has_a_trajectory():
    known = {
        name
        for name, function in inspect.getmembers(methods, inspect.isfunction)
        if function.__module__ == methods.__name__
    }
    assert {name.split()[0] for name in cases()} == known


DOORS = {
    "no side information": gradients(START, X, Y),
    "before the clip": D * gradients(START, X, Y),
    "in the features": gradients(START, normalised_rows(), Y),
}


@pytest.mark.parametrize("each", DOORS.values(), ids=DOORS.keys())
def test_the_clip_norm_binds_for_some_examples_only(each):
    """Otherwise the trajectories above would not see the clip."""
    norms = np.linalg.norm(each[BATCHES[0]], axis=1)
    assert norms.min() < C < norms.max()


# --- chains beyond the paper --------------------------------------------------------------------


def test_momentum_without_debiasing():
    average_of = MovingAverage(0.6)
    method = chain(PRIVACY, momentum(0.6), sgd(LR))
    expected = descended(lambda w, t: average_of.add(dp_gradient(w, t)))
    assert_path(trained(method), list(expected))


def test_uniform_side_information_makes_adadps_dp_sgd():
    assert_path(
        trained(methods.adadps(uniform(), PRIVACY, lr=LR)), trained(methods.dp_sgd(PRIVACY, lr=LR))
    )


def test_without_noise_and_clip_adadps_is_adas():
    exposed = privatize(clip_norm=float("inf"), noise_multiplier=0.0)
    assert_path(trained(methods.adadps(SIDE, exposed, lr=LR)), trained(methods.adas(SIDE, LR)))


def test_hazard_08_an_empty_batch_takes_a_step_of_noise_alone():
    (found,) = trained(methods.adadps(SIDE, PRIVACY, lr=LR), batches=([],))
    assert_path([found], [START - RATE * SIGMA * C * Z[0] / EXPECTED_SIZE])


def test_an_empty_batch_without_privacy_takes_no_step():
    (found,) = trained(chain(average(), sgd(LR)), batches=([],))
    assert_path([found], [START])


def test_the_order_of_precondition_and_privatize_matters():
    before = trained(methods.adadps_public(PUBLIC, RMSPROP, PRIVACY, lr=LR))
    after = trained(methods.dp_r_pub(PUBLIC, RMSPROP, PRIVACY, lr=LR))
    assert not np.allclose(before[0], after[0])


# --- weighted features and pretraining ----------------------------------------------------------


def test_reparametrised_rows_have_norm_one():
    held = prepared(methods.dp_sgd_weighted(SIDE, PRIVACY, lr=LR))
    rows = held.prepare(PRIVATE.features).numpy()
    np.testing.assert_allclose(rows, normalised_rows())
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0)


def test_a_row_of_zeros_stays_a_row_of_zeros():
    held = prepared(methods.dp_sgd_weighted(SIDE, PRIVACY, lr=LR))
    assert held.prepare(torch.zeros(1, INPUTS, dtype=torch.float64)).tolist() == [[0.0] * INPUTS]


def test_side_information_that_differs_between_outputs_is_averaged_for_the_features():
    full = torch.tensor([[1.0, 0.5, 0.25], [1.0, 0.25, 0.25]], dtype=torch.float64)
    held = prepared(methods.dp_sgd_weighted(fixed({"weight": full}, **TOLD), PRIVACY, lr=LR))
    assert held.feature_weights.tolist() == [0.25, 0.75, 1.0]


def test_two_reparametrisations_multiply():
    held = prepared(chain(reparametrise(SIDE), reparametrise(SIDE), PRIVACY, sgd(LR)))
    twice = X / A**2
    expected = twice / np.linalg.norm(twice, axis=1, keepdims=True)
    np.testing.assert_allclose(held.prepare(PRIVATE.features).numpy(), expected)


def test_reparametrising_a_parameter_that_the_model_does_not_have_is_refused():
    with pytest.raises(SideInformationError, match=r"'body'.*weight, bias"):
        prepared(chain(reparametrise(SIDE, at="body"), PRIVACY, sgd(LR)))


def test_pretraining_moves_the_model_itself():
    held = prepared(methods.warm_start(PUBLIC, PRIVACY, lr=LR, public_lr=0.01))
    found = torch.cat([held.model.weight.flatten(), held.model.bias]).detach().numpy()
    assert_path([found], [after_public_pretraining()])
