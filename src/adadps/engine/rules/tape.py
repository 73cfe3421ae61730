"""What one pass of a model notes: which parameters are used where, on which inputs.

A *tape* accompanies a pass. Layers with a rule (`adadps.engine.rules.layers`) report their inputs
through hooks. Layers of several products (recurrent layers, attention) are replaced for the time of
the pass by functions that compute the same and report each product as a `Part`. Beside every
product stands a zero: its gradient is the gradient of the product.

A parameter that is also used in another way is not among the ``recorded`` ones. Its gradient is
taken by torch, and stored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Part:
    """A product inside of a layer: the names of its weight and of the biases added to it.

    ``rows`` are those of a packed weight, or bias, that the product uses.
    """

    layer: nn.Module
    weight: str
    biases: tuple[str, ...] = ()
    rows: tuple[int, int] | None = None

    def chosen(self, value: Tensor) -> Tensor:
        """Return the rows of a weight or bias that the product uses."""
        if self.rows is None or len(value) == self.rows[1] - self.rows[0]:
            return value
        return value[self.rows[0] : self.rows[1]]

    def padded(self, b: Tensor, rows: int) -> Tensor:
        """Return output gradients with zeros for the rows that the product does not use."""
        if self.rows is None or rows == b.shape[-1]:
            return b
        return functional.pad(b, (self.rows[0], rows - self.rows[1]))


Owner = nn.Module | Part
"""A layer with a rule, or a product inside of a layer."""


def layer_of(owner: Owner) -> nn.Module:
    """Return the layer that holds the parameters."""
    return owner.layer if isinstance(owner, Part) else owner


@dataclass(frozen=True)
class Use:
    """One use of an owner's parameters; ``place`` is that of the zero beside its output."""

    owner: Owner
    inputs: Tensor
    place: int


class Tape:
    """Notes the uses of the parameters of ``recorded`` layers in one pass.

    Without ``zeros`` it makes them: a first pass shows how many there are, and their shapes.
    """

    def __init__(
        self, recorded: Collection[nn.Module] = (), zeros: list[Tensor] | None = None
    ) -> None:
        self._recorded, self._given = recorded, zeros
        self.zeros: list[Tensor] = []
        self.uses: list[Use] = []

    def weight(self, layer: nn.Module, name: str) -> Tensor:
        """Return a parameter of a layer that runs as a replacement."""
        value: Tensor = getattr(layer, name)
        return value

    def zero_beside(self, layer: nn.Module, output: Tensor) -> tuple[Tensor, int]:
        """Return a zero to stand beside an output of ``layer``, and its place among all zeros."""
        if layer not in self._recorded:
            return output.new_zeros(()), -1
        place = len(self.zeros)
        zero = torch.zeros_like(output) if self._given is None else self._given[place]
        self.zeros.append(zero)
        return zero, place

    def use(self, owner: Owner, inputs: Tensor, place: int) -> None:
        """Note a use."""
        if place >= 0:
            self.uses.append(Use(owner, inputs, place))

    def product(self, part: Part, rows: Tensor) -> Tensor:
        """Return rows · weightᵀ + biases, and note the use."""
        weight = part.chosen(self.weight(part.layer, part.weight))
        biases = [part.chosen(self.weight(part.layer, name)) for name in part.biases]
        output = functional.linear(rows, weight, biases[0] if biases else None)
        zero, place = self.zero_beside(part.layer, output)
        self.use(part, rows, place)
        return output if place < 0 else output + zero

    def note(self, layer: nn.Module, given: Any, named: Any, output: Any) -> Any:
        """Note the call of a layer with one input and one output; a forward hook."""
        inputs = [*given, *named.values()]
        if len(inputs) != 1 or not isinstance(output, Tensor):
            raise TypeError(f"one input for {type(layer).__name__}")  # the general engine takes it
        zero, place = self.zero_beside(layer, output)
        self.use(layer, inputs[0], place)
        return output + zero


Replacement = Callable[..., Any]
"""Runs a layer: called with the layer, the tape, and the arguments of its ``forward``."""


@contextmanager
def on_tape(
    tape: Tape,
    hooked: Collection[nn.Module],
    replacements: dict[nn.Module, Replacement],
) -> Iterator[None]:
    """Let ``hooked`` layers report to ``tape``, and run others by their ``replacements``."""
    handles = [layer.register_forward_hook(tape.note, with_kwargs=True) for layer in hooked]
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # it would pass over the layers inside
    for layer, replacement in replacements.items():
        layer.forward = partial(replacement, layer, tape)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for layer in replacements:
            del layer.forward
        for handle in handles:
            handle.remove()
