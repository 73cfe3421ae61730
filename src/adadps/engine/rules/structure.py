"""Which layer uses which parameter: read off the graph of one pass, not off gradients.

The ghost engine sees a parameter only through the layer that owns it. If a model also uses one
elsewhere, e.g. ``functional.linear(x, self.layer.weight)`` behind a gate that happens to be closed,
no gradient of a few rows would show it, but the graph of the pass does. Control flow that depends
on values of rows is refused by torch.func.vmap; where a model looks at any values, of its weights
say, no graph is trusted. So one graph holds for every row and every step.
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
    """Does this very module, not one inside it, own a trainable parameter?"""
    return any(parameter.requires_grad for parameter in module.parameters(recurse=False))


def uses_only_through_layers(model: nn.Module, params: Params, row: Tensor) -> bool:
    """Does every use of a trainable parameter go through the layer that owns it?"""
    leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
    values = _Values()
    with _aliased(model) as aliases, values, values.asked_in_python:
        outputs = functional_call(model, leaves, (row,))
    if not isinstance(outputs, Tensor) or values.were_looked_at:
        return False
    ours = {id(leaf) for leaf in leaves.values()}
    through_layers = set(aliases)
    return all(
        node in through_layers
        for node, leaf in _readers(outputs.grad_fn)
        if id(getattr(leaf, "variable", None)) in ours
    )


class _Values(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes whether a pass turns values of tensors into Python, or into shapes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.were_looked_at = False
        self.asked_in_python = _AskedInPython(self)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Do what was asked for, and note what it was."""
        self.were_looked_at |= func.overloadpacket.__name__ in _LOOKS
        return func(*args, **(kwargs or {}))


class _AskedInPython(TorchFunctionMode):
    """The same for what torch does not dispatch."""

    def __init__(self, values: _Values) -> None:
        super().__init__()
        self._values = values

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Do what was asked for, and note what it was."""
        self._values.were_looked_at |= getattr(func, "__name__", "") in _LOOKS
        return func(*args, **(kwargs or {}))


_LOOKS = {
    "_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "unique", "_unique",
    "_unique2", "unique_dim", "unique_consecutive", "masked_select", "tolist", "numpy",
    "__array__", "__dlpack__", "data_ptr",
}  # fmt: skip
"""Operations whose results in Python, or whose shapes, depend on values."""


@contextmanager
def _aliased(model: nn.Module) -> Iterator[list[Any]]:
    """While a layer runs it sees aliases of its own parameters; their nodes are noted."""
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
    """All edges of a graph from a node to one that it reads."""
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


class PythonsChance:
    """Tells whether Python's or numpy's generator was used since, on which branches can depend."""

    def __init__(self) -> None:
        self._before = _states()

    def was_used(self) -> bool:
        """Was anything drawn from them?"""
        (python, words, place), (held, old_words, old_place) = _states(), self._before
        return python != held or place != old_place or not np.array_equal(words, old_words)


def _states() -> tuple[Any, Any, Any]:
    of_numpy = np.random.get_state(legacy=False)["state"]
    return random.getstate(), of_numpy.get("key", of_numpy.get("state")), of_numpy.get("pos")
