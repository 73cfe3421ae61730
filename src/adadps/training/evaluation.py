"""Evaluation on data that may be read: public, or held out from training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from adadps.data.datasets import DatasetExamples
from adadps.data.examples import Examples
from adadps.data.examples import examples as checked_examples
from adadps.data.fields import joined, tensors_of
from adadps.errors import DataError
from adadps.report.result import Measurement

ROWS_AT_ONCE = 1024
"""So many rows of a dataset are read at once."""

Metric = Callable[[Any, Tensor], float]
"""metric(outputs, targets), one number for a whole data set; outputs as the model returns them."""


@dataclass(frozen=True)
class Evaluation:
    """A metric on data that may be read: build it with `on_held_out` or `on_public`."""

    name: str
    examples: Examples
    metrics: dict[str, Metric]
    declared: str
    every: int | None

    def measure(
        self, outputs_of: Callable[[Any], Any], step: int, epoch: float
    ) -> list[Measurement]:
        """All metrics of a model, given what it makes of features."""
        try:
            outputs, targets = self._outputs(outputs_of)
        except (IndexError, RuntimeError) as error:
            raise DataError(
                f"Expected features in '{self.name}' that fit the model, found some that it "
                f"refuses: {error}. Prepare them like the training data."
            ) from error
        targets = targets.to(tensors_of(outputs)[0].device)
        return [
            Measurement(
                step, epoch, self.name, self.declared, name, float(metric(outputs, targets))
            )
            for name, metric in self.metrics.items()
        ]

    def _outputs(self, outputs_of: Callable[[Any], Any]) -> tuple[Any, Tensor]:
        if not self.examples.is_read_when_drawn:
            return outputs_of(self.examples.features), self.examples.targets
        parts, targets = [], []
        for rows in torch.split(torch.arange(len(self.examples)), ROWS_AT_ONCE):
            piece = self.examples.take(rows)
            if piece.absent is not None and bool(piece.absent.any()):
                self._refuse(rows[piece.absent].tolist())
            parts.append(outputs_of(piece.features))
            targets.append(piece.targets)
        return joined(parts), torch.cat(targets)

    def _refuse(self, absent: list[int]) -> NoReturn:
        """Name rows that cannot be read: they are public or held out, and so outside of epsilon."""
        held = self.examples
        why = held.unreadable(absent[:1]) if isinstance(held, DatasetExamples) else {}
        raise DataError(
            f"Expected rows in '{self.name}' that can all be read and have one form, found "
            f"{len(absent)} or more that do not; row {absent[0]}: "
            f"{why.get(absent[0], 'it can be read now')}. Leave them out or mend them; "
            "`examples(dataset).unreadable()` lists all before a run. What was paid for stays "
            "paid; with checkpoints, the same call resumes."
        )


def on_held_out(
    name: str, features: Any, targets: Any = None, *, every: int | None = None, **metrics: Metric
) -> Evaluation:
    """Evaluate on private data that you have held out from training; declared and shown as such.

    Its records are outside of ε: what is measured is an exact function of them. All of them are
    measured as they are given, and none is looked up among the training rows: anyone who saw the
    numbers could tell who was found there. ``every`` is in steps; None means once, at the end. A
    torch `Dataset` takes the place of both features and targets.
    """
    return _evaluation(name, features, targets, every, metrics, "held out")


def on_public(
    name: str, features: Any, targets: Any = None, *, every: int | None = None, **metrics: Metric
) -> Evaluation:
    """Evaluate on public data; declared and shown as public."""
    return _evaluation(name, features, targets, every, metrics, "public")


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Share of rows whose largest output is the target.

    >>> import torch
    >>> accuracy(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([1, 1]))
    0.5
    """
    return float((outputs.argmax(1) == targets).double().mean())


def top_label_accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Share of rows whose largest output is one of the row's labels (targets above zero).

    >>> import torch
    >>> labels = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    >>> top_label_accuracy(torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]), labels)
    0.5
    """
    chosen = outputs.argmax(1, keepdim=True)
    return float((targets.gather(1, chosen) > 0).double().mean())


def commonest_class_accuracy(outputs: Tensor, targets: Tensor) -> float:  # noqa: ARG001
    """Share of rows that have the most frequent label: what always guessing it would reach.

    Beside an accuracy on the same rows it says how much was learned.

    >>> import torch
    >>> commonest_class_accuracy(torch.zeros(4, 2), torch.tensor([1, 1, 0, 1]))
    0.75
    >>> commonest_class_accuracy(torch.zeros(2, 2), torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
    1.0
    """
    if targets.dim() == 1:
        return float(targets.bincount().max() / len(targets))
    return float((targets > 0).double().mean(0).max())


def recall_at(count: int) -> Metric:
    """Mean share of a row's labels that are among its ``count`` largest outputs.

    >>> import torch
    >>> labels = torch.tensor([[0.5, 0.5, 0.0, 0.0]])
    >>> recall_at(2)(torch.tensor([[3.0, 0.0, 2.0, 1.0]]), labels)
    0.5
    """

    def recall(outputs: Tensor, targets: Tensor) -> float:
        chosen = outputs.topk(min(count, outputs.shape[1]), dim=1).indices
        found = (targets.gather(1, chosen) > 0).double().sum(1)
        return float((found / (targets > 0).double().sum(1)).mean())

    return recall


def _evaluation(
    name: str,
    features: Any,
    targets: Any,
    every: int | None,
    metrics: dict[str, Metric],
    declared: str,
) -> Evaluation:
    if not metrics:
        raise DataError("Expected at least one metric, e.g. accuracy=accuracy. Name one.")
    held = checked_examples(features, targets)
    return Evaluation(name, held, metrics, declared, every)
