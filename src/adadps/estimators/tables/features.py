"""Rows of a table as features of norm at most 1; each depends on its own row alone.

A row has blocks: the words of each text column, all numbers, all categories, and a constant where
there are numbers or categories. Each block has norm at most 1, and B blocks are divided by √B:

- a text column: log(1 + count) of public words, divided by its norm;
- n numbers, each scaled to [-1, 1] by its bounds, divided by √n;
- c categories, a 1 for the level of each, divided by √c.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse

from adadps.data.bounds import Bounds
from adadps.data.tables import Table
from adadps.data.text import BagOfWords
from adadps.errors import DataError
from adadps.estimators.planner.methods import Method, PreparedMethod, norms_for, shaped
from adadps.estimators.planner.typical_texts import (
    TYPICAL_TEXTS,
    Numbers,
    along_features,
    median_norm,
    typical_texts,
)
from adadps.estimators.tables.cells import numbers, texts
from adadps.estimators.tables.schema import OTHER, Categorical, Schema
from adadps.methods.side import Frequencies
from adadps.methods.side.source import Fixed


@dataclass(frozen=True)
class RowFeatures:
    """Turns chunks of a table into sparse rows."""

    schema: Schema
    vocabulary: tuple[str, ...]

    @property
    def has_constant(self) -> bool:
        """Return whether there is a constant; for texts alone it would take half of a gradient."""
        return bool(self.schema.numeric or self.schema.categorical)

    @property
    def words(self) -> int:
        """Return how many features are words; they come first."""
        return len(self.schema.texts) * len(self.vocabulary)

    @property
    def width(self) -> int:
        """Return how many features a row has."""
        one_hot = sum(len(column.known_levels) for column in self.schema.categorical)
        return self.words + len(self.schema.numeric) + one_hot + self.has_constant

    @property
    def blocks(self) -> int:
        """Return B, the number of blocks that share a row's norm."""
        others = (self.schema.numeric, self.schema.categorical, self.has_constant)
        return len(self.schema.texts) + sum(map(bool, others))

    def __call__(self, table: Table, *, refuse_unseen: bool = True) -> sparse.csr_matrix:
        """Return one row per row of the table. Unknown levels are refused, or have no feature."""
        schema = self.schema
        parts = []
        for name in schema.texts:
            cells = texts(table, name, fill_missing=schema.fill_missing)
            parts.append(BagOfWords(self.vocabulary, dampened=True)(cells))
        if schema.numeric:
            parts.append(sparse.csr_matrix(self._numbers(table)))
        for column in schema.categorical:
            parts.append(self._one_hot(table, column, refuse_unseen))
        return self._joined(parts, len(table))

    def typical(self, frequencies: Frequencies | None) -> sparse.csr_matrix:
        """Return rows drawn from public facts: words by frequency, the rest uniformly."""
        rng, schema, size = np.random.default_rng(0), self.schema, TYPICAL_TEXTS
        parts: list[sparse.csr_matrix] = [
            typical_texts(len(self.vocabulary), frequencies, rng) for _ in schema.texts
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


def prepare_for_rows(
    method: Method, features: RowFeatures, frequencies: Frequencies | None
) -> PreparedMethod:
    """Return a method for these features, whose words have these public ``frequencies``."""
    typical, side = features.typical(frequencies), None
    plain = scaled = median_norm(typical)
    if frequencies is not None and method.takes_side_information:
        side = _for_all_features(shaped(frequencies, method), features, typical)
        scaled = median_norm(typical, _a_of(side))
    return PreparedMethod(method, side, norms_for(method, plain=plain, scaled=scaled))


def _for_all_features(of_words: Fixed, features: RowFeatures, typical: sparse.csr_matrix) -> Fixed:
    """Return A for the words of every text column, and a neutral one for all other features.

    A neutral A leaves each block its share of a row's norm: if D makes typical texts longer by a
    factor t, other features get D = t.
    """
    words = np.tile(_a_of(of_words), len(features.schema.texts))
    texts = typical[:, : features.words]
    longer = median_norm(texts, words) / median_norm(texts)
    others = np.full(features.width - features.words, 1 / longer)
    whole = torch.from_numpy(np.concatenate([words, others]))
    return replace(of_words, named={"weight": (whole, 1)})


def _a_of(side: Fixed) -> Numbers:
    found = along_features(side)
    assert found is not None  # made here, with one value per feature
    return found
