"""The rule of each kind of layer: its inputs and output gradients give its parameters' gradients.

To add a rule for a new layer, write a function of a `LayerCall` that returns one
`PerExampleGradients` per parameter, and enter it in `_RULES`. Parameters of layers without a rule
have stored gradients, which torch.func.vmap computes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from adadps.data.fields import Rows
from adadps.data.sparse_rows import SparseRows
from adadps.engine.rules.built import BuiltGradients
from adadps.engine.rules.convolution import Convolution, of_bias, of_filters
from adadps.engine.rules.gradients import (
    MaterialisedGradients,
    PerExampleGradients,
    TiedGradients,
    finite_rows,
)
from adadps.engine.rules.outer import Outer, OverTime, in_cheapest_form
from adadps.engine.rules.sparse import SparseOuter, TokenRows, as_bags
from adadps.engine.rules.tape import Owner, Part
from adadps.engine.rules.tied import TiedTable
from adadps.errors import ModelError
from adadps.tensors.sums import Params


@dataclass(frozen=True)
class LayerCall:
    """One use of a layer's parameters: inputs, and gradients of outputs, by example.

    Tensors are (examples × inner batch × ...): a model may fold other axes into the batch that it
    gives to a layer, and otherwise the inner batch is 1.
    """

    owner: Owner
    prefix: str
    inputs: Rows
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
        return LayerCall(self.owner, self.prefix, _zeroed(self.inputs, examples), zeroed)


Gradients = dict[str, PerExampleGradients]


def has_rule(layer: nn.Module) -> bool:
    """Is there a rule for this layer, and is it the layer that torch defines?"""
    if "forward" in vars(layer):
        return False
    return is_transposed(layer) or _FORWARDS.get(type(layer)) is type(layer).forward


def is_transposed(layer: object) -> bool:
    """Is it the linear layer of GPT-2 in transformers, whose weight is (inputs × outputs)?"""
    kind = type(layer)
    of_class = (kind.__module__, kind.__qualname__) == (_OF_TRANSFORMERS, "Conv1D")
    return of_class and getattr(kind.forward, "__module__", "") == _OF_TRANSFORMERS  # type: ignore[attr-defined]


_OF_TRANSFORMERS = "transformers.pytorch_utils"


def gradients_of(call: LayerCall, params: Params) -> Gradients:
    """Return the gradients of the layer's own trainable parameters, by name in the model."""
    rule = _transposed if is_transposed(call.owner) else _RULES[type(call.owner)]
    found = rule(call, params)
    return {name: leaf for name, leaf in found.items() if name in params}


def combined(uses: list[PerExampleGradients], size: int) -> PerExampleGradients:
    """Combine the uses of a parameter: into one sum where forms allow it, else one by one."""
    if len(uses) == 1 and not isinstance(uses[0], OverTime):
        return uses[0]
    if along_time := _all_of(OverTime, [_over_time(use) for use in uses]):
        return in_cheapest_form(_side_by_side(along_time))
    if of_words := _all_of(TokenRows, uses):
        tokens = torch.cat([use.tokens for use in of_words], 1)
        rows = torch.cat([use.output_gradients for use in of_words], 1)
        return TokenRows(tokens, rows, of_words[0].words, of_words[0].wordless)
    if stored := _all_of(MaterialisedGradients, uses):
        return MaterialisedGradients(torch.stack([use.gradients.double() for use in stored]).sum(0))
    if built := _all_of(BuiltGradients, uses):
        return reduce(BuiltGradients.plus, built)
    return _tied(uses, size)


def _tied(uses: list[PerExampleGradients], size: int) -> PerExampleGradients:
    words = [use for use in uses if isinstance(use, TokenRows) and not use.wordless]
    others = [_over_time(use) for use in uses if not isinstance(use, TokenRows)]
    products = _all_of(OverTime, others)
    if len(words) == 1 and products and len(products) == len(uses) - 1:
        return TiedTable(words[0], _side_by_side(products))
    return TiedGradients(tuple(uses), size)


Form = TypeVar("Form")


def _all_of(form: type[Form], uses: list[PerExampleGradients]) -> list[Form]:
    """The uses, if all are of this form, else an empty list."""
    found: list[Form] = [use for use in uses if isinstance(use, form)]
    return found if len(found) == len(uses) else []


def _side_by_side(uses: list[OverTime]) -> OverTime:
    if len(uses) == 1:
        return uses[0]
    inputs = torch.cat([use.inputs for use in uses], 1)
    return OverTime(inputs, torch.cat([use.output_gradients for use in uses], 1))


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


def _linear(call: LayerCall, params: Params) -> Gradients:
    a, b, prefix = call.inputs, call.output_gradients, call.prefix
    if isinstance(a, SparseRows):
        weight = SparseOuter(a, b, axis=1)
        return {f"{prefix}weight": weight, f"{prefix}bias": MaterialisedGradients(b)}
    return _product(LayerCall(_WHOLE, prefix, a, b), params)


def _transposed(call: LayerCall, params: Params) -> Gradients:
    """The gradient of the transposed weight is a bᵀ: inputs and output gradients change places."""
    a, b = call.inputs, call.output_gradients
    assert isinstance(a, Tensor)
    prefix = call.prefix
    turned = _product(LayerCall(_TURNED, prefix, b, a), params)
    bias = b.flatten(1, -2)
    return turned | {f"{prefix}bias": MaterialisedGradients(_sum_over(bias, [1]))}


_TURNED = Part(nn.Identity(), "weight")


_WHOLE = Part(nn.Identity(), "weight", ("bias",))
"""A linear layer as a product; its parameters are found by their names."""


def _product(call: LayerCall, params: Params) -> Gradients:
    """A weight that inputs are multiplied by, and biases, which all have the same gradient."""
    part, a, b = call.owner, call.inputs, call.output_gradients
    assert isinstance(part, Part)
    assert isinstance(a, Tensor)
    a, b = a.flatten(1, -2), b.flatten(1, -2)
    found: Gradients = {}
    weight = f"{call.prefix}{part.weight}"
    if weight in params:
        own = b if part.rows is None else part.padded(b, len(params[weight]))
        one = a.shape[1] == 1
        found[weight] = Outer(a.squeeze(1), own.squeeze(1)) if one else OverTime(a, own)
    biases = [f"{call.prefix}{name}" for name in part.biases]
    biases = [name for name in biases if name in params]
    if biases:
        total = _sum_over(b, [1]) if b.shape[1] > 1 else b.squeeze(1)
        for name in biases:
            own = total if part.rows is None else part.padded(total, len(params[name]))
            found[name] = MaterialisedGradients(own)
    return found


def _convolution(call: LayerCall, params: Params) -> Gradients:  # noqa: ARG001
    layer, a, b = call.owner, call.inputs, call.output_gradients
    assert isinstance(layer, Convolution)
    assert isinstance(a, Tensor)
    if b.ndim == 2 + len(layer.kernel_size):  # one image without a batch of its own
        a, b = a.unsqueeze(1), b.unsqueeze(1)
    return {
        f"{call.prefix}weight": of_filters(layer, a, b),
        f"{call.prefix}bias": MaterialisedGradients(of_bias(b)),
    }


def _embedding(call: LayerCall, params: Params) -> Gradients:  # noqa: ARG001
    layer, tokens = call.owner, call.inputs
    assert isinstance(layer, nn.Embedding)
    assert isinstance(tokens, Tensor)
    flat = tokens.flatten(1) if tokens.ndim > 1 else tokens.unsqueeze(1)
    b = call.output_gradients.reshape(*flat.shape, layer.embedding_dim)
    if layer.padding_idx is not None:
        b = torch.where((flat == layer.padding_idx).unsqueeze(2), 0, b)
    return {f"{call.prefix}weight": TokenRows(flat, b, layer.num_embeddings)}


def _embedding_bag(call: LayerCall, params: Params) -> Gradients:  # noqa: ARG001
    layer, b = call.owner, call.output_gradients
    assert isinstance(layer, nn.EmbeddingBag)
    bags = call.inputs
    if not isinstance(bags, SparseRows):
        bags = as_bags(bags.flatten(0, 1), layer)
        if len(bags) != len(b):  # several bags in each example
            return _embedding_of_bags(call, layer)
    return {f"{call.prefix}weight": SparseOuter(bags, b.flatten(1), axis=0)}


def _embedding_of_bags(call: LayerCall, layer: nn.EmbeddingBag) -> Gradients:
    """Each word has the gradient of its bag, divided by the bag's size for a mean."""
    tokens, b = call.inputs, call.output_gradients
    assert isinstance(tokens, Tensor)
    counted = torch.ones_like(tokens, dtype=b.dtype)
    if layer.padding_idx is not None:
        counted = (tokens != layer.padding_idx).to(b.dtype)
    shares = counted
    if layer.mode == "mean":
        shares = counted / counted.sum(-1, keepdim=True).clamp_min(1)
    rows = (shares.unsqueeze(-1) * b.unsqueeze(-2)).flatten(1, -2)
    return {f"{call.prefix}weight": TokenRows(tokens.flatten(1), rows, layer.num_embeddings)}


def _normalisation(call: LayerCall, params: Params) -> Gradients:  # noqa: ARG001
    """b ∘ x̂ and b, summed over all axes but those of the parameter."""
    layer, a, b = call.owner, call.inputs, call.output_gradients
    assert isinstance(a, Tensor)
    if isinstance(layer, nn.GroupNorm):
        plain = functional.group_norm(a.flatten(0, 1), layer.num_groups, eps=layer.eps)
        axes = [1, *range(3, b.ndim)]
        plain = plain.view_as(a)
    else:
        assert isinstance(layer, nn.LayerNorm | nn.RMSNorm)
        shape = layer.normalized_shape
        if isinstance(layer, nn.LayerNorm):
            plain = functional.layer_norm(a, shape, eps=layer.eps)
        else:
            plain = functional.rms_norm(a, list(shape), eps=layer.eps)
        axes = list(range(1, a.ndim - len(shape)))
    return {
        f"{call.prefix}weight": MaterialisedGradients(_sum_over(b * plain, axes)),
        f"{call.prefix}bias": MaterialisedGradients(_sum_over(b, axes)),
    }


def _sum_over(values: Tensor, axes: list[int]) -> Tensor:
    """The sum over axes, in the precision of the model: it is measured as it is added up."""
    return values.sum(axes) if axes else values


def _zeroed(inputs: Rows, examples: Tensor) -> Rows:
    if isinstance(inputs, SparseRows):
        return inputs.with_values(torch.where(examples[inputs.rows], 0, inputs.values))
    if not inputs.is_floating_point():
        return inputs
    return torch.where(examples.view(-1, *[1] * (inputs.ndim - 1)), 0, inputs)


_RULES: dict[type, Callable[[LayerCall, Params], Gradients]] = {
    Part: _product,
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Conv3d: _convolution,
    nn.Embedding: _embedding,
    nn.EmbeddingBag: _embedding_bag,
    nn.LayerNorm: _normalisation,
    nn.GroupNorm: _normalisation,
    nn.RMSNorm: _normalisation,
}

_FORWARDS = {kind: kind.forward for kind in _RULES if issubclass(kind, nn.Module)}
"""The methods of torch, so that a patched class is noticed."""
