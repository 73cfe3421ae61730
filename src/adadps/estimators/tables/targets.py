"""Labels as targets, and outputs as predictions: of classes, several labels, or numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from adadps.data.bounds import Bounds
from adadps.data.tables import Table, nearest
from adadps.engine.losses import Loss, cross_entropy, label_cross_entropy, squared_error
from adadps.errors import DataError
from adadps.estimators.planner.plan import LossFacts
from adadps.estimators.planner.settings import first_gradient
from adadps.estimators.tables.cells import labels, numbers
from adadps.estimators.tables.schema import OTHER, Label
from adadps.training.evaluation import (
    Metric,
    accuracy,
    commonest_class_accuracy,
    top_label_accuracy,
)

PREDICTION, PROBABILITY = "prediction", "probability"
ALWAYS = "accuracy of always guessing the commonest class"
TYPICAL_ERROR = 1.0
"""Mean |2 t| for targets t uniform in [-1, 1]: the first gradient of a squared error."""


@dataclass(frozen=True)
class Targets:
    """How the labels of a table become targets, and outputs become predictions."""

    label: Label

    def __call__(self, table: Table) -> npt.NDArray[Any]:
        """Return class numbers, distributions over classes, or numbers in [-1, 1], one per row."""
        label = self.label
        if label.regression:
            held = self._bounds.to_unit(numbers(table, label.column))
            return np.asarray(held, dtype=np.float32)
        number = {name: place for place, name in enumerate(label.known_classes)}
        split = labels(table, label)
        places = [[self._place(number, one, table, row) for one in found]
                  for row, found in enumerate(split)]  # fmt: skip
        if label.separator is None:
            return np.array([place for (place,) in places], np.int64)
        shares = np.zeros((len(table), len(number)), np.float32)
        for row, found in enumerate(places):
            several = sorted(set(found))  # rare labels may be the same class
            shares[row, several] = 1 / len(several)
        return shares

    @property
    def loss(self) -> Loss:
        """Return the loss, with one value per example."""
        if self.label.regression:
            return squared_error
        return cross_entropy if self.label.separator is None else label_cross_entropy

    @property
    def metrics(self) -> dict[str, Metric]:
        """Return the metrics on held-out rows."""
        if self.label.regression:
            return {"mean absolute error": self._absolute_error}
        if self.label.separator is not None:
            return {"top label accuracy": top_label_accuracy, ALWAYS: commonest_class_accuracy}
        return {"accuracy": accuracy, ALWAYS: commonest_class_accuracy}

    @property
    def loss_facts(self) -> LossFacts:
        """Return what the planner needs to know about the loss."""
        if self.label.regression:
            return LossFacts(TYPICAL_ERROR, curvature=2.0)
        return LossFacts(first_gradient(self.label.outputs))

    def predictions(
        self, outputs: Tensor, *, probabilities: bool
    ) -> dict[str, Sequence[str] | Sequence[float]]:
        """Return columns for a table: the prediction, and its probabilities."""
        label = self.label
        if label.regression:
            scaled = outputs.double().squeeze(1).numpy()
            return {PREDICTION: self._bounds.from_unit(scaled).tolist()}
        best = outputs.argmax(1)
        columns: dict[str, Any] = {
            PREDICTION: [label.known_classes[place] for place in best.tolist()]
        }
        shares = torch.softmax(outputs.double(), 1)
        if label.separator is not None:
            columns[PROBABILITY] = shares.gather(1, best.unsqueeze(1)).squeeze(1).tolist()
        if probabilities:
            for place, name in enumerate(label.known_classes):
                columns[f"{PROBABILITY} {name}"] = shares[:, place].tolist()
        return columns

    def _absolute_error(self, outputs: Tensor, targets: Tensor) -> float:
        """Return the error in the unit of the label."""
        error = (outputs.double().clamp(-1, 1).squeeze(1) - targets.double()).abs().mean()
        return float(error * self._bounds.half.item())

    @property
    def _bounds(self) -> Bounds:
        return Bounds.given(self.label.bounds, 1, "bounds")

    def _place(self, number: dict[str, int], one: str, table: Table, row: int) -> int:
        place = number.get(one, number.get(OTHER))
        if place is None:
            meant = nearest(one, list(number))  # a public name; the private one is not shown
            raise DataError(
                f"Expected one of the {len(number)} classes as a label, found another on "
                f"{table.where(row)} of {table.source}. {meant + ' ' if meant else ''}Declare all "
                f"classes, or '{OTHER}' for the rest, or leave the line out."
            )
        return place
