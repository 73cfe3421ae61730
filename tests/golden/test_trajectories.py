"""Three exact steps of every method, recomputed from the paper's formulas in plain numpy.

The problem is a linear layer with squared loss, in float64, on batches that are not all of the
expected size. The noise is known: the library asks for a standard deviation and gets z times it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from adadps import examples, public_examples
from adadps.data.examples import PublicExamples
from adadps.engine.chunked import ChunkedGradients
from adadps.engine.ghost import GhostEngine
from adadps.engine.objective import Objective
from adadps.engine.passes.validation import objective
from adadps.engine.waist import Step
from adadps.errors import SideInformationError
from adadps.methods import paper as methods
from adadps.methods.side import AdaGradStatistics, AdamStatistics, RMSPropStatistics, fixed, uniform
from adadps.methods.stages import (
    Chain,
    average,
    chain,
    inverse_sqrt,
    momentum,
    privatize,
    reparametrise,
    sgd,
)

Vector = np.ndarray
Direction = Callable[[Vector, int], Vector]

INPUTS, OUTPUTS = 3, 2
WEIGHTS = OUTPUTS * INPUTS
RNG = np.random.default_rng(20220)


def draw(*shape: int) -> Vector:
    """Return numbers that float32 represents exactly."""
    return np.round(RNG.normal(size=shape), 2).astype(np.float32).astype(np.float64)


X, Y = draw(8, INPUTS), draw(8, OUTPUTS)
PUBLIC_X, PUBLIC_Y = draw(6, INPUTS), draw(6, OUTPUTS)
START, Z = draw(WEIGHTS + OUTPUTS), draw(3, WEIGHTS + OUTPUTS)
BATCHES = ([0, 1, 2, 3, 4], [5, 2], [6, 0, 7])
EXPECTED_SIZE, C, SIGMA, RATE = 4.5, 3.0, 0.5, 0.3

TOLD = {"source": "a survey", "public_because": "published"}
PUBLIC = public_examples(torch.tensor(PUBLIC_X), torch.tensor(PUBLIC_Y), batch_size=4, **TOLD)
PRIVATE = examples(torch.tensor(X), torch.tensor(Y))
PRIVACY = privatize(clip_norm=C, noise_multiplier=SIGMA)
LR = inverse_sqrt(RATE)
A = np.array([2.0, 1.0, 0.5])
SIDE = fixed({"weight": (torch.tensor(A), 1)}, **TOLD)
D = np.concatenate([np.tile(1 / A, OUTPUTS), np.full(OUTPUTS, 1.0)])
"""1/A for the weights, and its median for the bias."""


# --- the library --------------------------------------------------------------------------------


class Known:
    """Noise that is known to the test."""

    def __init__(self, z: Vector) -> None:
        weight, bias = torch.tensor(z).split([WEIGHTS, OUTPUTS])
        self.by_shape = {(OUTPUTS, INPUTS): weight.reshape(OUTPUTS, INPUTS), (OUTPUTS,): bias}

    def release(self, total: Tensor, *, standard_deviation: float) -> Tensor:
        return total + standard_deviation * self.by_shape[tuple(total.shape)]


def half_squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * (outputs - targets).square().sum(1)


def model_at(w: Vector) -> nn.Linear:
    model = nn.Linear(INPUTS, OUTPUTS).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor(w[:WEIGHTS]).reshape(OUTPUTS, INPUTS))
        model.bias.copy_(torch.tensor(w[WEIGHTS:]))
    return model


def prepared(method: Chain) -> Objective:
    held = objective(model_at(START), half_squared, PRIVATE)
    assert isinstance(held.engine, GhostEngine)
    for preparation in method.preparations:
        held = preparation.prepare(held)
    return held


def trained(method: Chain, batches: tuple[list[int], ...] = BATCHES) -> list[Vector]:
    """Return the weights after each step."""
    held = prepared(method)
    params = held.params()
    states, path = method.init(params), []
    for index, rows in enumerate(batches, start=1):
        gradients = held.per_unit(params, PRIVATE.take(torch.tensor(rows)), None) if rows else None
        step = Step(
            index=index,
            expected_size=EXPECTED_SIZE,
            noise=Known(Z[index - 1]),
            mean_gradient=lambda public: held.mean_gradient(params, public.examples),
        )
        update, states = method.apply(gradients or ChunkedGradients(()), states, step)
        for name, value in params.items():
            value.add_(update[name])
        path.append(torch.cat([params["weight"].flatten(), params["bias"]]).numpy().copy())
    return path


# --- the formulas -------------------------------------------------------------------------------


def gradients(w: Vector, x: Vector, y: Vector) -> Vector:
    """Return one row per example: the gradient of ½‖W x + b - y‖²."""
    error = x @ w[:WEIGHTS].reshape(OUTPUTS, INPUTS).T + w[WEIGHTS:] - y
    return np.stack([np.append(np.outer(e, a).ravel(), e) for e, a in zip(error, x, strict=True)])


def private_gradients(w: Vector, t: int, x: Vector = X) -> Vector:
    rows = BATCHES[t - 1]
    return gradients(w, x[rows], Y[rows])


def public_gradient(w: Vector, t: int, data: PublicExamples = PUBLIC) -> Vector:
    batch = data.batch(t).examples
    return gradients(w, batch.features.numpy(), batch.targets.numpy()).mean(0)


def clipped(g: Vector) -> Vector:
    return g * min(1.0, C / np.linalg.norm(g))


def noised(each: Vector, t: int) -> Vector:
    """(1/b) Σ clip(g, C) + (1/b) N(0, σ²C²)."""
    return (sum(clipped(g) for g in each) + SIGMA * C * Z[t - 1]) / EXPECTED_SIZE


def descended(direction: Direction, start: Vector = START) -> Iterator[Vector]:
    """w ← w - α/√t · direction."""
    w = start
    for t in range(1, len(BATCHES) + 1):
        w = w - RATE / np.sqrt(t) * direction(w, t)
        yield w


class MovingAverage:
    """m ← decay m + (1 - decay) x, from 0."""

    def __init__(self, decay: float) -> None:
        self.decay, self.count, self.value = decay, 0, np.zeros_like(START)

    def add(self, x: Vector) -> Vector:
        self.count += 1
        self.value = self.decay * self.value + (1 - self.decay) * x
        return self.value

    def add_debiased(self, x: Vector) -> Vector:
        return self.add(x) / (1 - self.decay**self.count)


def dp_gradient(w: Vector, t: int) -> Vector:
    return noised(private_gradients(w, t), t)


def mean_gradient(w: Vector, t: int) -> Vector:
    return private_gradients(w, t).sum(0) / EXPECTED_SIZE


def adam_of(gradient: Direction) -> Direction:
    """Algorithm 2, with β₁ = 0.9, β₂ = 0.999, ε = 1e-8."""
    first, second = MovingAverage(0.9), MovingAverage(0.999)

    def direction(w: Vector, t: int) -> Vector:
        g = gradient(w, t)
        return first.add_debiased(g) / (np.sqrt(second.add_debiased(g**2)) + 1e-8)

    return direction


def rmsprop_of(gradient: Direction) -> Direction:
    second = MovingAverage(0.99)

    def direction(w: Vector, t: int) -> Vector:
        g = gradient(w, t)
        return g / (np.sqrt(second.add(g**2)) + 1e-8)

    return direction


def adagrad_of(gradient: Direction) -> Direction:
    total = np.zeros_like(START)

    def direction(w: Vector, t: int) -> Vector:
        nonlocal total
        g = gradient(w, t)
        total = total + g**2
        return g / (np.sqrt(total) + 1e-8)

    return direction


def adadps_rmsprop(data: PublicExamples) -> Direction:
    """g / (√v + ε) before the clip, v a moving average of squared public gradients."""
    second = MovingAverage(0.9)

    def direction(w: Vector, t: int) -> Vector:
        v = second.add(public_gradient(w, t, data) ** 2)
        return noised(private_gradients(w, t) / (np.sqrt(v) + 0.1), t)

    return direction


def adadps_adam() -> Direction:
    """(β g + (1 - β) M) / A before the clip."""
    first, second = MovingAverage(0.8), MovingAverage(0.9)

    def direction(w: Vector, t: int) -> Vector:
        public = public_gradient(w, t)
        m, v = first.add_debiased(public), second.add_debiased(public**2)
        mixed = 0.7 * private_gradients(w, t) + 0.3 * m
        return noised(mixed / (np.sqrt(v) + 0.1), t)

    return direction


def adadps_adagrad() -> Direction:
    total = np.zeros_like(START)

    def direction(w: Vector, t: int) -> Vector:
        nonlocal total
        total = total + public_gradient(w, t) ** 2
        return noised(private_gradients(w, t) / (np.sqrt(total) + 0.1), t)

    return direction


def dp_r_pub() -> Direction:
    """g̃ / (√E[ĝ²] + ε): the same statistics after the noise."""
    second = MovingAverage(0.9)

    def direction(w: Vector, t: int) -> Vector:
        v = second.add(public_gradient(w, t) ** 2)
        return dp_gradient(w, t) / (np.sqrt(v) + 0.1)

    return direction


def dp_adam_pub() -> Direction:
    """m = β₂ m + (1-β₂)(β₁ g̃ + (1-β₁) ĝ), v = β₃ v + (1-β₃) ĝ², both debiased."""
    first, second = MovingAverage(0.6), MovingAverage(0.9)

    def direction(w: Vector, t: int) -> Vector:
        public = public_gradient(w, t)
        m = first.add_debiased(0.8 * dp_gradient(w, t) + 0.2 * public)
        return m / (np.sqrt(second.add_debiased(public**2)) + 0.1)

    return direction


def pda_dpmd(w: Vector, t: int) -> Vector:
    """β_t g̃ + (1 - β_t) ĝ with β_t = cos(π t / 2K), K = 5."""
    beta = np.cos(np.pi * t / 10)
    return beta * dp_gradient(w, t) + (1 - beta) * public_gradient(w, t)


def normalised_rows() -> Vector:
    """s ∘ x / ‖s ∘ x‖ with s = 1/A."""
    weighted = X / A
    return weighted / np.linalg.norm(weighted, axis=1, keepdims=True)


def third_door(w: Vector, t: int) -> Vector:
    """DP-SGD on re-weighted, re-normalised rows."""
    return noised(private_gradients(w, t, normalised_rows()), t)


def after_public_pretraining() -> Vector:
    """Ten epochs of RMSProp on public batches of 4 out of 6, hence two steps per epoch."""
    w, direction = START, rmsprop_of(public_gradient)
    for t in range(1, 10 * 2 + 1):
        w = w - 0.01 * direction(w, t)
    return w


RMSPROP = RMSPropStatistics(decay=0.9, epsilon=0.1)
DEBIASED = RMSPropStatistics(decay=0.9, epsilon=0.1, debias=True)
ADAGRAD = AdaGradStatistics(epsilon=0.1)
ADAM = AdamStatistics(mixing=0.7, first_decay=0.8, second_decay=0.9, epsilon=0.1)
AS_PUBLIC = public_examples(torch.tensor(X), torch.tensor(Y), batch_size=3, **TOLD)
"""The batches that an oracle with batch size 3 draws."""


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
