"""The type and shape of an example: all that a dry run needs of the data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from adadps.data.examples import COMPUTABLE, Examples, require_examples
from adadps.data.fields import one_input
from adadps.data.sparse_rows import SparseRows
from adadps.errors import SettingError

NUMBERS = {str(dtype).removeprefix("torch."): dtype for dtype in COMPUTABLE}


@dataclass(frozen=True)
class RowKind:
    """Public facts about rows, by declaration: shapes without the first axis, and types.

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
        """Return the kind of these rows, without reading their values."""
        features, targets = one_input(require_examples(data).features), data.targets
        target = tuple(targets.shape[1:]), _name_of(targets)
        if isinstance(features, SparseRows):
            return cls(True, (features.width,), _name_of(features.values), *target)
        return cls(False, tuple(features.shape[1:]), _name_of(features), *target)

    def as_settings(self) -> dict[str, str | bool]:
        """Return the kind as settings that can be sent."""
        shapes = (shape_text(self.shape), shape_text(self.target_shape))
        return asdict(self) | dict(zip(("shape", "target_shape"), shapes, strict=True))

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> RowKind:
        """Return the kind that was sent, checked."""
        names, found = sorted(cls.__dataclass_fields__), sorted(settings)
        if found != names:
            raise SettingError(f"Expected the settings {names}, found {found}. Check the server.")
        for dtype in (settings["dtype"], settings["target_dtype"]):
            if dtype not in NUMBERS:
                expected = f"one of {sorted(NUMBERS)}"
                raise SettingError(f"Expected {expected}, found {dtype}. Check the server.")
        shapes = {name: shape_of(settings[name]) for name in ("shape", "target_shape")}
        return cls(**settings | shapes)

    def no_examples(self) -> Examples:
        """Return zero examples of this kind, after whose form synthetic rows are made."""
        targets = torch.zeros((0, *self.target_shape), dtype=NUMBERS[self.target_dtype])
        if not self.is_sparse:
            return Examples(torch.zeros((0, *self.shape), dtype=NUMBERS[self.dtype]), targets)
        none = torch.zeros(0, dtype=torch.int64)
        (width,) = self.shape
        values = torch.zeros(0, dtype=NUMBERS[self.dtype])
        return Examples(SparseRows(none.new_zeros(1), none, values, width), targets)


def without_rows(data: Any) -> Examples:
    """Return the form of these examples and their synthetic rows; no private row is read."""
    return replace(RowKind.of(data).no_examples(), synthetic=data.synthetic)


def shape_text(shape: Iterable[int]) -> str:
    """Return a shape as text.

    >>> shape_text((3, 12)), shape_of("3x12"), shape_of(shape_text(()))
    ('3x12', (3, 12), ())
    """
    return "x".join(str(size) for size in shape)


def shape_of(text: str) -> tuple[int, ...]:
    """Return the shape that `shape_text` has written."""
    return tuple(int(size) for size in text.split("x")) if text else ()


def _name_of(values: Tensor) -> str:
    return str(values.dtype).removeprefix("torch.")
