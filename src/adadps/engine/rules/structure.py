"""Which layer uses which parameter, read from the graph of one pass, not from gradients.

The ghost engine sees a parameter only through the layer that owns it. If a model also uses one
elsewhere, e.g. ``functional.linear(x, self.layer.weight)`` behind a gate that happens to be closed,
no gradient of a few rows would show it, but the graph of the pass does. Control flow that depends
on values of rows is refused by torch.func.vmap; if a model reads values of its weights, or of
draws, no graph is trusted. So one graph holds for every row and every step.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from adadps.data.fields import Arguments, tensors_of
from adadps.engine.rules.tape import Replacement, Tape, on_tape
from adadps.errors import ModelError
from adadps.tensors.sums import Params


def owns_trainable(module: nn.Module) -> bool:
    """Does this module itself, not one inside it, own a trainable parameter?"""
    return any(parameter.requires_grad for parameter in module.parameters(recurse=False))


def used_elsewhere(
    model: nn.Module, params: Params, row: Arguments, replacements: dict[nn.Module, Replacement]
) -> set[str] | None:
    """Return the parameters that are used outside of the layers on the tape; None if unknown.

    A parameter that the pass does not use at all is among them.
    """
    leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
    given, named = row
    reads = _ValueReads([*leaves.values(), *given, *named.values()])
    tape = _AliasTape()
    with on_tape(tape, replacements), reads, reads.in_python:
        outputs = functional_call(model, leaves, given, named)
    found = tensors_of(outputs)
    if not found or reads.found:
        return None
    names = {id(leaf): name for name, leaf in leaves.items()}
    owned = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    through: set[str] = set()
    elsewhere: set[str] = set()
    for node, leaf in readers([tensor.grad_fn for tensor in found]):
        variable = id(getattr(leaf, "variable", None))
        if variable in owned:
            raise HiddenParameterError(
                "Expected a model that reads its parameters as attributes of its modules, found "
                "one that also holds them elsewhere (in a list, say): their gradients would be "
                "missing. Read them from the module, or use nn.ParameterList."
            )
        if variable in names:
            (through if node in tape.nodes else elsewhere).add(names[variable])
    return elsewhere | (set(names.values()) - through)


class HiddenParameterError(ModelError):
    """A model uses a parameter past its modules, where it cannot be differentiated by example."""


class _AliasTape(Tape):
    """Gives layers aliases of their own parameters, and notes the nodes of the aliases."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: set[Any] = set()

    def weight(self, layer: nn.Module, name: str) -> Tensor:
        """Return an alias."""
        return self.alias(super().weight(layer, name))

    def run(self, layer: nn.Module, *given: Any, **named: Any) -> Any:
        """Run a layer with aliases in place of its parameters."""
        own = dict(layer._parameters)
        for name, value in own.items():
            if value is not None:
                aliased: Any = self.alias(value)
                layer._parameters[name] = aliased
        try:
            return super().run(layer, *given, **named)
        finally:
            layer._parameters.update(own)

    def alias(self, value: Tensor) -> Tensor:
        """Return an alias of a parameter, if it is trainable."""
        if not (value.requires_grad and value.is_leaf):
            return value
        alias = value.view_as(value)
        self.nodes.add(alias.grad_fn)
        return alias


class _ValueReads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes whether a pass turns values into Python objects, or into shapes.

    Values of constants do not count: only those that depend on ``watched`` tensors, or on draws.
    They are recognised by the memory that they lie in.
    """

    def __init__(self, watched: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = False
        self._held = list(watched)  # held, so that their memory is not used again
        self._memory = {_memory(tensor) for tensor in watched}
        self.in_python = _ValueReadsInPython(self)

    def note(self, name: str, given: Any) -> bool:
        """Note a read, if it is one; return whether ``given`` holds a value that counts."""
        counts = any(
            _memory(one) in self._memory for one in tree_leaves(given) if isinstance(one, Tensor)
        )
        self.found |= counts and name in _READS
        return counts

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call the operation, and note whether it reads values."""
        counts = self.note(func.overloadpacket.__name__, (args, kwargs))
        found = func(*args, **(kwargs or {}))
        if counts or torch.Tag.nondeterministic_seeded in func.tags:
            made = [one for one in tree_leaves(found) if isinstance(one, Tensor)]
            self._held += made
            self._memory |= {_memory(one) for one in made}
        return found


def _memory(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


class _ValueReadsInPython(TorchFunctionMode):
    """The same for functions that torch does not dispatch."""

    def __init__(self, reads: _ValueReads) -> None:
        super().__init__()
        self._reads = reads

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call the operation, and note whether it reads values."""
        self._reads.note(getattr(func, "__name__", ""), (args, kwargs))
        return func(*args, **(kwargs or {}))


_READS = {
    "_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "unique", "_unique",
    "_unique2", "unique_dim", "unique_consecutive", "masked_select", "tolist", "numpy",
    "__array__", "__dlpack__", "data_ptr",
}  # fmt: skip
"""Operations whose results in Python, or whose shapes, depend on values."""


def readers(last: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield all edges of a graph, from a node to one that it reads."""
    waiting, seen = list(dict.fromkeys(last)), set(last)
    while waiting:
        node = waiting.pop()
        for following, _ in node.next_functions if node is not None else ():
            if following is None:
                continue
            yield node, following
            if following not in seen:
                seen.add(following)
                waiting.append(following)


class PythonGenerators:
    """Python's and numpy's default generators, on whose draws branches can depend."""

    def __init__(self) -> None:
        self._before = _states()

    def have_drawn(self) -> bool:
        """Was anything drawn from them since?"""
        (python, words, place), (held, old_words, old_place) = _states(), self._before
        return python != held or place != old_place or not np.array_equal(words, old_words)


def _states() -> tuple[Any, Any, Any]:
    of_numpy = np.random.get_state(legacy=False)["state"]
    return random.getstate(), of_numpy.get("key", of_numpy.get("state")), of_numpy.get("pos")
