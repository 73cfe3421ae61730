"""Rows of a table as features of norm at most 1, and labels as targets.

The features of a row depend on that row alone. They have blocks: the words of each text column, the
embedding of each text column, all numbers, all categories, and a constant where there are numbers
or categories. Each block has norm at most 1, and B blocks are divided by √B:

- the words of a text: log(1 + count) of public words, divided by their norm;
- its embedding: the mean of public vectors of its tokens, divided by its norm;
- another embedding, if there are vectors that were fitted to public texts; where a row has texts
  alone, and few known words, its embeddings have more of it (`beside_each_other`);
- n numbers, each scaled to [-1, 1] by its bounds, divided by √n;
- c categories, a 1 for the level of each, divided by √c.

`Targets` turns labels into targets, and outputs into predictions: of classes, several labels, or
numbers. `plan_for_rows` plans a run on both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from dp_accounting import DpEvent
from scipy import sparse
from sklearn.preprocessing import normalize
from torch import Tensor

from adadps.accounting.epsilon import Budget
from adadps.data.bounds import Bounds
from adadps.data.tables import Table, labels, nearest, numbers, texts
from adadps.engine.losses import Loss, cross_entropy, label_cross_entropy, squared_error
from adadps.errors import DataError
from adadps.estimators.planner.methods import (
    TYPICAL_TEXTS,
    WORDS_BESIDE_FITTED,
    Numbers,
    PreparedMethod,
    along_features,
    median_norm,
    norms_for,
    shaped,
    takes_side_information,
    typical_texts,
)
from adadps.estimators.planner.plan import LossFacts, PlannedRun, first_gradient, plan_training
from adadps.estimators.short_texts import SHORT, beside_each_other
from adadps.estimators.tables.request import Declared, TrainingRequest
from adadps.estimators.tables.schema import OTHER, Categorical, Label, Schema
from adadps.estimators.text import BagOfWords, Negation
from adadps.methods.side import Embeddings, Frequencies
from adadps.methods.side.source import Fixed
from adadps.training.evaluation import (
    Metric,
    accuracy,
    commonest_class_accuracy,
    top_label_accuracy,
)
from adadps.types import Accountant, Method


@dataclass(frozen=True)
class RowFeatures:
    """Turns chunks of a table into sparse rows."""

    schema: Schema
    vocabulary: tuple[str, ...]
    embeddings: Embeddings | None = None
    fitted: Embeddings | None = None
    negation: Negation | None = None
    short_below: int | None = SHORT

    @property
    def has_constant(self) -> bool:
        """Return whether there is a constant; for texts alone it would take half of a gradient."""
        return bool(self.schema.numeric or self.schema.categorical)

    @property
    def words(self) -> int:
        """Return how many features are words; they come first."""
        return len(self.schema.texts) * len(self.vocabulary)

    @property
    def embedded(self) -> int:
        """Return how many features are of embeddings; they come after the words."""
        return len(self.schema.texts) * (self.embeddings.width if self.embeddings else 0)

    @property
    def of_fitted(self) -> int:
        """Return how many features are of fitted vectors; they come after the embeddings."""
        return len(self.schema.texts) * (self.fitted.width if self.fitted else 0)

    @property
    def width(self) -> int:
        """Return how many features a row has."""
        one_hot = sum(len(column.known_levels) for column in self.schema.categorical)
        of_texts = self.words + self.embedded + self.of_fitted
        return of_texts + len(self.schema.numeric) + one_hot + self.has_constant

    @property
    def blocks(self) -> int:
        """Return B, the number of blocks that share a row's norm."""
        others = (self.schema.numeric, self.schema.categorical, self.has_constant)
        forms = bool(self.vocabulary) + len(self.vectors)
        return forms * len(self.schema.texts) + sum(map(bool, others))

    @property
    def vectors(self) -> tuple[Embeddings, ...]:
        """Return all public vectors, in the order of their features."""
        return tuple(held for held in (self.embeddings, self.fitted) if held is not None)

    def __call__(self, table: Table, *, refuse_unseen: bool = True) -> sparse.csr_matrix:
        """Return one row per row of the table. Unknown levels are refused, or have no feature."""
        schema = self.schema
        cells = [texts(table, name, fill_missing=schema.fill_missing) for name in schema.texts]
        parts = self._texts(cells)
        if schema.numeric:
            parts.append(sparse.csr_matrix(self._numbers(table)))
        for column in schema.categorical:
            parts.append(self._one_hot(table, column, refuse_unseen))
        return self._joined(parts, len(table))

    def of_texts(self, column: Sequence[str]) -> sparse.csr_matrix:
        """Return one row per text, where rows have one text and nothing else."""
        return self._joined(self._texts([column]), len(column))

    def _texts(self, columns: Sequence[Sequence[str]]) -> list[sparse.csr_matrix]:
        parts: list[sparse.csr_matrix] = []
        if self.vocabulary:
            bag = BagOfWords(self.vocabulary, dampened=True, negation=self.negation)
            parts += [bag(column) for column in columns]
        embedded = [vectors(column) for vectors in self.vectors for column in columns]
        return beside_each_other(parts, embedded, None if self.has_constant else self.short_below)

    def typical(self, frequencies: Frequencies | None) -> sparse.csr_matrix:
        """Return rows drawn from public facts: words by frequency, the rest uniformly."""
        rng, schema, size = np.random.default_rng(0), self.schema, TYPICAL_TEXTS
        parts: list[sparse.csr_matrix] = []
        if self.vocabulary:
            words = len(self.vocabulary)
            parts += [typical_texts(words, frequencies, rng) for _ in schema.texts]
        for vectors in self.vectors:
            shape = (size, vectors.width)
            parts += [
                sparse.csr_matrix(normalize(rng.normal(size=shape)).astype(np.float32))
                for _ in schema.texts
            ]
        if schema.numeric:
            drawn = rng.uniform(-1, 1, (size, len(schema.numeric))) / math.sqrt(len(schema.numeric))
            parts.append(sparse.csr_matrix(drawn.astype(np.float32)))
        for column in schema.categorical:
            parts.append(self._ones(rng.integers(len(column.known_levels), size=size), column))
        return self._joined(parts, size)

    def _numbers(self, table: Table) -> npt.NDArray[np.float32]:
        columns, schema = self.schema.numeric, self.schema
        found = [
            numbers(table, column.name, column.filling if schema.fill_missing else None)
            for column in columns
        ]
        bounds = zip(*(column.bounds for column in columns), strict=True)
        scaled = Bounds.given(bounds, len(columns), "bounds").to_unit(np.stack(found, 1))
        return np.asarray(scaled / math.sqrt(len(columns)), dtype=np.float32)

    def _one_hot(self, table: Table, column: Categorical, refuse_unseen: bool) -> sparse.csr_matrix:
        known = {level: place for place, level in enumerate(column.known_levels)}
        found = texts(table, column.name, fill_missing=self.schema.fill_missing)
        places = np.array([known.get(level, known.get(OTHER, -1)) for level in found], np.int64)
        missing = np.array([not level.strip() for level in found])
        unseen = np.flatnonzero((places < 0) & ~missing)
        if refuse_unseen and len(unseen):
            row = int(unseen[0])
            raise DataError(
                f"Expected one of the {len(known)} levels of column '{column.name}', found another "
                f"on {table.where(row)} of {table.source}. Declare all levels, or '{OTHER}' for "
                "the rest."
            )
        return self._ones(places, column)

    def _ones(self, places: npt.NDArray[np.int64], column: Categorical) -> sparse.csr_matrix:
        rows = np.flatnonzero(places >= 0)
        share = np.float32(1 / math.sqrt(len(self.schema.categorical)))
        entries = (np.full(len(rows), share), (rows, places[rows]))
        return sparse.csr_matrix(entries, shape=(len(places), len(column.known_levels)))

    def _joined(self, parts: list[sparse.csr_matrix], rows: int) -> sparse.csr_matrix:
        if self.has_constant:
            parts = [*parts, sparse.csr_matrix(np.ones((rows, 1), np.float32))]
        whole = sparse.csr_matrix(sparse.hstack(parts, format="csr"), dtype=np.float32)
        if self.blocks > 1:
            whole.data *= np.float32(1 / math.sqrt(self.blocks))
        whole.sort_indices()
        return whole


def text_features(
    vocabulary: tuple[str, ...],
    embeddings: Embeddings | None,
    fitted: Embeddings | None = None,
    negation: Negation | None = None,
    short_below: int | None = SHORT,
) -> RowFeatures:
    """Return the features of texts alone."""
    schema = Schema(("text",), (), (), Label("label"))
    return RowFeatures(schema, vocabulary, embeddings, fitted, negation, short_below)


def prepare_for_rows(
    method: Method,
    features: RowFeatures,
    frequencies: Frequencies | None,
    share: float = 0.5,
) -> PreparedMethod:
    """Return a method for these features, whose words have these public ``frequencies``.

    ``share`` is that of the embeddings in the squared norm of a text, where the method weights
    features; vectors that were fitted to public texts then have most of what the words would have
    (`WORDS_BESIDE_FITTED`). Elsewhere all have equal shares.
    """
    typical, side = features.typical(frequencies), None
    plain = scaled = median_norm(typical)
    if frequencies is not None and takes_side_information(method):
        words = (1 - share) * (WORDS_BESIDE_FITTED if features.fitted else 1.0)
        ratios = (share / words, (1 - share) / words - 1)
        if method is not Method.DP_SGD_WEIGHTED:
            ratios = (1.0, 1.0)
        side = _for_all_features(shaped(frequencies, method), features, typical, ratios)
        scaled = median_norm(typical, _a_of(side))
    return PreparedMethod(method, side, norms_for(method, plain=plain, scaled=scaled))


def _for_all_features(
    of_words: Fixed,
    features: RowFeatures,
    typical: sparse.csr_matrix,
    ratios: tuple[float, float],
) -> Fixed:
    """Return A for the words of every text column, and a neutral one for all other features.

    A neutral A leaves each block its share of a row's norm: if D makes the words of typical texts
    longer by a factor t, other features get D = t. Embeddings and fitted vectors get squared norms
    that are ``ratios`` times that of the words.
    """
    words = np.tile(_a_of(of_words), len(features.schema.texts))
    texts = typical[:, : features.words]
    longer = median_norm(texts, words) / median_norm(texts)
    others = np.full(features.width - features.words, 1 / longer)
    of_embeddings, of_fitted = np.split(others[: features.embedded + features.of_fitted],
                                        [features.embedded])  # fmt: skip
    of_embeddings /= math.sqrt(ratios[0])
    of_fitted /= math.sqrt(ratios[1]) if features.fitted else 1.0
    whole = torch.from_numpy(np.concatenate([words, others]))
    return replace(of_words, named={"weight": (whole, 1)})


def _a_of(side: Fixed) -> Numbers:
    found = along_features(side)
    assert found is not None  # made here, with one value per feature
    return found


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
        split = labels(table, label.column, label.separator)
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
        return LossFacts(first_gradient(self.label.outputs), outputs=self.label.outputs)

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


def plan_for_rows(
    request: TrainingRequest,
    declared: Declared,
    features: RowFeatures,
    targets: Targets,
    frequencies: Frequencies | None,
    *,
    examples: int,
    budget: Budget,
    accountant: Accountant,
    besides: tuple[DpEvent, ...] = (),
) -> PlannedRun:
    """Plan a run on the rows of a table; ``examples`` counts units of privacy.

    ``besides`` is what the run pays before its first step.
    """
    return plan_training(
        partial(prepare_for_rows, declared.method, features, frequencies),
        examples=examples,
        budget=budget,
        loss=targets.loss_facts,
        accountant=accountant,
        given=request.given,
        users=declared.user_column,
        federation=request.federation,
        besides=besides,
    )
