"""What a pass must leave as it found it: what the model holds, and the default generators.

A model holds more than its weights: buffers, attributes, and whatever they lead to.
A forward pass on private rows may write there (lazy initialisation, running statistics, codebooks,
``self.last = x``, a hook that records activations), and what it writes would leave with the model,
without noise. So a pass begins with a `ModelState` and ends by restoring everything, whether or not
anything was written. On synthetic rows the same record tells which module writes into itself.

Parameters are compared by identity and version alone: weights that wait for their noise must not be
read. Global variables of the user's own code cannot be covered.

Dropout and other draws inside a model follow positions in the batch: if somebody knew the
generator's seed, one added row would shift the draws of all others, and their clipped sum by far
more than C. So during a pass the default generators of torch, numpy and Python have states from the
run's own secure source (all bits of them: `manual_seed` would set 32), and afterwards the states
that they had before.
"""

from __future__ import annotations

import functools
import random
import types
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from adadps.errors import ContractError, ModelError

_CONTAINERS = (dict, list, set, deque)
_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_DEEPEST = 6
"""Nested plain objects are followed from a module to this depth."""

_NOT_FOLLOWED = ("torch.", "adadps.", "builtins", "lightning", "pytorch_lightning")
"""Packages whose objects hold nothing that a forward pass would write, or too much to follow.

Modules of torch are followed whatever their class.
"""


class _Place(NamedTuple):
    """Something that can be written to: whether it changed, and how to restore it."""

    module: str
    is_same: Callable[[], bool]
    """Does it hold the same objects, or the same numbers?"""
    is_equal: Callable[[], bool]
    """Does it hold equal objects, e.g. a weight computed again from the same parameters?"""
    restore: Callable[[], None]


class ModelState:
    """A record of everything that a model, and a loss that is an object, hold now."""

    def __init__(self, model: nn.Module, loss: object = None) -> None:
        self._parameters = list(_parameters(model))
        self._places: list[_Place] = []
        self._empty: list[Any] = []
        """Containers that hold nothing, as most of those in a module do, and where they are."""
        self._empty_in: list[str] = []
        self._generators: list[str] = []
        self._visited: dict[int, Any] = {}
        # Weights of shards lose their memory after each pass, and so does what shares it.
        self._fleeting = {
            p.untyped_storage()._cdata
            for p in self._parameters
            if getattr(type(p), "comes_and_goes", False)
        }
        for name, module in model.named_modules():
            self._visit(module, name)
        self._visit(loss, THE_LOSS)

    def restore(self) -> None:
        """Undo all writes since the record was made."""
        if any(map(len, self._empty)):
            for container in self._empty:
                container.clear()
        for place in self._places:
            if not place.is_same():
                place.restore()

    def is_current(self) -> bool:
        """Would a new record be the same?"""
        return not any(map(len, self._empty)) and all(place.is_same() for place in self._places)

    def versions(self) -> list[int]:
        """Return the versions of all parameters: writes to them cannot be undone."""
        return [parameter._version for parameter in self._parameters]

    def require_versions(self, versions: list[int]) -> None:
        """Refuse writes to parameters since they had these versions."""
        if self.versions() != versions:
            raise ContractError(
                "Expected a forward pass that reads the model's parameters, found one that writes "
                "to them. Move the change out of `forward`: only the method may move weights."
            )

    def written(self) -> str | None:
        """Return the name of a module whose contents have changed, or None.

        Call it only after passes on synthetic rows: it reads the contents.
        """
        pairs = zip(self._empty, self._empty_in, strict=True)
        changed = [module for container, module in pairs if len(container)]
        changed += [p.module for p in self._places if not p.is_same() and not p.is_equal()]
        return changed[0] if changed else None

    def require_no_generator(self) -> None:
        """Refuse a model with its own generator, whose seed others may know."""
        if self._generators:
            raise ModelError(
                "Expected a model that draws from torch's default generator, which is secret while "
                "private rows are seen, found that it has its own generator in "
                f"{described(self._generators[0])}. Remove it, and call torch's functions without "
                "`generator=`."
            )

    def _visit(self, held: Any, module: str, depth: int = 0) -> None:
        """Record whatever can be written to, and its contents."""
        if type(held) in _PLAINEST or isinstance(held, _PLAIN) or id(held) in self._visited:
            return
        self._visited[id(held)] = held  # alive, so that no other object gets its id
        if isinstance(held, Tensor):
            if not isinstance(held, nn.Parameter) and not self._is_fleeting(held):
                self._places.append(_tensor(held, module))
            self._visit(vars(held), module, depth)
        elif isinstance(held, np.ndarray):
            self._places.append(_array(held, module))
        elif isinstance(held, _GENERATORS):
            self._generators.append(module)
        elif isinstance(held, _CONTAINERS):
            if len(held):
                self._places.append(_container(held, module))
            else:
                self._empty.append(held)
                self._empty_in.append(module)
            self._visit(getattr(held, "__dict__", None), module, depth)
            for value in list(held.values()) if isinstance(held, dict) else list(held):
                self._visit(value, module, depth)
        elif isinstance(held, tuple):
            self._visit(getattr(held, "__dict__", None), module, depth)
            for value in held:
                self._visit(value, module, depth)
        elif depth < _DEEPEST:
            self._visit_object(held, module, depth + 1)

    def _is_fleeting(self, tensor: Tensor) -> bool:
        return bool(self._fleeting) and tensor.untyped_storage()._cdata in self._fleeting

    def _visit_object(self, held: Any, module: str, depth: int) -> None:
        if isinstance(held, types.MethodType | types.BuiltinMethodType):
            self._visit((held.__self__, getattr(held, "__func__", None)), module, depth)
        elif isinstance(held, functools.partial):
            self._visit((held.func, held.args, held.keywords), module, depth)
        elif isinstance(held, types.FunctionType):
            for name in ("__defaults__", "__kwdefaults__"):
                self._visit_attribute(held, name, module, depth)
            self._visit(held.__dict__, module, depth)
            for cell in held.__closure__ or ():
                self._visit_attribute(cell, "cell_contents", module, depth)
        elif isinstance(held, type):
            self._visit_classes(held, module)
        elif isinstance(held, nn.Module):
            self._visit(held.__dict__, module, 0)
            self._visit_classes(type(held), module)
        elif not type(held).__module__.startswith(_NOT_FOLLOWED):
            self._visit(getattr(held, "__dict__", None), module, depth)
            for name in _slots(type(held)):
                self._visit_attribute(held, name, module, depth)
            self._visit_classes(type(held), module)

    def _visit_attribute(self, holder: Any, name: str, module: str, depth: int) -> None:
        value = _attribute_of(holder, name)
        self._places.append(_attribute(holder, name, value, module))
        self._visit(value, module, depth)

    def _visit_classes(self, kind: type, module: str) -> None:
        """Record attributes of the user's own classes, which all their objects share."""
        for cls in kind.__mro__:
            if cls.__module__.startswith(_NOT_FOLLOWED) or id(cls) in self._visited:
                continue
            self._visited[id(cls)] = cls
            self._places.append(_class(cls, module))
            for value in list(vars(cls).values()):
                self._visit(value, module, 1)


THE_LOSS = "the loss"
_PLAIN = (str, bytes, int, float, complex, torch.dtype, torch.device)
_PLAINEST = {type(None), bool, *_PLAIN}  # most of what a module holds


class SameState:
    """Restores everything that a model and a loss hold after each pass, whatever happens in it.

    The record of the last pass serves the next one, as long as it is current.
    """

    def __init__(self, model: nn.Module, loss: object = None) -> None:
        self._model, self._loss = model, loss
        self._record: ModelState | None = None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Surround a pass."""
        record = self._record
        if record is None or not record.is_current():
            self._record = record = ModelState(self._model, self._loss)
        versions = record.versions()
        try:
            yield
        finally:
            record.restore()
        record.require_versions(versions)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put all modules into evaluation mode, and each back into its own mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def described(name: str) -> str:
    """Name a module in an error."""
    if name == THE_LOSS:
        return name
    return f"module '{name}'" if name else "the model itself"


def _parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    return (p for p in model.parameters() if not isinstance(p, nn.UninitializedParameter))


def _slots(kind: type) -> Iterator[str]:
    for cls in kind.__mro__:
        names = vars(cls).get("__slots__", ())
        yield from (names,) if isinstance(names, str) else names


# --- places ---


def _tensor(tensor: Tensor, module: str) -> _Place:
    value = tensor.detach().clone()

    def is_same() -> bool:
        return _same_numbers(tensor, value)

    def restore() -> None:  # through `.data`: the user's own graphs need not notice
        if tensor.shape != value.shape or tensor.dtype != value.dtype:
            tensor.data = value
        else:
            tensor.data.copy_(value)

    return _Place(module, is_same, lambda: False, restore)


def _array(array: Any, module: str) -> _Place:
    value = array.copy()

    def is_same() -> bool:
        return bool(array.tobytes() == value.tobytes())

    return _Place(module, is_same, lambda: False, lambda: array.__setitem__(..., value))


def _container(container: Any, module: str) -> _Place:
    value = container.copy()

    def restore() -> None:
        container.clear()
        if isinstance(container, dict | set):
            container.update(value)
        else:
            container.extend(value)

    return _Place(
        module,
        lambda: _same_items(container, value),
        lambda: _equal_items(container, value),
        restore,
    )


def _attribute(holder: Any, name: str, value: Any, module: str) -> _Place:
    def restore() -> None:
        if value is _MISSING:
            delattr(holder, name)
        else:
            setattr(holder, name, value)

    return _Place(
        module,
        lambda: _attribute_of(holder, name) is value,
        lambda: _equal(_attribute_of(holder, name), value),
        restore,
    )


_MISSING = type("Missing", (), {"__slots__": ()})()
"""In place of the value of a slot, or of a variable of a function, that has none yet."""


def _attribute_of(holder: Any, name: str) -> Any:
    try:
        return getattr(holder, name)
    except (AttributeError, ValueError):  # an empty cell has no value
        return _MISSING


def _class(cls: type, module: str) -> _Place:
    value = dict(vars(cls))

    def restore() -> None:
        for name in vars(cls).keys() - value.keys():
            delattr(cls, name)
        for name, held in value.items():
            if vars(cls).get(name) is not held:
                setattr(cls, name, held)

    return _Place(
        module,
        lambda: _same_items(dict(vars(cls)), value),
        lambda: _equal_items(dict(vars(cls)), value),
        restore,
    )


# --- comparing ---


def _same_numbers(tensor: Tensor, value: Tensor) -> bool:
    if tensor.shape != value.shape or tensor.dtype != value.dtype:
        return False
    tensor, value = (held.detach().resolve_conj().resolve_neg() for held in (tensor, value))
    if tensor.is_complex():
        tensor, value = torch.view_as_real(tensor), torch.view_as_real(value)
    if tensor.is_floating_point():  # bit by bit: the sign of a zero, or a NaN, may tell something
        bits = _BITS[tensor.element_size()]
        tensor, value = tensor.view(bits), value.view(bits)
    return torch.equal(tensor, value)


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers of as many bytes as a number has."""


def _same_items(container: Any, value: Any) -> bool:
    """Does it hold the same objects?"""
    if len(container) != len(value):
        return False
    if not value:
        return True
    if isinstance(container, dict):
        same = [*map(id, container.values())] == [*map(id, value.values())]
        return same and [*container] == [*value]
    if isinstance(container, set):
        return {id(one) for one in container} == {id(one) for one in value}
    return [*map(id, container)] == [*map(id, value)]


def _equal_items(container: Any, value: Any) -> bool:
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
        return not isinstance(one, nn.Parameter) and _same_numbers(one, other)
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return type(one) is type(other) and np.array_equal(one, other)
    try:
        return type(one) is type(other) and bool(one == other)
    except Exception:  # objects that cannot be compared count as changed
        return False
