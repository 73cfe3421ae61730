"""Which layer uses which parameter, read from the graph of one pass, not from gradients.

The ghost engine sees a parameter only through the layer that owns it. If a model also uses one
elsewhere, e.g. ``functional.linear(x, self.layer.weight)`` behind a gate that happens to be closed,
no gradient of a few rows would show it, but the graph of the pass does. Control flow that depends
on values of rows is refused by torch.func.vmap; if a model reads any values, of its weights say, no
graph is trusted. So one graph holds for every row and every step.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from adadps.tensors.sums import Params


def owns_trainable(module: nn.Module) -> bool:
    """Does this module itself, not one inside it, own a trainable parameter?"""
    return any(parameter.requires_grad for parameter in module.parameters(recurse=False))


def uses_only_through_layers(model: nn.Module, params: Params, row: Tensor) -> bool:
    """Does every use of a trainable parameter go through the layer that owns it?"""
    leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
    reads = _ValueReads()
    with _aliased(model) as aliases, reads, reads.in_python:
        outputs = functional_call(model, leaves, (row,))
    if not isinstance(outputs, Tensor) or reads.found:
        return False
    ours = {id(leaf) for leaf in leaves.values()}
    through_layers = set(aliases)
    return all(
        node in through_layers
        for node, leaf in _readers(outputs.grad_fn)
        if id(getattr(leaf, "variable", None)) in ours
    )


class _ValueReads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes whether a pass turns values of tensors into Python objects, or into shapes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = False
        self.in_python = _ValueReadsInPython(self)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call the operation, and note whether it reads values."""
        self.found |= func.overloadpacket.__name__ in _READS
        return func(*args, **(kwargs or {}))


class _ValueReadsInPython(TorchFunctionMode):
    """The same for functions that torch does not dispatch."""

    def __init__(self, reads: _ValueReads) -> None:
        super().__init__()
        self._reads = reads

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call the operation, and note whether it reads values."""
        self._reads.found |= getattr(func, "__name__", "") in _READS
        return func(*args, **(kwargs or {}))


_READS = {
    "_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "unique", "_unique",
    "_unique2", "unique_dim", "unique_consecutive", "masked_select", "tolist", "numpy",
    "__array__", "__dlpack__", "data_ptr",
}  # fmt: skip
"""Operations whose results in Python, or whose shapes, depend on values."""


@contextmanager
def _aliased(model: nn.Module) -> Iterator[list[Any]]:
    """Give each layer aliases of its own parameters while it runs; yield the aliases' nodes."""
    nodes: list[Any] = []
    held: list[tuple[nn.Module, dict[str, Any]]] = []

    def enter(layer: nn.Module, _inputs: Any) -> None:
        own = dict(layer._parameters)
        held.append((layer, own))
        for name, value in own.items():
            if value is not None and value.requires_grad:
                alias: Any = value.view_as(value)
                nodes.append(alias.grad_fn)
                layer._parameters[name] = alias

    def leave(layer: nn.Module, _inputs: Any, _outputs: Any) -> None:
        entered, own = held.pop()
        assert entered is layer
        layer._parameters.update(own)

    layers = [module for module in model.modules() if owns_trainable(module)]
    handles = [layer.register_forward_pre_hook(enter) for layer in layers]
    handles += [layer.register_forward_hook(leave, always_call=True) for layer in layers]
    try:
        yield nodes
    finally:
        for handle in handles:
            handle.remove()


def _readers(last: Any) -> Iterator[tuple[Any, Any]]:
    """Yield all edges of a graph, from a node to one that it reads."""
    waiting, seen = [last], {last}
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
