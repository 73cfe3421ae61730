"""How each kind of layer turns its inputs and output gradients into gradients of its parameters."""

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
class Use:
    """One call of one layer: what went in, and the gradient of what came out, by example."""

    layer: nn.Module
    prefix: str
    inputs: Features
    output_gradients: Tensor

    def finite(self) -> Tensor:
        """The examples for which all of it is finite."""
        b = finite_rows(self.output_gradients)
        if isinstance(self.inputs, SparseRows):
            entries = finite_rows(self.inputs.values)
            if bool(entries.all()):
                return b
            return b & (self.inputs.row_sums((~entries).double()) == 0)
        return b & finite_rows(self.inputs)

    def without(self, examples: Tensor) -> Use:
        """The same with zeros for ``examples``: 0 · NaN is NaN."""
        b = self.output_gradients
        zeroed = torch.where(examples.view(-1, *[1] * (b.ndim - 1)), 0, b)
        return Use(self.layer, self.prefix, _zeroed(self.inputs, examples), zeroed)


Gradients = dict[str, PerExampleGradients]


def gradients_of(use: Use, params: Params) -> Gradients:
    """Gradients of the layer's own trainable parameters, by their names in the model."""
    rule = _RULES.get(type(use.layer), _by_vmap)
    return {name: leaf for name, leaf in rule(use, params).items() if name in params}


def joined(uses: list[PerExampleGradients], size: int) -> PerExampleGradients:
    """The gradient of a parameter with several uses: along time if it can be, else one by one."""
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
    """Refuse options of a layer under which examples have no gradient of their own."""
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
                f"Expected a table of words whose rows are read as they are, found {wrong[0]} at "
                f"'{name}', which makes one example's gradient depend on others or change the "
                "weights as they are read. Leave it out (mode sum or mean for bags)."
            )


def _linear(use: Use, params: Params) -> Gradients:  # noqa: ARG001
    a, b = use.inputs, use.output_gradients
    weight, bias = f"{use.prefix}weight", f"{use.prefix}bias"
    if isinstance(a, SparseRows):
        return {weight: SparseOuter(a, b, axis=1), bias: MaterialisedGradients(b)}
    if a.ndim == 2:
        return {weight: Outer(a, b), bias: MaterialisedGradients(b)}
    a, b = a.flatten(1, -2), b.flatten(1, -2)
    return {weight: OverTime(a, b), bias: MaterialisedGradients(b.double().sum(1))}


def _embedding(use: Use, params: Params) -> Gradients:  # noqa: ARG001
    layer, tokens = use.layer, use.inputs
    assert isinstance(layer, nn.Embedding)
    assert isinstance(tokens, Tensor)
    flat = tokens.flatten(1) if tokens.ndim > 1 else tokens.unsqueeze(1)
    b = use.output_gradients.reshape(*flat.shape, layer.embedding_dim)
    if layer.padding_idx is not None:
        b = torch.where((flat == layer.padding_idx).unsqueeze(2), 0, b)
    return {f"{use.prefix}weight": TokenRows(flat, b, layer.num_embeddings)}


def _embedding_bag(use: Use, params: Params) -> Gradients:  # noqa: ARG001
    layer = use.layer
    assert isinstance(layer, nn.EmbeddingBag)
    bags = use.inputs if isinstance(use.inputs, SparseRows) else as_bags(use.inputs, layer)
    return {f"{use.prefix}weight": SparseOuter(bags, use.output_gradients, axis=0)}


def _normalisation(use: Use, params: Params) -> Gradients:  # noqa: ARG001
    """b ∘ x̂ and b, added up over all axes but those of the parameter."""
    layer, a, b = use.layer, use.inputs, use.output_gradients.double()
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
        f"{use.prefix}weight": MaterialisedGradients(scaled),
        f"{use.prefix}bias": MaterialisedGradients(shifted),
    }


def _by_vmap(use: Use, params: Params) -> Gradients:
    """Any other layer: its own backward pass, example by example."""
    layer, a = use.layer, use.inputs
    assert isinstance(a, Tensor)
    own = {
        name: params[f"{use.prefix}{name}"]
        for name, _ in layer.named_parameters()
        if f"{use.prefix}{name}" in params
    }

    def single(row: Tensor, gradient: Tensor) -> Params:
        def run(at: Params) -> Tensor:
            output: Tensor = functional_call(layer, at, (row.unsqueeze(0),))
            return output

        backward: Callable[[Tensor], tuple[Params]] = vjp(run, own)[1]
        return backward(gradient.unsqueeze(0))[0]

    found: Params = over_examples(single, a, use.output_gradients, randomness="error")
    return {f"{use.prefix}{name}": MaterialisedGradients(value) for name, value in found.items()}


def _zeroed(inputs: Features, examples: Tensor) -> Features:
    if isinstance(inputs, SparseRows):
        return inputs.with_values(torch.where(examples[inputs.rows], 0, inputs.values))
    if not inputs.is_floating_point():
        return inputs
    return torch.where(examples.view(-1, *[1] * (inputs.ndim - 1)), 0, inputs)


_RULES: dict[type[nn.Module], Callable[[Use, Params], Gradients]] = {
    nn.Linear: _linear,
    nn.Embedding: _embedding,
    nn.EmbeddingBag: _embedding_bag,
    nn.LayerNorm: _normalisation,
    nn.GroupNorm: _normalisation,
    nn.RMSNorm: _normalisation,
}
