"""The ghost engine: one forward and one backward pass, and hardly any gradient is stored.

The backward pass stops at the layers' outputs: it gives b_i, not the gradients of weights. From the
layers' inputs a_i and from b_i, `adadps.engine.rules.layers` computes norms and weighted sums.

There are two ways to run the model. A *sequence* of layers that are known to treat each example
separately runs on the whole batch. Any other model runs example by example
(`adadps.engine.by_example`), all examples at once; there, parameters that no rule covers have
stored gradients.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from adadps.data.examples import Examples
from adadps.data.fields import Arguments, Features, Fields, Rows, arguments
from adadps.engine.by_example import PassByExample, modes_of
from adadps.engine.losses import IGNORED, Loss, cross_entropy, treats_examples_alone
from adadps.engine.passes.vmap import over_examples
from adadps.engine.rules.built import BuiltGradients
from adadps.engine.rules.gradients import MaterialisedGradients, PerExampleGradients
from adadps.engine.rules.layered import LayeredGradients, layered
from adadps.engine.rules.layers import LayerCall, combined, gradients_of, require_supported
from adadps.engine.rules.sequence import LayerSequence
from adadps.engine.rules.sparse import TokenRows
from adadps.engine.waist import Units
from adadps.errors import ModelError
from adadps.tensors.sums import Params, dense

HELD_BYTES = 2**29
"""Memory for a pass over one physical batch, roughly."""

_COPIES = 6
"""A pass holds about this many times what layers write: inputs, copies, gradients, float64."""

MOST_ROWS = 2048


class GhostEngine:
    """Norms and sums of per-example gradients from layer inputs and output gradients."""

    def __init__(self, model: nn.Module, loss: Loss, stored: Collection[str] = ()) -> None:
        for name, module in model.named_modules():
            require_supported(module, name)
        self.model = model
        self.loss = loss
        self.sequence = LayerSequence.of(model)
        self._stored = stored
        self.modes: tuple[bool, ...] | None = None
        """Whether each module was in training mode when the uses of parameters were recorded."""
        self.numbers = 0
        """How many numbers the layers write for one example; 0 if that is unknown."""
        self._names = _names_of_shared(model)

    @cached_property
    def by_example(self) -> PassByExample:
        """Return what runs a model that is not a sequence."""
        return PassByExample(self.model, self._stored)

    @property
    def stored(self) -> frozenset[str]:
        """Return the names of parameters whose gradients are stored for every example."""
        return self.by_example.stored if self.sequence is None else frozenset()

    def per_unit(
        self, params: Params, batch: Examples, units: Units | None, synthetic: int = 0
    ) -> LayeredGradients:
        """Run one forward pass, and one backward pass to the outputs of the layers."""
        calls, stored = self._passes(self._with_shared(params), batch)
        finite = _all([call.finite() for call in calls], batch)
        if not bool(finite.all()):
            calls = [call.without(~finite) for call in calls]
        found: dict[str, list[PerExampleGradients]] = {name: [] for name in params}
        for call in calls:
            for name, leaf in gradients_of(call, self._with_shared(params)).items():
                held = found[self._names.get(name, name)]
                if self._names.get(name, name) not in stored:
                    held.append(leaf)
        for name, gradient in stored.items():
            found[name].append(MaterialisedGradients(gradient))
        unused = [name for name, held in found.items() if not held]
        if unused:
            raise ModelError(
                f"Expected every trainable parameter to be used by the layer that owns it, found "
                f"'{unused[0]}' unused. Freeze it, or use it through its layer."
            )
        leaves = {name: combined(held, len(batch)) for name, held in found.items()}
        measured = [
            leaf.finite()
            for leaf in leaves.values()
            if isinstance(leaf, MaterialisedGradients | BuiltGradients)
        ]
        finite = _all([finite, *measured], batch)
        leaves = {name: _without(leaf, finite, synthetic) for name, leaf in leaves.items()}
        batched = layered(leaves, finite, units, synthetic)
        return replace(batched, shared=frozenset(stored) | frozenset(self._names.values()))

    def mean_gradient(self, params: Params, batch: Examples) -> Params:
        """Return the mean gradient: of a sequence from the same closed forms, else by torch."""
        if self.sequence is None:
            given, named = self.given(batch.features, params)

            def mean_loss(at: Params) -> Tensor:
                outputs = functional_call(self.model, at, given, named)
                return self.loss(outputs, batch.targets).mean()

            found: Params = grad(mean_loss)(params)
            return found
        weights = torch.full((len(batch),), 1 / len(batch), dtype=torch.float64)
        gradients = self.per_unit(params, batch, None)
        total = gradients.weighted_sum(weights.to(gradients.present.device))
        return {name: dense(value) for name, value in total.items()}

    def outputs(self, params: Params, features: Features) -> Any:
        """Return the model's outputs, without gradient."""
        if self.sequence is not None:
            return self.sequence.outputs(self._with_shared(params), _rows(features))
        with torch.no_grad():
            return functional_call(self.model, params, *self.given(features, params))

    def encoded(self, features: Features) -> Features:
        """Return tokens for bags of words as sparse rows of counts, to be computed only once."""
        return features if self.sequence is None else self.sequence.encoded(_rows(features))

    def given(self, features: Features, params: Params) -> Arguments:
        """Return what a model is called with that is not a sequence."""
        return arguments(features, next(iter(params.values())).dtype)

    def most_at_once(self, params: Params) -> int:
        """Return how many examples fit in about `HELD_BYTES`, at most `MOST_ROWS`."""
        size = next(iter(params.values())).element_size()
        stored = sum(params[name].numel() for name in self.stored if name in params)
        numbers = _COPIES * self.numbers + 4 * stored
        return max(1, min(MOST_ROWS, HELD_BYTES // (size * max(1, numbers))))

    def measure(self, params: Params, row: Features) -> None:
        """Find out how many numbers the layers write for one example."""
        if self.sequence is not None:
            self.numbers = self.sequence.numbers(self._with_shared(params), _rows(row))
        else:
            plan = self.by_example.plan(params, self.given(row, params))
            self.numbers = plan.numbers // 2  # of these, about half are inputs

    def reads(self, features: Features) -> dict[str, Tensor]:
        """Return the rows of the first layer's table that these features read.

        A model that is not a sequence might read its tables in other ways, too.
        """
        if self.sequence is None or self._names:
            return {}
        return self.sequence.table_rows(_rows(features))

    def _passes(self, params: Params, batch: Examples) -> tuple[list[LayerCall], Params]:
        """The calls of all layers, and stored gradients."""
        self._require_unchanged()
        if self.sequence is None:
            rows = self.given(batch.features, params)
            return self.by_example.gradients(self.loss, params, rows, batch.targets)

        def of_outputs(outputs: Tensor) -> Tensor:
            return output_gradients(self.loss, outputs, batch.targets)

        return self.sequence.layer_calls(params, _rows(batch.features), of_outputs), {}

    def _require_unchanged(self) -> None:
        """Refuse a model that has changed since it was checked."""
        other_modes = self.modes is not None and self.modes != modes_of(self.model)
        if other_modes or LayerSequence.of(self.model) != self.sequence:
            raise ModelError(
                "Expected the model as it was checked on synthetic rows, found other layers, hooks "
                "or modes (training or evaluation). Change them before the run begins."
            )

    def _with_shared(self, params: Params) -> Params:
        """``params`` with a second name for each parameter that two layers share."""
        if not self._names:
            return params
        return params | {
            other: params[name] for other, name in self._names.items() if name in params
        }


def _rows(features: Features) -> Rows:
    """What a sequence reads; one with several inputs was not chosen to run as a sequence."""
    assert not isinstance(features, Fields)
    return features


def _all(marks: list[Tensor], batch: Examples) -> Tensor:
    if batch.absent is not None:
        marks = [*marks, ~batch.absent]
    if not marks:
        return torch.ones(len(batch), dtype=torch.bool, device=batch.targets.device)
    return torch.stack(marks).all(0)


def _names_of_shared(model: nn.Module) -> dict[str, str]:
    """The second names of shared parameters, each with the first name of the parameter."""
    first: dict[int, str] = {}
    others: dict[str, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in first:
            others[name] = first[id(parameter)]
        else:
            first[id(parameter)] = name
    return others


def _without(leaf: PerExampleGradients, finite: Tensor, synthetic: int) -> PerExampleGradients:
    """The gradients without synthetic words, and with zeros for examples that are not finite.

    The words of synthetic rows are left out, so that they touch no row of a table. A stored
    gradient can overflow though inputs and output gradients are finite.
    """
    if isinstance(leaf, TokenRows) and synthetic:
        return leaf.without_last(synthetic)
    return (
        leaf.where(finite)
        if isinstance(leaf, MaterialisedGradients) and not bool(finite.all())
        else leaf
    )


def output_gradients(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return ∂ loss_i / ∂ output_i for every example.

    A loss that might mix examples runs under vmap, where each example sees only itself.
    """
    if loss is cross_entropy and outputs.ndim == 2 and targets.dtype == torch.int64:
        return gradient_of_cross_entropy(outputs.detach(), targets)
    if treats_examples_alone(loss):
        held = outputs.detach().requires_grad_()
        return torch.autograd.grad(loss(held, targets).sum(), held)[0]

    def single(output: Tensor, target: Tensor) -> Tensor:
        return loss(output.unsqueeze(0), target.unsqueeze(0)).squeeze()

    gradients: Tensor = over_examples(grad(single), outputs, targets)
    return gradients


def gradient_of_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """softmax(outputs) - 1 at the target; zero where the target is ignored.

    >>> import torch
    >>> gradient_of_cross_entropy(torch.zeros(2, 2), torch.tensor([1, -100]))
    tensor([[ 0.5000, -0.5000],
            [ 0.0000,  0.0000]])
    """
    gradient = torch.softmax(outputs, 1)
    ignored = (targets == IGNORED).unsqueeze(1)
    places = targets.unsqueeze(1).masked_fill(ignored, 0)
    gradient.scatter_add_(1, places, gradient.new_full((1, 1), -1.0).expand(len(targets), 1))
    return gradient.masked_fill_(ignored, 0)
