"""What one pass of a model notes: which parameters are used where, on which inputs.

A *tape* accompanies a pass, in which layers run by functions in place of their own ``forward``.
Layers with a rule (`adadps.engine.rules.layers`) compute what they always compute, and report their
inputs. Layers of several products (recurrent layers, attention) run by functions that compute the
same and report each product as a `Part`. Beside every product stands a zero: its gradient is the
gradient of the product.

A parameter that is also used in another way is not among the ``recorded`` ones. Its gradient is
taken by torch, and stored.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from adadps.tensors.products import linear


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
        output = linear(rows, weight, biases[0] if biases else None)
        zero, place = self.zero_beside(part.layer, output)
        self.use(part, rows, place)
        return output if place < 0 else output + zero

    def run(self, layer: nn.Module, *given: Any, **named: Any) -> Any:
        """Run a layer with one input and one output, and note the use.

        It is noted inside of the layer, before hooks of the user see the output.
        """
        output = _run(layer, *given, **named)
        inputs = [*given, *named.values()]
        if len(inputs) != 1 or not isinstance(output, Tensor):
            raise TypeError(f"one input for {type(layer).__name__}")  # the general engine takes it
        zero, place = self.zero_beside(layer, output)
        self.use(layer, inputs[0], place)
        return output if place < 0 else output + zero


def _run(layer: nn.Module, *given: Any, **named: Any) -> Any:
    if type(layer) is nn.Linear and len(given) == 1 and not named:
        return linear(*given, layer.weight, layer.bias)
    return type(layer).forward(layer, *given, **named)


Replacement = Callable[..., Any]
"""Runs a layer: called with the layer, the tape, and the arguments of its ``forward``."""


def run_noted(layer: nn.Module, tape: Tape, *given: Any, **named: Any) -> Any:
    """Run a layer with a rule; a `Replacement`."""
    return tape.run(layer, *given, **named)


@contextmanager
def on_tape(tape: Tape, replacements: dict[nn.Module, Replacement]) -> Iterator[None]:
    """Run layers by their ``replacements``; other threads keep torch's own."""
    thread = threading.get_ident()

    def in_place_of(layer: nn.Module, replacement: Replacement) -> Callable[..., Any]:
        def forward(*given: Any, **named: Any) -> Any:
            if threading.get_ident() != thread:
                return type(layer).forward(layer, *given, **named)
            return replacement(layer, tape, *given, **named)

        return forward

    replaced: list[nn.Module] = []
    try:
        with _no_fast_path:
            for layer, replacement in replacements.items():
                replaced.append(layer)
                layer.forward = in_place_of(layer, replacement)
            yield
    finally:
        for layer in replaced:
            vars(layer).pop("forward", None)


class _NoFastPath:
    """Switches off torch's fast path for attention, which would pass over the layers inside."""

    def __init__(self) -> None:
        self._lock, self._within, self._usual = threading.Lock(), 0, True

    def __enter__(self) -> None:
        with self._lock:
            if self._within == 0:
                self._usual = torch.backends.mha.get_fastpath_enabled()
                torch.backends.mha.set_fastpath_enabled(False)
            self._within += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._within -= 1
            if self._within == 0:
                torch.backends.mha.set_fastpath_enabled(self._usual)


_no_fast_path = _NoFastPath()
