"""The ghost engine: one forward and one backward pass, and no example's gradient is stored.

The backward pass stops at the layers' outputs: it gives b_i, not the gradients of weights. From the
layers' inputs a_i and from b_i, `adadps.engine.rules.layers` computes norms and weighted sums.

There are two ways to run the model. A *sequence* of layers that are known to treat each example
separately runs on the whole batch. Any other model runs under torch.func.vmap, which lets each
example see only itself, whatever the model does; weights stay shared, so that the cost is about the
same.

`engine_for` chooses it wherever it gives the right gradients, which is tried on synthetic rows: no
private row enters the choice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.nn import functional

from adadps.data.examples import Examples, Features
from adadps.data.sparse_rows import SparseRows
from adadps.engine.general import GeneralEngine
from adadps.engine.losses import IGNORED, Loss, cross_entropy, treats_examples_alone
from adadps.engine.passes.model_state import evaluating
from adadps.engine.passes.vmap import over_examples
from adadps.engine.rules.gradients import (
    LayeredGradients,
    MaterialisedGradients,
    PerExampleGradients,
    layered,
)
from adadps.engine.rules.layers import (
    LayerCall,
    LayerSequence,
    combined,
    gradients_of,
    require_supported,
)
from adadps.engine.rules.sparse import TokenRows
from adadps.engine.rules.structure import PythonGenerators, owns_trainable, uses_only_through_layers
from adadps.engine.waist import Engine, Units
from adadps.errors import AdadpsError, DataError, ModelError
from adadps.tensors.sums import Params, dense


class GhostEngine:
    """Norms and sums of per-example gradients from layer inputs and output gradients."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        for name, module in model.named_modules():
            require_supported(module, name)
        self.model = model
        self.loss = loss
        self.sequence = LayerSequence.of(model)
        self.modes: tuple[bool, ...] | None = None
        """Whether each module was in training mode when the uses of parameters were recorded."""
        self._names = _names_of_shared(model)

    def per_unit(
        self, params: Params, batch: Examples, units: Units | None, synthetic: int = 0
    ) -> LayeredGradients:
        """Run one forward pass, and one backward pass to the outputs of the layers."""
        calls = self._layer_calls(self._with_shared(params), batch)
        finite = torch.stack([call.finite() for call in calls]).all(0)
        if not bool(finite.all()):
            calls = [call.without(~finite) for call in calls]
        found: dict[str, list[PerExampleGradients]] = {name: [] for name in params}
        for call in calls:
            for name, leaf in gradients_of(call, self._with_shared(params)).items():
                found[self._names.get(name, name)].append(leaf)
        unused = [name for name, held in found.items() if not held]
        if unused:
            raise ModelError(
                f"Expected every trainable parameter to be used by the layer that owns it, found "
                f"'{unused[0]}' unused. Freeze it, or use it through its layer."
            )
        stored = [
            leaf.finite()
            for held in found.values()
            for leaf in held
            if isinstance(leaf, MaterialisedGradients)
        ]
        finite = torch.stack([finite, *stored]).all(0)
        leaves = {
            name: combined([_without(leaf, finite, synthetic) for leaf in held], len(batch))
            for name, held in found.items()
        }
        return layered(leaves, finite, units, synthetic)

    def mean_gradient(self, params: Params, batch: Examples) -> Params:
        """Return the mean gradient, from the same closed forms."""
        weights = torch.full((len(batch),), 1 / len(batch), dtype=torch.float64)
        gradients = self.per_unit(params, batch, None)
        total = gradients.weighted_sum(weights.to(gradients.present.device))
        return {name: dense(value) for name, value in total.items()}

    def outputs(self, params: Params, features: Features) -> Tensor:
        """Return the model's outputs, without gradient."""
        if self.sequence is not None:
            return self.sequence.outputs(self._with_shared(params), features)
        with torch.no_grad():
            rows = self.dense_rows(features, params)
            result: Tensor = functional_call(self.model, params, (rows,))
            return result

    def encoded(self, features: Features) -> Features:
        """Return tokens for bags of words as sparse rows of counts, to be computed only once."""
        return features if self.sequence is None else self.sequence.encoded(features)

    def dense_rows(self, features: Features, params: Params) -> Tensor:
        """Return dense rows, with floating-point values in the precision of the weights."""
        rows = features.to_dense() if isinstance(features, SparseRows) else features
        return rows.to(next(iter(params.values())).dtype) if rows.is_floating_point() else rows

    def most_at_once(self, params: Params) -> int:  # noqa: ARG002
        """Return a constant: inputs and outputs of the layers are small next to gradients."""
        return 2048

    def reads(self, features: Features) -> dict[str, Tensor]:
        """Return the rows of the first layer's table that these features read."""
        if self.sequence is None or self._names:
            return {}
        return self.sequence.table_rows(features)

    def _layer_calls(self, params: Params, batch: Examples) -> list[LayerCall]:
        self._require_unchanged()
        if self.sequence is None:
            return self._calls_by_example(params, batch)

        def of_outputs(outputs: Tensor) -> Tensor:
            return output_gradients(self.loss, outputs, batch.targets)

        return self.sequence.layer_calls(params, batch.features, of_outputs)

    def _require_unchanged(self) -> None:
        """Refuse a model that has changed since it was checked."""
        other_modes = self.modes is not None and self.modes != modes_of(self.model)
        if other_modes or LayerSequence.of(self.model) != self.sequence:
            raise ModelError(
                "Expected the model as it was checked on synthetic rows, found other layers, hooks "
                "or modes (training or evaluation). Change them before the run begins."
            )

    def _calls_by_example(self, params: Params, batch: Examples) -> list[LayerCall]:
        """Record the layers' inputs while each example runs alone under vmap."""
        rows = self.dense_rows(batch.features, params)
        called = self._called_layers(params, rows)

        def single(zeros: list[Tensor], row: Tensor, target: Tensor) -> tuple[Tensor, list[Tensor]]:
            with recorded(self.model, zeros) as inputs:
                outputs = functional_call(self.model, params, (row.unsqueeze(0),))
            return self.loss(outputs, target.unsqueeze(0)).squeeze(), [a for _, a in inputs]

        zeros = [torch.zeros_like(output) for _, _, output in called]
        found: tuple[list[Tensor], list[Tensor]] = over_examples(
            grad(single, has_aux=True), zeros, rows, batch.targets, in_dims=(None, 0, 0)
        )
        gradients, inputs = found
        return [
            LayerCall(layer, prefix, a.squeeze(1), b.squeeze(1))
            for (layer, prefix, _), a, b in zip(called, inputs, gradients, strict=True)
        ]

    def _called_layers(self, params: Params, rows: Tensor) -> list[tuple[nn.Module, str, Tensor]]:
        """The layers that one example calls, in order, with outputs of the right shape.

        They are the same for every row of this shape, so that a row of zeros shows them.
        """
        with torch.no_grad(), recorded(self.model, None) as outputs:
            functional_call(self.model, params, (torch.zeros_like(rows[:1]),))
        prefixes = {module: f"{name}." for name, module in self.model.named_modules()}
        return [(layer, prefixes[layer], output) for layer, output in outputs]

    def _with_shared(self, params: Params) -> Params:
        """``params`` with a second name for each parameter that two layers share."""
        if not self._names:
            return params
        return params | {
            other: params[name] for other, name in self._names.items() if name in params
        }


@contextmanager
def recorded(
    model: nn.Module, zeros: list[Tensor] | None
) -> Iterator[list[tuple[nn.Module, Tensor]]]:
    """Record the inputs of layers with weights, and add one of ``zeros`` to each layer's output.

    Without ``zeros``, record their outputs instead.
    """
    calls: list[tuple[nn.Module, Tensor]] = []

    def note(layer: nn.Module, inputs: tuple[Any, ...], named: Any, output: Tensor) -> Tensor:
        if len(inputs) != 1 or named:
            raise ModelError(
                f"Expected one input for {type(layer).__name__}, found more. The general engine "
                "takes such layers."
            )
        if zeros is None:
            calls.append((layer, output.detach()))
            return output
        calls.append((layer, inputs[0]))
        return output + zeros[len(calls) - 1]

    layers = [module for module in model.modules() if owns_trainable(module)]
    handles = [layer.register_forward_hook(note, with_kwargs=True) for layer in layers]
    bags = [layer for layer in layers if isinstance(layer, nn.EmbeddingBag)]
    for bag in bags:  # vmap has no rule for bags
        bag.forward = partial(_bag, bag)  # type: ignore[method-assign]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()
        for bag in bags:
            del bag.forward


def modes_of(model: nn.Module) -> tuple[bool, ...]:
    """Return whether each module is in training mode."""
    return tuple(module.training for module in model.modules())


def _bag(layer: nn.EmbeddingBag, tokens: Tensor) -> Tensor:
    rows = functional.embedding(tokens, layer.weight)
    if layer.padding_idx is None:
        return rows.mean(-2) if layer.mode == "mean" else rows.sum(-2)
    counted = (tokens != layer.padding_idx).unsqueeze(-1).to(rows.dtype)
    total = (rows * counted).sum(-2)
    return total / counted.sum(-2).clamp_min(1) if layer.mode == "mean" else total


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


_WHOLE_MODEL = (nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention, nn.Transformer)
"""Layers with several inputs or outputs: models with them need the general engine."""


def engine_for(model: nn.Module, loss: Loss, probe: Examples) -> Engine:
    """Return the engine for ``model``; ``probe`` holds synthetic rows of the kind it will see."""
    for name, module in model.named_modules():
        require_supported(module, name)
    if reads_in_sequence(model, probe.features):
        return GhostEngine(model, loss)
    general = GeneralEngine(model, loss)
    if LayerSequence.of(model) is None and _has_separate_layers(model):
        ghost = GhostEngine(model, loss)
        if _goes_through_layers(ghost, probe) and _agree(ghost, general, probe):
            generators = PythonGenerators()
            if _runs(ghost, probe) and not generators.have_drawn():
                ghost.modes = modes_of(model)
                return ghost
    return general


def _runs(ghost: GhostEngine, probe: Examples) -> bool:
    """Does it run in training mode, too? A layer that draws cannot run a second time."""
    try:
        require_gradients(ghost, probe)
    except AdadpsError:
        return False
    return True


def require_gradients(engine: Engine, probe: Examples) -> None:
    """Differentiate one example, so that errors are found before anything is paid."""
    params = _trainable(engine.model)
    batch = probe.take(torch.arange(1)).to(next(iter(params.values())).device)
    engine.per_unit(params, batch, None).norms()


def _trainable(model: nn.Module) -> Params:
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def _goes_through_layers(ghost: GhostEngine, probe: Examples) -> bool:
    """Is every parameter used by the layer that owns it, and nowhere else?"""
    params = _trainable(ghost.model)
    row = ghost.dense_rows(probe.take(torch.arange(1)).features, params)
    try:
        return uses_only_through_layers(ghost.model, params, row)
    except _CANNOT_RUN:
        return False


def reads_in_sequence(model: nn.Module, features: Features) -> bool:
    """Is ``model`` a sequence of supported layers that accepts these features?"""
    sequence = LayerSequence.of(model)
    if sequence is None or not sequence.takes(features):
        return False
    first = sequence.layers[0][1]
    width = features.width if isinstance(features, SparseRows) else features.shape[-1]
    wanted = getattr(first, "in_features", None)
    if isinstance(features, SparseRows) and isinstance(first, nn.EmbeddingBag):
        wanted = first.num_embeddings
        if first.mode != "sum":
            raise ModelError(
                "Expected nn.Linear or nn.EmbeddingBag(mode='sum') for sparse rows, found "
                f"{first}. For a mean, divide the entries of each row by their sum."
            )
    if wanted is not None and width != wanted:
        raise DataError(
            f"Expected rows of {wanted} features for the first layer, found {width}. Build the "
            "layer with the width of the data."
        )
    return True


def _has_separate_layers(model: nn.Module) -> bool:
    """Does every trainable parameter belong to a layer with one input and one output?"""
    for module in model.modules():
        if isinstance(module, _WHOLE_MODEL):
            return False
        if owns_trainable(module) and any(
            owns_trainable(inner) for inner in module.modules() if inner is not module
        ):
            return False
    return True


def _agree(ghost: GhostEngine, general: GeneralEngine, probe: Examples) -> bool:
    """Do both give the same gradients of two synthetic rows, away from the starting point?

    `_goes_through_layers` has checked where parameters are used; this finds a layer that does not
    compute what its rule assumes.
    """
    generator = torch.Generator().manual_seed(0)
    params = {
        name: value + 0.1 * torch.randn(value.shape, generator=generator).to(value)
        for name, value in _trainable(ghost.model).items()
    }
    device = next(iter(params.values())).device
    batch = probe.take(torch.tensor([0, len(probe) - 1])).to(device)
    try:
        with evaluating(ghost.model):  # without dropout, whose draws would differ
            found, expected = (engine.per_unit(params, batch, None) for engine in (ghost, general))
        if not torch.equal(found.present, expected.present):
            return False
        for weights in torch.eye(2, dtype=torch.float64, device=device):
            sums = found.weighted_sum(weights)
            wanted = {n: dense(v) for n, v in expected.weighted_sum(weights).items()}
            largest = torch.stack([value.abs().max() for value in wanted.values()]).max()
            for name, value in wanted.items():
                scale = 1e-3 * value.abs().max() + 1e-6 * largest
                if not bool(((dense(sums[name]) - dense(value)).abs() <= scale).all()):
                    return False
    except _CANNOT_RUN:
        return False
    return True


_CANNOT_RUN = (
    AdadpsError,
    RuntimeError,
    TypeError,
    ValueError,
    LookupError,
    AssertionError,
    AttributeError,
)
"""Errors of a model that the ghost engine cannot run."""
