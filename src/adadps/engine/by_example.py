"""Passes of a model in which each example sees only itself, whatever the model does.

The model runs under torch.func.vmap with weights that all examples share, so that the cost is about
that of an ordinary pass. The backward pass stops at the products of layers on the tape
(`adadps.engine.rules.tape`). Parameters that are used in another way have stored gradients.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from adadps.engine.losses import Loss
from adadps.engine.passes.vmap import over_examples
from adadps.engine.rules.layers import LayerCall, has_rule
from adadps.engine.rules.replacements import replacements_in
from adadps.engine.rules.structure import owns_trainable
from adadps.engine.rules.tape import Owner, Tape, layer_of, on_tape
from adadps.tensors.sums import Params


class PassByExample:
    """Runs one model; parameters in ``stored`` (all of them if None) have stored gradients."""

    def __init__(self, model: nn.Module, stored: Collection[str] | None = None) -> None:
        self.model = model
        self.replacements = replacements_in(model)
        self._prefixes = {
            module: f"{name}." if name else "" for name, module in model.named_modules()
        }
        names = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
        self.stored = frozenset(names.values() if stored is None else stored)
        self._recorded = {
            module
            for module in model.modules()
            for p in module.parameters(recurse=False)
            if id(p) in names and names[id(p)] not in self.stored
        }
        self.hooked = [module for module in self._recorded if has_rule(module)]
        self._plans: dict[Any, tuple[list[tuple[Owner, int]], list[tuple[int, ...]], int]] = {}

    def candidates(self) -> list[nn.Module]:
        """Return the layers that could report to a tape."""
        return [m for m in self.model.modules() if owns_trainable(m) and has_rule(m)]

    def gradients(
        self, loss: Loss, params: Params, rows: Tensor, targets: Tensor
    ) -> tuple[list[LayerCall], Params]:
        """Return the calls of all layers on the tape, and the stored gradients."""
        uses, shapes, _ = self.plan(params, rows)
        own = {name: params[name] for name in self.stored if name in params}

        def single(
            zeros: list[Tensor], stored: Params, row: Tensor, target: Tensor
        ) -> tuple[Tensor, list[Tensor]]:
            tape = Tape(self._recorded, zeros)
            with on_tape(tape, self.hooked, self.replacements):
                outputs = functional_call(self.model, params | stored, (row.unsqueeze(0),))
            value = loss(outputs, target.unsqueeze(0)).squeeze()
            return value, [use.inputs for use in tape.uses]

        dtype = next(iter(params.values())).dtype
        zeros = [rows.new_zeros(shape, dtype=dtype) for shape in shapes]
        (of_zeros, stored), inputs = over_examples(
            grad(single, argnums=(0, 1), has_aux=True),
            zeros, own, rows, targets, in_dims=(None, None, 0, 0),
        )  # fmt: skip
        calls = [
            LayerCall(owner, self._prefixes[layer_of(owner)], a, of_zeros[place])
            for (owner, place), a in zip(uses, inputs, strict=True)
        ]
        return calls, stored

    def plan(
        self, params: Params, rows: Tensor
    ) -> tuple[list[tuple[Owner, int]], list[tuple[int, ...]], int]:
        """Return the uses in one pass, the shapes of the zeros, and how many numbers they hold.

        They are the same for every row of this shape, so that a row of zeros shows them, once.
        """
        key = (rows.shape[1:], rows.dtype, modes_of(self.model))
        if key not in self._plans:
            tape = Tape(self._recorded)
            on_one = on_tape(tape, self.hooked, self.replacements)
            with torch.no_grad(), on_one:
                functional_call(self.model, params, (torch.zeros_like(rows[:1]),))
            numbers = sum(t.numel() for t in (*tape.zeros, *(use.inputs for use in tape.uses)))
            uses = [(use.owner, use.place) for use in tape.uses]
            self._plans[key] = uses, [tuple(zero.shape) for zero in tape.zeros], numbers
        return self._plans[key]


def modes_of(model: nn.Module) -> tuple[bool, ...]:
    """Return whether each module is in training mode."""
    return tuple(module.training for module in model.modules())
