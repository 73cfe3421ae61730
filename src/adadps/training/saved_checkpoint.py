"""Read a stored checkpoint, and refuse one that this run could not have written.

Decoding executes nothing: a state consists of None, numbers, strings, tensors, mappings, tuples,
and the records of side information.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save
from torch import Tensor

from adadps.errors import DataError
from adadps.methods.side.source import Transform
from adadps.report.result import Measurement
from adadps.tensors.sums import Params
from adadps.training.checkpoint import (
    CONTENT,
    FEATURE_WEIGHTS,
    FORMAT,
    RECORDS,
    TENSORS,
    Checkpoint,
    content_of,
    digest_of,
    number_of,
    tensors_of,
)

_OTHERS = "Delete that folder to begin anew; what was paid stays on the ledger."


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read the checkpoint in a folder; one that is damaged or of another format is refused."""
    try:
        held = json.loads((folder / CONTENT).read_text(encoding="utf-8"))
        if held["format"] != FORMAT:
            raise DataError(
                f"Expected a checkpoint of format {FORMAT}, found {held['format']} in {folder}. "
                "Resume with the version of adadps that wrote it."
            )
        file = folder / TENSORS
        if held.pop("digest") != digest_of(held, file):
            raise DataError(
                f"Expected the checkpoint that was written to {folder}, found a changed one. "
                f"Restore a copy. {_OTHERS}"
            )
        if held["taken"] != number_of(folder):
            raise DataError(
                f"Expected a checkpoint after the steps in its name, found {held['taken']} in "
                f"{folder}. Give the folder its name back."
            )
        return _checkpoint(held, load_file(file))
    except DataError:
        raise
    except (
        OSError,
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
        OverflowError,
        SafetensorError,
    ) as error:
        raise DataError(
            f"Expected a whole checkpoint in {folder}, found something unreadable "
            f"({type(error).__name__}: {error}). Restore a copy. {_OTHERS}"
        ) from error


def _checkpoint(held: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Checkpoint:
    return Checkpoint(
        run=_checked(held["run"], str),
        plan=_checked(held["plan"], str),
        ledger=_checked(held["ledger"], str),
        frozen=_checked(held["frozen"], str),
        planned=_count(held["planned"]),
        taken=_count(held["taken"], most=held["planned"]),
        paid=_count(held["paid"]),
        marks=tuple(_checked(mark, str) for mark in _checked(held["marks"], list)),
        history=tuple(_measurement(entry) for entry in _checked(held["history"], list)),
        params=_part(tensors, "weights/"),
        feature_weights=tensors.get(FEATURE_WEIGHTS),
        states=held["states"],
        state_tensors=_part(tensors, "states/"),
    )


def to_bytes(checkpoint: Checkpoint) -> bytes:
    """Encode a checkpoint for another process of the same run."""
    return bytes(save(tensors_of(checkpoint), {"content": json.dumps(content_of(checkpoint))}))


def from_bytes(message: bytes) -> Checkpoint:
    """Decode a checkpoint that the first process of a run has read and checked."""
    size = int.from_bytes(message[:8], "little")  # of the header of a safetensors file
    header = json.loads(message[8 : 8 + size])
    return _checkpoint(json.loads(header["__metadata__"]["content"]), load(message))


def _part(tensors: Mapping[str, Tensor], prefix: str) -> Params:
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }


def _measurement(entry: dict[str, Any]) -> Measurement:
    value = math.nan if entry["value"] is None else _checked(entry["value"], float, int)
    return Measurement(**{**entry, "value": value})


def _checked(value: Any, *kinds: type) -> Any:
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise TypeError(f"expected {kinds[0].__name__}, found {type(value).__name__}")
    return value


def _count(value: Any, most: int = 2**62) -> int:
    count = _checked(value, int)
    if not 0 <= count <= most:
        raise ValueError(f"expected a count, found {count}")
    return int(count)


def unpack(packed: Any, tensors: Mapping[str, Tensor], weights: Params) -> Any:
    """Decode the state that `pack` was given, on the device of the weights.

    >>> from adadps.training.checkpoint import pack
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
    return inner if kind == "mapping" else RECORDS[kind](**inner)


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
    if isinstance(first, tuple(RECORDS.values())):
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
