"""How trials are scored, and what the score costs.

A score on public data costs nothing. A score on held-out data uses that data outside of ε: its
records are not protected. A private score is noised, and its price is part of every trial.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from dp_accounting import DpEvent, GaussianDpEvent, NoOpDpEvent
from torch import Tensor, nn

from adadps.data.examples import Examples, as_features
from adadps.data.examples import examples as checked_examples
from adadps.data.provenance import DeclaredRead, declared_read
from adadps.engine.objective import predict
from adadps.engine.waist import Noise
from adadps.errors import DataError, SettingError, require_positive
from adadps.report.result import Result
from adadps.training.evaluation import Evaluation, Metric

_PROTECTION = {
    "public": "public by declaration",
    "held out": "not part of ε for the records of this data",
}


class Score(Protocol):
    """How a trial is judged: the larger ``sign`` times its value, the better."""

    @property
    def event(self) -> DpEvent:
        """The cost of computing the score once."""

    @property
    def sign(self) -> int:
        """1 if high values are good, -1 if low ones are."""

    @property
    def examples(self) -> Examples:
        """The examples on which the score is computed."""

    @property
    def evaluation(self) -> Evaluation | None:
        """The evaluation during training that yields the score; None if there is none."""

    def value(self, result: Result, model: nn.Module, noise: Noise) -> float:
        """Return the score of a finished trial; not finite if the model diverged."""

    def describe(self) -> dict[str, str]:
        """Return the data behind the score, and how it is declared."""


@dataclass(frozen=True)
class EvaluationScore:
    """A metric on public or held-out data. Build it with `highest` or `lowest`."""

    evaluation: Evaluation
    metric: str
    sign: int

    def __post_init__(self) -> None:
        if self.metric not in self.evaluation.metrics:
            raise SettingError(
                f"Expected a metric of '{self.evaluation.name}', found '{self.metric}'. Known: "
                f"{', '.join(self.evaluation.metrics)}."
            )

    @property
    def event(self) -> DpEvent:
        """No cost for the training data: the score is computed from the released model."""
        return NoOpDpEvent()

    @property
    def examples(self) -> Examples:
        """The evaluation's examples."""
        return self.evaluation.examples

    def value(self, result: Result, model: nn.Module, noise: Noise) -> float:  # noqa: ARG002
        """Return the last measurement."""
        return result.last(self.metric, self.evaluation.name)

    def describe(self) -> dict[str, str]:
        """Return the data behind the score, and how it is declared."""
        return {
            **looked_at(self.evaluation),
            "metric": self.metric,
            "best": "highest" if self.sign > 0 else "lowest",
        }


@dataclass(frozen=True)
class PrivateAccuracy:
    """The noised share of correct predictions. Build it with `private_accuracy`."""

    name: str
    examples: Examples
    declared_examples: int
    noise_multiplier: float
    evaluation = None
    sign = 1

    @property
    def event(self) -> DpEvent:
        """One example changes the count by at most 1: Gaussian(noise_multiplier)."""
        return GaussianDpEvent(self.noise_multiplier)

    @declared_read(DeclaredRead.PAID_MEASUREMENT)
    def value(self, result: Result, model: nn.Module, noise: Noise) -> float:
        """Return (number of correct predictions + noise) / declared number of examples.

        Each example is predicted alone and counts as 0 or 1. So one example changes the count by
        at most 1, whatever the model does with a batch.
        """
        result.restore(model)
        right = sum(self._is_right(result, model, row) for row in range(len(self.examples)))
        count = torch.tensor([float(right)], dtype=torch.float64)
        released = noise.release(count, standard_deviation=self.noise_multiplier)
        return float(released) / self.declared_examples

    def _is_right(self, result: Result, model: nn.Module, row: int) -> bool:
        one = self.examples.take(torch.tensor([row]))
        outputs = predict(model, one.features, result.feature_weights)
        finite = outputs.ndim == 2 and bool(torch.isfinite(outputs).all())
        return finite and int(outputs.argmax(1)) == int(one.targets)

    def describe(self) -> dict[str, str]:
        """Return the data behind the score, and how it is declared."""
        return {
            "data": self.name,
            "declared": "private",
            "protection": "part of ε: a count with Gaussian noise of standard deviation "
            f"{self.noise_multiplier:g} in every trial",
            "metric": "accuracy",
            "best": "highest",
        }


def highest(evaluation: Evaluation, metric: str) -> EvaluationScore:
    """Prefer the trial with the highest ``metric`` on public or held-out data.

    >>> from adadps.training.evaluation import accuracy, on_public
    >>> highest(on_public("pilot", [[1.0]], [0], accuracy=accuracy), "accuracy").describe()["best"]
    'highest'
    """
    return EvaluationScore(evaluation, metric, 1)


def lowest(evaluation: Evaluation, metric: str) -> EvaluationScore:
    """Prefer the trial with the lowest ``metric``, such as a loss, on public or held-out data.

    >>> from adadps.training.evaluation import accuracy, on_public
    >>> lowest(on_public("pilot", [[1.0]], [0], error=accuracy), "error").sign
    -1
    """
    return EvaluationScore(evaluation, metric, -1)


def private_accuracy(
    name: str, features: Any, targets: Any, *, examples: int, noise_multiplier: float
) -> PrivateAccuracy:
    """Score trials by accuracy on private data, from a noised count that every trial pays for.

    The score is (Σ_i [prediction i is correct] + N(0, s²)) / n, where n is the *declared* number of
    ``examples`` and s = ``noise_multiplier``. One example changes the count by at most 1 under
    every relation. The data may be the training data, or other data that the same ε protects.

    >>> score = private_accuracy("validation", [[1.0]], [0], examples=1, noise_multiplier=20.0)
    >>> score.event
    GaussianDpEvent(noise_multiplier=20.0)
    """
    if examples < 1:
        raise SettingError(
            f"Expected examples >= 1, found {examples}. Declare the number of examples to score."
        )
    require_positive("noise_multiplier", noise_multiplier)
    held = checked_examples(as_features(features), targets)
    if held.targets.ndim != 1 or held.targets.is_floating_point():
        raise DataError(
            "Expected one class per example as targets, found shape "
            f"{tuple(held.targets.shape)} of {held.targets.dtype}. Give one whole number each."
        )
    return PrivateAccuracy(name, held, examples, float(noise_multiplier))


def looked_at(evaluation: Evaluation) -> dict[str, str]:
    """Return the data of an evaluation, how it is declared, and whether ε protects it."""
    return {
        "data": evaluation.name,
        "declared": evaluation.declared,
        "protection": _PROTECTION[evaluation.declared],
        "metric": ", ".join(evaluation.metrics),
    }


def tolerant(evaluation: Evaluation) -> Evaluation:
    """Return the same evaluation, with NaN for a model whose outputs are not finite."""
    metrics = {name: _finite_only(metric) for name, metric in evaluation.metrics.items()}
    return replace(evaluation, metrics=metrics)


def _finite_only(metric: Metric) -> Callable[[Tensor, Tensor], float]:
    def measured(outputs: Tensor, targets: Tensor) -> float:
        # most metrics raise on NaN, and accuracy takes it for the first class
        return metric(outputs, targets) if bool(torch.isfinite(outputs).all()) else math.nan

    return measured
