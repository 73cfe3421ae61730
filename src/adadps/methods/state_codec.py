"""Encode the states of a method's stages as JSON and tensors, and decode them.

Decoding executes nothing. A state consists of None, numbers, strings, tensors, mappings, tuples,
and the records of side information. A custom stage whose state holds anything else is refused
before the first step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, cast

import torch
from torch import Tensor

from adadps.errors import ContractError, DataError
from adadps.methods.side.noisy import PendingMeasurement
from adadps.methods.side.public import GradientMoments
from adadps.methods.side.source import Transform
from adadps.tensors.sums import Params

_RECORDS: dict[str, Any] = {
    kind.__name__: kind for kind in (GradientMoments, PendingMeasurement, Transform)
}


def pack(state: Any, weights: Params) -> tuple[Any, Params]:
    """Encode a state as JSON, and return its tensors by the names used in the JSON.

    Where a state is the weights themselves, the JSON holds only a reference to them.

    >>> pack((None, {"m": torch.zeros(2)}), {})
    ({'tuple': [None, {'mapping': {'m': {'tensor': '0'}}}]}, {'0': tensor([0., 0.])})
    """
    packed = _Packing(weights)
    return packed.of(state), packed.tensors


def unpack(packed: Any, tensors: Mapping[str, Tensor], weights: Params) -> Any:
    """Decode the state that `pack` was given, on the device of the weights.

    >>> unpack(*pack((1.5, None), {}), {})
    (1.5, None)
    """
    try:
        return _unpacked(packed, tensors, weights)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise DataError(
            "Expected the state of a method as this version writes it, found something else "
            f"({type(error).__name__}: {error}). Use the version of adadps that wrote it."
        ) from error


class _Packing:
    def __init__(self, weights: Params) -> None:
        self.tensors: Params = {}
        self._weights = weights
        self._names: dict[int, Any] = {}

    def of(self, value: Any) -> Any:
        """Encode any part of a state as JSON."""
        if isinstance(value, Tensor):
            return self._tensor(value)
        if value is None or isinstance(value, int | str):
            return value
        if isinstance(value, float) and math.isfinite(value):
            return value
        return self._of_parts(value)

    def _of_parts(self, value: Any) -> Any:
        if self._is_weights(value):
            return {"weights": True}
        if isinstance(value, dict) and all(isinstance(name, str) for name in value):
            return {"mapping": {name: self.of(inner) for name, inner in value.items()}}
        if type(value) is tuple:
            return {"tuple": [self.of(inner) for inner in value]}
        if isinstance(value, tuple(_RECORDS.values())):
            names = [field.name for field in fields(cast(Any, value))]
            return {type(value).__name__: {name: self.of(getattr(value, name)) for name in names}}
        raise ContractError(
            "Expected states of tensors, numbers, mappings and tuples, which a checkpoint can "
            f"hold, found {type(value).__qualname__}. Build the state of your stage from those, or "
            "train without checkpoints."
        )

    def _tensor(self, tensor: Tensor) -> Any:
        if id(tensor) not in self._names:
            name = str(len(self.tensors))
            by_feature = tensor.ndim == 2 and not tensor.is_contiguous()
            self.tensors[name] = tensor.T if by_feature else tensor
            self._names[id(tensor)] = {"by_feature": name} if by_feature else {"tensor": name}
        return self._names[id(tensor)]

    def _is_weights(self, value: Any) -> bool:
        return (
            isinstance(value, dict)
            and bool(value)
            and value.keys() == self._weights.keys()
            and all(value[name] is held for name, held in self._weights.items())
        )


def _unpacked(packed: Any, tensors: Mapping[str, Tensor], weights: Params) -> Any:
    if not isinstance(packed, dict):
        return packed
    ((kind, held),) = packed.items()
    if kind == "weights":
        return weights
    if kind in {"tensor", "by_feature"}:
        device = next(iter(weights.values())).device if weights else torch.device("cpu")
        tensor = tensors[held].to(device)
        return tensor.T if kind == "by_feature" else tensor
    if kind == "tuple":
        return tuple(_unpacked(inner, tensors, weights) for inner in held)
    inner = {name: _unpacked(value, tensors, weights) for name, value in held.items()}
    return inner if kind == "mapping" else _RECORDS[kind](**inner)


def require_like(state: Any, first: Any, weights: Params) -> None:
    """Refuse a state that cannot have evolved from ``first``, the method's initial state."""
    if not _is_like(state, first, weights):
        raise DataError(
            "Expected the state of this method, found that of another method, or a modified one. "
            "Restore a copy of the checkpoint, or begin a new run in another folder."
        )


def _is_like(state: Any, first: Any, weights: Params) -> bool:
    if isinstance(state, Transform):  # the state of side information after it was read
        return _is_transform(state, weights)
    if isinstance(first, dict):
        same = isinstance(state, dict) and state.keys() == first.keys()
        return same and all(_is_like(state[name], first[name], weights) for name in first)
    if isinstance(first, tuple):
        same = isinstance(state, tuple) and len(state) == len(first)
        return same and all(
            _is_like(one, other, weights) for one, other in zip(state, first, strict=True)
        )
    if isinstance(first, tuple(_RECORDS.values())):
        names = [field.name for field in fields(cast(Any, first))]
        return type(state) is type(first) and all(
            _is_like(getattr(state, name), getattr(first, name), weights) for name in names
        )
    return _is_like_leaf(state, first)


def _is_like_leaf(state: Any, first: Any) -> bool:
    if isinstance(first, Tensor):
        same = isinstance(state, Tensor) and state.dtype == first.dtype
        return same and state.shape == first.shape
    if isinstance(first, bool | str) or first is None:
        return type(state) is type(first)
    return isinstance(state, int | float) and not isinstance(state, bool)


def _is_transform(state: Transform, weights: Params) -> bool:
    number = isinstance(state.beta, int | float) and isinstance(state.lent, bool)
    parts = [state.scale] + ([] if state.mean is None else [state.mean])
    return number and all(
        isinstance(part, dict)
        and part.keys() == weights.keys()
        and all(_broadcasts(value, weights[name]) for name, value in part.items())
        for part in parts
    )


def _broadcasts(value: Any, weight: Tensor) -> bool:
    return (
        isinstance(value, Tensor)
        and value.is_floating_point()
        and value.ndim == weight.ndim
        and all(own in (1, whole) for own, whole in zip(value.shape, weight.shape, strict=True))
    )
