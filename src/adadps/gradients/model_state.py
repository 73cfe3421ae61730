"""What a model holds besides its weights: buffers, attributes, and what lies in them.

A forward pass on private rows may write there (lazy initialisation, running statistics, codebooks,
``self.last = x``), and what it writes would leave with the model, without noise. So a pass begins
with a `ModelState` and ends by putting everything back, whether or not anything was written. On
synthetic rows the same record tells which module writes into itself.

Parameters are compared by identity and version alone: weights that wait for their noise must not be
read. A global variable or a closure of the user's own code is out of reach.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adadps.errors import ContractError, ModelError

_CONTAINERS = (dict, list, set, deque)
_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


class ModelState:
    """A record of all that a model, and a loss that is an object, hold now."""

    def __init__(self, model: nn.Module, loss: object = None) -> None:
        self._parameters = [(p, p._version) for p in _parameters(model)]
        self._containers: list[tuple[Any, Any, str]] = []
        self._tensors: list[tuple[Tensor, Tensor, str]] = []
        self._arrays: list[tuple[Any, Any, str]] = []
        self._generators: list[str] = []
        self._visited: set[int] = set()
        for name, module in model.named_modules():
            self._visit(module.__dict__, name)
        for module in loss.modules() if isinstance(loss, nn.Module) else ():
            self._visit(module.__dict__, "the loss")
        if not isinstance(loss, nn.Module) and hasattr(loss, "__dict__"):
            self._visit(loss.__dict__, "the loss")

    def put_back(self) -> None:
        """Undo all that was written since."""
        for tensor, value, _ in self._tensors:
            if not _same(tensor, value):
                _write(tensor, value)
        for array, value, _ in self._arrays:
            array[...] = value
        for container, value, _ in self._containers:
            if not _same_items(container, value):
                _refill(container, value)

    def require_same_parameters(self) -> None:
        """Refuse parameters that were written to, which cannot be undone."""
        if any(p._version != version for p, version in self._parameters):
            raise ContractError(
                "Expected a forward pass that reads the model's parameters, found one that writes "
                "to them. Move the change out of `forward`: only the method may move weights."
            )

    def written(self) -> str | None:
        """The name of a module that holds something else than before, by content; or None.

        Only after passes on synthetic rows: contents are read here.
        """
        for tensor, value, name in self._tensors:
            if not _same(tensor, value):
                return name
        for array, value, name in self._arrays:
            if not np.array_equal(array, value, equal_nan=array.dtype.kind in "fc"):
                return name
        for container, value, name in self._containers:
            if not _same_items(container, value) and not _equal_items(container, value):
                return name
        return None

    def require_no_generator(self) -> None:
        """Refuse a model that draws from a generator of its own, whose seed others may know."""
        if self._generators:
            raise ModelError(
                "Expected a model that draws from torch's default generator, which is secret while "
                f"private rows are seen, found a generator of its own in "
                f"{described(self._generators[0])}. Leave it out, and call torch's functions "
                "without `generator=`."
            )

    def _visit(self, held: Any, name: str, *, depth: int = 0) -> None:
        """Record a value that can be written to, and what lies in it."""
        if isinstance(held, nn.Parameter | nn.Module) or id(held) in self._visited:
            return
        if isinstance(held, Tensor):
            self._visited.add(id(held))
            self._tensors.append((held, held.detach().clone(), name))
        elif isinstance(held, np.ndarray):
            self._visited.add(id(held))
            self._arrays.append((held, held.copy(), name))
        elif isinstance(held, _GENERATORS):
            self._generators.append(name)
        elif isinstance(held, _CONTAINERS):
            self._visited.add(id(held))
            self._containers.append((held, held.copy(), name))
            for value in held.values() if isinstance(held, dict) else held:
                self._visit(value, name, depth=depth)
        elif isinstance(held, tuple):
            for value in held:
                self._visit(value, name, depth=depth)
        elif depth == 0 and _is_plain_object(held):
            self._visit(held.__dict__, name, depth=1)


@contextmanager
def same_state(model: nn.Module, loss: object = None) -> Iterator[None]:
    """Whatever happens meanwhile, the model holds afterwards what it held before."""
    held = ModelState(model, loss)
    try:
        yield
    finally:
        held.put_back()
    held.require_same_parameters()


def described(name: str) -> str:
    """A module by its name in the model, for an error."""
    if name == "the loss":
        return name
    return f"module '{name}'" if name else "the model itself"


def _parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    return (p for p in model.parameters() if not isinstance(p, nn.UninitializedParameter))


def _is_plain_object(held: Any) -> bool:
    """An object of a class of the user's own: functions, classes and the like hold no rows."""
    return hasattr(held, "__dict__") and not (isinstance(held, type) or callable(held))


def _same(tensor: Tensor, value: Tensor) -> bool:
    if tensor.shape != value.shape or tensor.dtype != value.dtype:
        return False
    if tensor.is_floating_point() or tensor.is_complex():
        return bool(torch.isclose(tensor.detach(), value, rtol=0, atol=0, equal_nan=True).all())
    return torch.equal(tensor, value)


def _write(tensor: Tensor, value: Tensor) -> None:
    """Write through ``.data``, so that graphs of the user's own do not notice what is undone."""
    if tensor.shape != value.shape or tensor.dtype != value.dtype:
        tensor.data = value
    else:
        tensor.data.copy_(value)


def _same_items(container: Any, value: Any) -> bool:
    """Does it hold the very same objects?"""
    if len(container) != len(value):
        return False
    if isinstance(container, dict):
        pairs = zip(container.items(), value.items(), strict=True)
        return all(key is old or key == old for (key, _), (old, _) in pairs) and all(
            one is other for one, other in zip(container.values(), value.values(), strict=True)
        )
    if isinstance(container, set):
        return {id(one) for one in container} == {id(one) for one in value}
    return all(one is other for one, other in zip(container, value, strict=True))


def _equal_items(container: Any, value: Any) -> bool:
    """Does it hold equal content, e.g. a weight that was computed anew from the same parameters?"""
    if isinstance(container, dict):
        return container.keys() == value.keys() and all(
            _equal(container[key], value[key]) for key in value
        )
    if isinstance(container, set):
        return bool(container == value)
    pairs = zip(container, value, strict=False)
    return len(container) == len(value) and all(_equal(one, other) for one, other in pairs)


def _equal(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return not isinstance(one, nn.Parameter) and _same(one, other)
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return type(one) is type(other) and np.array_equal(one, other)
    try:
        return type(one) is type(other) and bool(one == other)
    except Exception:  # what cannot be compared counts as changed
        return False


def _refill(container: Any, value: Any) -> None:
    container.clear()
    if isinstance(container, dict | set):
        container.update(value)
    else:
        container.extend(value)
