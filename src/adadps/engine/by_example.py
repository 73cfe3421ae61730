"""Passes of a model in which each example sees only itself, whatever the model does.

The model runs under torch.func.vmap with weights that all examples share, so that the cost is about
that of an ordinary pass. The backward pass stops at the products of layers on the tape
(`adadps.engine.rules.tape`). Parameters that are used in another way have stored gradients.

What vmap has computed is a batch of values, each of one example. Where all of its operations are
known (`adadps.engine.rules.backward`), their derivatives are taken of the whole batch at once, in
torch's usual backward pass. Where anything else could act on the way back (hooks, functions with a
backward pass of their own), and for stored gradients, vmap runs the backward pass as well.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.func import functional_call, grad

from adadps.data.fields import Arguments
from adadps.engine.losses import Loss
from adadps.engine.passes.vmap import over_examples
from adadps.engine.rules.backward import keeps_examples_apart
from adadps.engine.rules.fused_attention import AttendingTogether
from adadps.engine.rules.layers import LayerCall, has_rule
from adadps.engine.rules.replacements import replacements_in
from adadps.engine.rules.tape import Owner, Tape, layer_of, on_tape, run_noted
from adadps.errors import ModelError
from adadps.tensors.sums import Params

Single = Callable[..., tuple[Tensor, list[Tensor]]]
"""From zeros, a row and its target to its loss, and the inputs of all layers."""


@dataclass(frozen=True)
class Plan:
    """What every pass over rows of one shape does.

    The uses of parameters with the places of their zeros, the shapes of the zeros, and how many
    numbers all of them hold.
    """

    uses: list[tuple[Owner, int]]
    shapes: list[tuple[int, ...]]
    dtypes: list[torch.dtype]
    numbers: int

    @property
    def is_exact(self) -> bool:
        """Do all layers write in full precision? Under autocast some do not."""
        return all(dtype in (torch.float32, torch.float64) for dtype in self.dtypes)


class PassByExample:
    """Runs one model; parameters in ``stored`` (all of them if None) have stored gradients."""

    def __init__(self, model: nn.Module, stored: Collection[str] | None = None) -> None:
        self.model = model
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
        noted = [layer for layer in model.modules() if has_rule(layer) and self._is_run(layer)]
        self.replacements = dict.fromkeys(noted, run_noted) | replacements_in(model)
        self._plans: dict[Any, Plan] = {}
        self._goes_back_together = not self.stored
        self._tried: Arguments | None = None

    def _is_run(self, layer: nn.Module) -> bool:
        """Does it run by a function of ours? Frozen linear layers do, for their faster products."""
        frozen = not any(p.requires_grad for p in layer.parameters(recurse=False))
        return layer in self._recorded or (type(layer) is nn.Linear and frozen)

    def gradients(
        self, loss: Loss, params: Params, rows: Arguments, targets: Tensor
    ) -> tuple[list[LayerCall], Params]:
        """Return the calls of all layers on the tape, and the stored gradients."""
        plan = self._plan_for(params, rows)
        own = {name: params[name] for name in self.stored if name in params}
        watched = AttendingTogether()

        def single(
            zeros: list[Tensor], stored: Params, row: Arguments, target: Tensor
        ) -> tuple[Tensor, list[Tensor]]:
            tape = Tape(self._recorded, zeros)
            with watched:
                with on_tape(tape, self.replacements):
                    given, named = _each(row, lambda part: part.unsqueeze(0))
                    outputs = functional_call(self.model, params | stored, given, named)
                value = loss(outputs, target.unsqueeze(0)).squeeze()
            if [(use.owner, use.place) for use in tape.uses] != plan.uses:
                raise ModelError(
                    "Expected a model that runs the same layers for every row and in every step, "
                    "found others. Do not change attributes of the model during a run."
                )
            return value, [use.inputs for use in tape.uses]

        forms = zip(plan.shapes, plan.dtypes, strict=True)
        zeros = [targets.new_zeros(shape, dtype=dtype) for shape, dtype in forms]
        stored: Params = {}
        # A model may write into its inputs: every pass has a copy.
        together = self._together(single, zeros, _each(rows, Tensor.clone), targets, watched)
        if together is None:
            (of_zeros, stored), inputs = over_examples(
                grad(single, argnums=(0, 1), has_aux=True),
                zeros, own, _each(rows, Tensor.clone), targets, in_dims=(None, None, 0, 0),
            )  # fmt: skip
        else:
            of_zeros, inputs = together
        # In one order in memory: sums over other strides would add up in another order.
        dtype = next(iter(params.values())).dtype
        slopes = [_in_full(gradient, dtype) for gradient in of_zeros]
        calls = [
            LayerCall(owner, self._prefixes[layer_of(owner)], _in_full(a, dtype), slopes[place])
            for (owner, place), a in zip(plan.uses, inputs, strict=True)
        ]
        return calls, {name: gradient.contiguous() for name, gradient in stored.items()}

    def _together(
        self, single: Single, zeros: list[Tensor], rows: Arguments, targets: Tensor,
        watched: AttendingTogether,
    ) -> tuple[Sequence[Tensor], list[Tensor]] | None:  # fmt: skip
        """The gradients of the zeros by one backward pass of the batch, and all inputs.

        None if that pass might do anything but differentiate operations that are known.
        """
        if not (self._goes_back_together and zeros):
            return None
        try:
            own = [zero.expand(len(targets), *zero.shape).requires_grad_() for zero in zeros]
            with torch.enable_grad(), disable_saved_tensors_hooks("they would see all examples"):
                losses, inputs = over_examples(
                    single, own, {}, rows, targets, in_dims=(0, None, 0, 0)
                )
            if watched.watches or not keeps_examples_apart(losses):
                self._goes_back_together = False
                return None
            found = torch.autograd.grad(losses.sum(), own, materialize_grads=True)
        except (ModelError, RuntimeError):  # if it is not for this, it is raised again
            self._goes_back_together = False
            return None
        return found, [value.detach() for value in inputs]

    @property
    def is_exact(self) -> bool:
        """Have all layers written in full precision so far?"""
        return all(plan.is_exact for plan in self._plans.values())

    def _plan_for(self, params: Params, rows: Arguments) -> Plan:
        """The plan for rows of this shape, found on the synthetic row that was tried, or zeros."""
        row = _each(rows, lambda part: torch.zeros_like(part[:1]))
        tried = self._tried
        return self.plan(params, row if tried is None or _form(tried) != _form(row) else tried)

    def plan(self, params: Params, row: Arguments) -> Plan:
        """Return what a pass does; one synthetic row shows it for every row of its shape."""
        key = (_form(row), modes_of(self.model))
        self._tried = self._tried or row
        if not self._recorded:
            return Plan([], [], [], 0)
        if key not in self._plans:
            tape = Tape(self._recorded)
            with torch.no_grad(), on_tape(tape, self.replacements):
                functional_call(self.model, params, *_each(row, Tensor.clone))
            held = [*tape.zeros, *(use.inputs for use in tape.uses)]
            self._plans[key] = Plan(
                [(use.owner, use.place) for use in tape.uses],
                [tuple(zero.shape) for zero in tape.zeros],
                [zero.dtype for zero in tape.zeros],
                sum(tensor.numel() for tensor in held),
            )
        return self._plans[key]


def _in_full(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The same values in the precision of the weights: autocast gives some in bfloat16."""
    if values.is_floating_point() and values.dtype != dtype:
        values = values.to(dtype)
    return values.contiguous()


def _each(rows: Arguments, change: Callable[[Tensor], Tensor]) -> Arguments:
    given, named = rows
    return tuple(map(change, given)), {name: change(value) for name, value in named.items()}


def _form(row: Arguments) -> tuple[Any, ...]:
    given, named = row
    parts = [*enumerate(given), *named.items()]
    return tuple((name, part.shape[1:], part.dtype) for name, part in parts)


def modes_of(model: nn.Module) -> tuple[bool, ...]:
    """Return whether each module is in training mode."""
    return tuple(module.training for module in model.modules())
