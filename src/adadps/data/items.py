"""Items of a `Dataset`: how one is taken apart, and the one form that all of them have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from adadps.data.examples import Examples, as_numbers
from adadps.data.fields import Features, Fields
from adadps.data.sparse_rows import SparseRows
from adadps.errors import DataError

TARGETS = ("labels", "label", "targets", "target")
"""The keys under which items that are mappings usually hold their targets."""

Item = tuple[tuple[Tensor, ...], Tensor]
"""The inputs and the target of one example."""


@dataclass(frozen=True)
class ItemForm:
    """How an item is taken apart, and the form that all of them have."""

    target: str | None
    """The key of the target, where it was named."""
    names: tuple[str, ...] | None
    single: bool
    """Is there one input, which the model gets as a tensor?"""
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    is_read_off: bool
    """Was it read off the first row, rather than declared by synthetic ones?"""

    @classmethod
    def of(cls, item: Any, target: str | None) -> ItemForm:
        """Return the form of an item."""
        inputs, label = _inputs_and_target(item, target)
        names = tuple(inputs) if isinstance(inputs, Mapping) else None
        single = names is None and not isinstance(inputs, tuple | list)
        held = [*_tensors(inputs, names, single), _number(label, "target")]
        shapes, dtypes = tuple(tuple(t.shape) for t in held), tuple(t.dtype for t in held)
        return cls(target, names, single, shapes, dtypes, is_read_off=True)

    @classmethod
    def declared_by(cls, synthetic: Examples, target: str | None) -> ItemForm:
        """Return the form of made-up rows, which is that of all rows."""
        features = synthetic.features
        if isinstance(features, SparseRows):
            raise DataError(
                "Expected dense synthetic rows beside a dataset, found sparse ones. Give them as "
                "the dataset gives its rows."
            )
        fields = features if isinstance(features, Fields) else Fields((features,))
        held = [*fields.tensors, synthetic.targets]
        return cls(
            target,
            fields.names,
            isinstance(features, Tensor),
            tuple(tuple(t.shape[1:]) for t in held),
            tuple(t.dtype for t in held),
            is_read_off=False,
        )

    def __str__(self) -> str:
        forms = (
            f"{shape} of {str(dtype).removeprefix('torch.')}"
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        )
        return ", ".join(forms)

    def taken_apart(self, item: Any) -> Item:
        """Return inputs and target, or raise an error if they have another form."""
        inputs, label = _inputs_and_target(item, self.target)
        held = [*_tensors(inputs, self.names, self.single), _number(label, "target")]
        shapes = tuple(tuple(t.shape) for t in held)
        if shapes != self.shapes:
            raise DataError(
                f"Expected items of {self}, found the shapes {', '.join(map(str, shapes))}."
            )
        # Copied, because a dataset may write its next row into the same memory.
        held = [t.to(dtype, copy=True) for t, dtype in zip(held, self.dtypes, strict=True)]
        if not all(bool(torch.isfinite(t).all()) for t in held if t.is_floating_point()):
            raise DataError("Expected finite numbers, found NaN or infinity.")
        return tuple(held[:-1]), held[-1]

    def empty(self) -> Item:
        """Return zeros in place of an item that cannot be read."""
        pairs = zip(self.shapes, self.dtypes, strict=True)
        held = tuple(torch.zeros(shape, dtype=dtype) for shape, dtype in pairs)
        return held[:-1], held[-1]

    def features(self, tensors: Sequence[Tensor]) -> Features:
        """Return features of many examples, one tensor per input."""
        return tensors[0] if self.single else Fields(tuple(tensors), self.names)


def _inputs_and_target(item: Any, target: str | None) -> tuple[Any, Any]:
    if isinstance(item, Mapping):
        key = _target_among(item, target)
        return {name: value for name, value in item.items() if name != key}, item[key]
    if not isinstance(item, Sequence) or isinstance(item, str | bytes) or len(item) < 2:
        raise DataError(
            "Expected items of features and a target, (x, y), or mappings with a key among "
            f"{', '.join(TARGETS)}, found {type(item).__name__}. Return both from `__getitem__`."
        )
    return item[0] if len(item) == 2 else tuple(item[:-1]), item[-1]


def _tensors(inputs: Any, names: tuple[str, ...] | None, single: bool) -> list[Tensor]:
    if single:
        return [_number(inputs, "features")]
    if names is not None:
        return [_named(inputs, name) for name in names]
    return [_number(value, f"input {place} of an item") for place, value in enumerate(inputs)]


def _named(inputs: Mapping[str, Any], name: str) -> Tensor:
    if isinstance(inputs[name], str | bytes):
        raise DataError(
            f"Expected numbers under every key of an item, found text under {name!r}. Leave out "
            "what the model does not read: every key but the target is one of its inputs."
        )
    return _number(inputs[name], f"input {name!r} of an item")


def _target_among(item: Mapping[str, Any], target: str | None) -> str:
    wanted = TARGETS if target is None else (target,)
    found = [name for name in wanted if name in item]
    if not found:
        raise DataError(
            f"Expected items with the target under {' or '.join(map(repr, wanted))}, found the "
            f"keys {', '.join(map(repr, item))}. Name it by `target=`."
        )
    return found[0]


def _number(value: Any, what: str) -> Tensor:
    if type(value).__module__.startswith("PIL."):
        raise DataError(
            f"Expected numbers as {what}, found an image. Give the dataset a transform that makes "
            "tensors (`torchvision.transforms.ToTensor()`, say)."
        )
    held = as_numbers(value, what)
    return held.float() if held.dtype == torch.float64 and not isinstance(value, Tensor) else held
