"""A survey as public data, and a step that asks for its gradients: for side information."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from adadps import public_examples
from adadps.data.examples import Examples, PublicExamples
from adadps.engine.rules.gradients import MaterialisedGradients
from adadps.engine.rules.layered import LayeredGradients
from adadps.engine.rules.outer import Outer
from adadps.engine.waist import Step
from adadps.methods.side import AdaGradStatistics, AdamStatistics, RMSPropStatistics, Transform
from adadps.tensors.sums import Params

TOLD = {"source": "a table in a book", "public_because": "published"}
COUNTS = [[2.0, 0.0, 1.0], [1.0, 1.0, 0.0], [3.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
VECTOR = torch.tensor([1.0, 0.5, 0.25])
FULL = torch.tensor([[1.0, 0.5, 0.5], [0.5, 0.25, 0.125]])
RMSPROP = RMSPropStatistics(decay=0.9, epsilon=1e-3)
ADAGRAD = AdaGradStatistics(epsilon=1e-3)
ADAM = AdamStatistics(mixing=0.9, first_decay=0.8, second_decay=0.9, epsilon=1e-3)


def survey(*, batch_size: int = 2, seed: int = 0) -> PublicExamples:
    features = torch.arange(12.0).reshape(4, 3)
    return public_examples(features, [0, 1, 0, 1], batch_size=batch_size, seed=seed, **TOLD)


class NoNoise:
    """Side information has no business with privacy noise."""

    def release(self, total: Tensor, *, standard_deviation: float) -> Tensor:
        raise AssertionError(f"noise of {standard_deviation} was asked for on {total}")


def parameters() -> Params:
    return {"head.weight": torch.zeros(2, 3), "head.bias": torch.zeros(2)}


def gradient_on(batch: PublicExamples) -> Params:
    """Stands for a model: some gradient that depends on the batch, zero in one coordinate."""
    mean = batch.examples.features.mean(0)
    weight = torch.stack([mean - 3, 0.1 * mean])
    weight[0, 0] = 0
    return {"head.weight": weight, "head.bias": mean[:2]}


def step(index: int = 1, mean_gradient: Callable[[PublicExamples], Params] = gradient_on) -> Step:
    return Step(
        index=index,
        expected_size=8.0,
        noise=NoNoise(),
        mean_gradient=mean_gradient,
        differentiate=_of_head,
    )


def _of_head(rows: Examples) -> LayeredGradients:
    """Stands for a model with one linear layer."""
    a = rows.features
    slopes = torch.stack([a[:, 0] - 3, 0.1 * a[:, 1]], 1)
    leaves = {"head.weight": Outer(a, slopes), "head.bias": MaterialisedGradients(slopes)}
    return LayeredGradients(leaves, torch.ones(len(a), dtype=torch.bool))


def assert_same(found: Transform, expected: Transform) -> None:
    torch.testing.assert_close(found.scale, expected.scale, rtol=0, atol=0)
    assert (found.mean is None) == (expected.mean is None)
    if found.mean is not None:
        torch.testing.assert_close(found.mean, expected.mean, rtol=0, atol=0)
    assert found.beta == expected.beta
    torch.testing.assert_close(found.inputs, expected.inputs, rtol=0, atol=0)
    torch.testing.assert_close(found.outputs, expected.outputs, rtol=0, atol=0)
