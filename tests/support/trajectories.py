"""The problem of the golden trajectories, how the library trains on it, and the paper's formulas.

The problem is a linear layer with squared loss, in float64, on batches that are not all of the
expected size. The noise is known: the library asks for a standard deviation and gets z times it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from adadps import examples, public_examples
from adadps.data.examples import PublicExamples
from adadps.engine.chunked import ChunkedGradients
from adadps.engine.ghost import GhostEngine
from adadps.engine.objective import Objective
from adadps.engine.passes.validation import objective
from adadps.engine.waist import Step
from adadps.methods.side import AdaGradStatistics, AdamStatistics, RMSPropStatistics, fixed
from adadps.methods.stages import (
    Chain,
    inverse_sqrt,
    privatize,
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
START, Z = draw(WEIGHTS + OUTPUTS), draw(6, WEIGHTS + OUTPUTS)
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
        self.by_shape = {
            (OUTPUTS, INPUTS): weight.reshape(OUTPUTS, INPUTS),
            (OUTPUTS,): bias,
            (): bias[0],  # a single number, such as a count
        }

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
            differentiate=lambda public: held.of_public_rows(params, public),
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
    rows = BATCHES[(t - 1) % len(BATCHES)]
    return gradients(w, x[rows], Y[rows])


def whitened_gradients(w: Vector, t: int, damping: float = 0.1) -> Vector:
    """Each gradient, of weights and bias together, times (A / λ̄ + damping I)^(-1/2)."""
    inputs = np.append(PUBLIC.batch(t).examples.features.numpy(), np.ones((4, 1)), axis=1)
    values, vectors = np.linalg.eigh(inputs.T @ inputs)
    root = (vectors / np.sqrt(values / values.mean() + damping)) @ vectors.T
    root = root.astype(np.float32).astype(np.float64)
    each = private_gradients(w, t)
    weight, bias = each[:, :WEIGHTS].reshape(-1, OUTPUTS, INPUTS), each[:, WEIGHTS:, None]
    turned = np.concatenate([weight, bias], axis=2) @ root
    return np.concatenate([turned[..., :INPUTS].reshape(-1, WEIGHTS), turned[..., INPUTS]], axis=1)


def public_gradient(w: Vector, t: int, data: PublicExamples = PUBLIC) -> Vector:
    batch = data.batch(t).examples
    return gradients(w, batch.features.numpy(), batch.targets.numpy()).mean(0)


def clipped(g: Vector) -> Vector:
    return g * min(1.0, C / np.linalg.norm(g))


def noised(each: Vector, t: int) -> Vector:
    """(1/b) Σ clip(g, C) + (1/b) N(0, σ²C²)."""
    return (sum(clipped(g) for g in each) + SIGMA * C * Z[t - 1]) / EXPECTED_SIZE


def descended(
    direction: Direction, start: Vector = START, steps: int = len(BATCHES)
) -> Iterator[Vector]:
    """w ← w - α/√t · direction."""
    w = start
    for t in range(1, steps + 1):
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
