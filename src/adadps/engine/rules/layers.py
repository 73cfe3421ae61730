"""The rule of each kind of layer: its inputs and output gradients give its parameters' gradients.

To add a rule for a new layer, write a function of a `LayerCall` that returns one
`PerExampleGradients` per parameter, and enter it in `_RULES`. Layers without a rule are run by vmap
(`_by_vmap`), which stores their gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp
from torch.nn import functional

from adadps.data.examples import Features
from adadps.data.sparse_rows import SparseRows
from adadps.engine.passes.vmap import over_examples
from adadps.engine.rules.gradients import (
    MaterialisedGradients,
    PerExampleGradients,
    TiedGradients,
    finite_rows,
)
from adadps.engine.rules.outer import Outer, OverTime
from adadps.engine.rules.sparse import SparseOuter, TokenRows, as_bags
from adadps.errors import ModelError
from adadps.tensors.sums import Params


@dataclass(frozen=True)
class LayerCall:
    """One call of one layer: its inputs, and the gradients of its outputs, by example."""

    layer: nn.Module
    prefix: str
    inputs: Features
    output_gradients: Tensor

    def finite(self) -> Tensor:
        """Mark the examples whose inputs and output gradients are all finite."""
        b = finite_rows(self.output_gradients)
        if isinstance(self.inputs, SparseRows):
            entries = finite_rows(self.inputs.values)
            if bool(entries.all()):
                return b
            return b & (self.inputs.row_sums((~entries).double()) == 0)
        return b & finite_rows(self.inputs)

    def without(self, examples: Tensor) -> LayerCall:
        """Return the call with zeros for ``examples``: a weight of 0 fails, as 0 · NaN is NaN."""
        b = self.output_gradients
        zeroed = torch.where(examples.view(-1, *[1] * (b.ndim - 1)), 0, b)
        return LayerCall(self.layer, self.prefix, _zeroed(self.inputs, examples), zeroed)


Gradients = dict[str, PerExampleGradients]


def gradients_of(call: LayerCall, params: Params) -> Gradients:
    """Return the gradients of the layer's own trainable parameters, by name in the model."""
    rule = _RULES.get(type(call.layer), _by_vmap)
    return {name: leaf for name, leaf in rule(call, params).items() if name in params}


def combined(uses: list[PerExampleGradients], size: int) -> PerExampleGradients:
    """Combine the uses of a tied parameter: along time if possible, else one by one."""
    if len(uses) == 1:
        return uses[0]
    timed = [_over_time(use) for use in uses]
    along_time = [use for use in timed if isinstance(use, OverTime)]
    if len(along_time) == len(uses):
        inputs = torch.cat([use.inputs for use in along_time], 1)
        return OverTime(inputs, torch.cat([use.output_gradients for use in along_time], 1))
    of_words = [use for use in uses if isinstance(use, TokenRows)]
    if len(of_words) == len(uses):
        tokens = torch.cat([use.tokens for use in of_words], 1)
        rows = torch.cat([use.output_gradients for use in of_words], 1)
        return TokenRows(tokens, rows, of_words[0].words, of_words[0].wordless)
    return TiedGradients(tuple(uses), size)


def _over_time(use: PerExampleGradients) -> PerExampleGradients:
    if isinstance(use, Outer):
        return OverTime(use.inputs.unsqueeze(1), use.output_gradients.unsqueeze(1))
    return use


def require_supported(layer: nn.Module, name: str) -> None:
    """Refuse options of a layer under which an example's gradient depends on others."""
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        wrong = [
            option
            for option, used in (
                ("max_norm", layer.max_norm is not None),
                ("scale_grad_by_freq", layer.scale_grad_by_freq),
                ('mode="max"', getattr(layer, "mode", "") == "max"),
            )
            if used
        ]
        if wrong:
            raise ModelError(
                f"Expected a table of words whose rows are read unchanged, found {wrong[0]} at "
                f"'{name}', which makes one example's gradient depend on others or changes the "
                "weights when they are read. Remove it (use mode sum or mean for bags)."
            )


def _linear(call: LayerCall, params: Params) -> Gradients:  # noqa: ARG001
    a, b = call.inputs, call.output_gradients
    weight, bias = f"{call.prefix}weight", f"{call.prefix}bias"
    if isinstance(a, SparseRows):
        return {weight: SparseOuter(a, b, axis=1), bias: MaterialisedGradients(b)}
    if a.ndim == 2:
        return {weight: Outer(a, b), bias: MaterialisedGradients(b)}
    a, b = a.flatten(1, -2), b.flatten(1, -2)
    return {weight: OverTime(a, b), bias: MaterialisedGradients(b.double().sum(1))}


def _embedding(call: LayerCall, params: Params) -> Gradients:  # noqa: ARG001
    layer, tokens = call.layer, call.inputs
    assert isinstance(layer, nn.Embedding)
    assert isinstance(tokens, Tensor)
    flat = tokens.flatten(1) if tokens.ndim > 1 else tokens.unsqueeze(1)
    b = call.output_gradients.reshape(*flat.shape, layer.embedding_dim)
    if layer.padding_idx is not None:
        b = torch.where((flat == layer.padding_idx).unsqueeze(2), 0, b)
    return {f"{call.prefix}weight": TokenRows(flat, b, layer.num_embeddings)}


def _embedding_bag(call: LayerCall, params: Params) -> Gradients:  # noqa: ARG001
    layer = call.layer
    assert isinstance(layer, nn.EmbeddingBag)
    bags = call.inputs if isinstance(call.inputs, SparseRows) else as_bags(call.inputs, layer)
    return {f"{call.prefix}weight": SparseOuter(bags, call.output_gradients, axis=0)}


def _normalisation(call: LayerCall, params: Params) -> Gradients:  # noqa: ARG001
    """b ∘ x̂ and b, summed over all axes but those of the parameter."""
    layer, a, b = call.layer, call.inputs, call.output_gradients.double()
    assert isinstance(a, Tensor)
    if isinstance(layer, nn.GroupNorm):
        plain = functional.group_norm(a, layer.num_groups, eps=layer.eps).double()
        scaled, shifted = ((x.flatten(2).sum(2) if x.ndim > 2 else x) for x in (b * plain, b))
    else:
        assert isinstance(layer, nn.LayerNorm | nn.RMSNorm)
        shape = layer.normalized_shape
        if isinstance(layer, nn.LayerNorm):
            plain = functional.layer_norm(a, shape, eps=layer.eps).double()
        else:
            plain = functional.rms_norm(a, list(shape), eps=layer.eps).double()
        axes = list(range(1, a.ndim - len(shape)))
        scaled, shifted = (x.sum(axes) if axes else x for x in (b * plain, b))
    return {
        f"{call.prefix}weight": MaterialisedGradients(scaled),
        f"{call.prefix}bias": MaterialisedGradients(shifted),
    }


def _by_vmap(call: LayerCall, params: Params) -> Gradients:
    """Any other layer: run its own backward pass, example by example."""
    layer, a = call.layer, call.inputs
    assert isinstance(a, Tensor)
    own = {
        name: params[f"{call.prefix}{name}"]
        for name, _ in layer.named_parameters()
        if f"{call.prefix}{name}" in params
    }

    def single(row: Tensor, gradient: Tensor) -> Params:
        def run(at: Params) -> Tensor:
            output: Tensor = functional_call(layer, at, (row.unsqueeze(0),))
            return output

        backward: Callable[[Tensor], tuple[Params]] = vjp(run, own)[1]
        return backward(gradient.unsqueeze(0))[0]

    found: Params = over_examples(single, a, call.output_gradients, randomness="error")
    return {f"{call.prefix}{name}": MaterialisedGradients(value) for name, value in found.items()}


def _zeroed(inputs: Features, examples: Tensor) -> Features:
    if isinstance(inputs, SparseRows):
        return inputs.with_values(torch.where(examples[inputs.rows], 0, inputs.values))
    if not inputs.is_floating_point():
        return inputs
    return torch.where(examples.view(-1, *[1] * (inputs.ndim - 1)), 0, inputs)


_RULES: dict[type[nn.Module], Callable[[LayerCall, Params], Gradients]] = {
    nn.Linear: _linear,
    nn.Embedding: _embedding,
    nn.EmbeddingBag: _embedding_bag,
    nn.LayerNorm: _normalisation,
    nn.GroupNorm: _normalisation,
    nn.RMSNorm: _normalisation,
}
