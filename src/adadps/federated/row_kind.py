"""The kind and shape of an example, and synthetic rows like it: what a dry run needs of data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from adadps.data.examples import COMPUTABLE, Examples, Features
from adadps.data.sparse_rows import SparseRows
from adadps.errors import DataError
from adadps.types import require

NUMBERS = {str(dtype).removeprefix("torch."): dtype for dtype in COMPUTABLE}
WORDS = 4
"""A synthetic sparse row has this many columns, or as many as there are."""


@dataclass(frozen=True)
class RowKind:
    """What is public about rows by declaration: shapes without the first axis, and types.

    >>> from adadps import examples
    >>> RowKind.of(examples([[0.5, 1.5]], [1]))
    RowKind(is_sparse=False, shape=(2,), dtype='float32', target_shape=(), target_dtype='int64')
    """

    is_sparse: bool
    shape: tuple[int, ...]
    dtype: str
    target_shape: tuple[int, ...]
    target_dtype: str

    @classmethod
    def of(cls, data: Any) -> RowKind:
        """The kind of these rows; no value of theirs is read."""
        features, targets = require_examples(data).features, data.targets
        target = tuple(targets.shape[1:]), _name_of(targets)
        if isinstance(features, SparseRows):
            return cls(True, (features.width,), _name_of(features.values), *target)
        return cls(False, tuple(features.shape[1:]), _name_of(features), *target)

    def as_settings(self) -> dict[str, str | bool]:
        """By name, to be sent."""
        shapes = (shape_text(self.shape), shape_text(self.target_shape))
        return asdict(self) | dict(zip(("shape", "target_shape"), shapes, strict=True))

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> RowKind:
        """As it was sent, checked."""
        names, found = sorted(cls.__dataclass_fields__), sorted(settings)
        require(found == names, f"the settings {names}", found, "Check the server's settings.")
        for dtype in (settings["dtype"], settings["target_dtype"]):
            require(dtype in NUMBERS, f"one of {sorted(NUMBERS)}", dtype, "Check the server.")
        shapes = {name: shape_of(settings[name]) for name in ("shape", "target_shape")}
        return cls(**settings | shapes)

    def rows(self, count: int = 3) -> Examples:
        """Synthetic rows of this kind: fractions between 0 and 1, and the whole number 0."""
        generator = torch.Generator().manual_seed(0)
        targets = _numbers((count, *self.target_shape), self.target_dtype, generator)
        return Examples(self._features(count, generator), targets)

    def _features(self, count: int, generator: torch.Generator) -> Features:
        if not self.is_sparse:
            return _numbers((count, *self.shape), self.dtype, generator)
        rng, (width,) = np.random.default_rng(0), self.shape
        words = min(WORDS, width)
        columns = [rng.choice(width, words, replace=False) for _ in range(count)]
        entries = (rng.random(count * words), np.concatenate(columns))
        offsets = np.arange(count + 1) * words
        held = SparseRows.from_scipy(sparse.csr_matrix((*entries, offsets), shape=(count, width)))
        return held.with_values(held.values.to(NUMBERS[self.dtype]))


def require_examples(data: Any) -> Examples:
    """Refuse what is not examples, such as a loader of torch."""
    if not isinstance(data, Examples):
        raise DataError(
            f"Expected `adadps.examples(features, targets)` as data, found {type(data).__name__}. "
            "Wrap features and targets by it."
        )
    return data


def shape_text(shape: Iterable[int]) -> str:
    """A shape as text.

    >>> shape_text((3, 12)), shape_of("3x12"), shape_of(shape_text(()))
    ('3x12', (3, 12), ())
    """
    return "x".join(str(size) for size in shape)


def shape_of(text: str) -> tuple[int, ...]:
    """The shape that was written so."""
    return tuple(int(size) for size in text.split("x")) if text else ()


def _name_of(values: Tensor) -> str:
    return str(values.dtype).removeprefix("torch.")


def _numbers(shape: tuple[int, ...], dtype: str, generator: torch.Generator) -> Tensor:
    kind = NUMBERS[dtype]
    if not kind.is_floating_point:
        return torch.zeros(shape, dtype=kind)
    return torch.rand(shape, generator=generator).to(kind)
