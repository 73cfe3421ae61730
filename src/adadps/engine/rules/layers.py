"""The rule of each kind of layer: its inputs and output gradients give its parameters' gradients.

To add a rule for a new layer, write a function of a `LayerCall` that returns one
`PerExampleGradients` per parameter, and enter it in `_RULES`. Layers without a rule are run by vmap
(`_by_vmap`), which stores their gradients.

A `LayerSequence` is a model of layers that are all known to treat every example of a batch
separately, so that it can run on whole batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp
from torch.nn import functional
from torch.nn.modules import module as torch_module

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


_ELEMENTWISE = {
    nn.CELU, nn.ELU, nn.GELU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.Identity,
    nn.LeakyReLU, nn.LogSigmoid, nn.Mish, nn.ReLU, nn.ReLU6, nn.SELU, nn.Sigmoid, nn.SiLU,
    nn.Softplus, nn.Softshrink, nn.Softsign, nn.Tanh, nn.Tanhshrink, nn.Threshold,
    nn.AlphaDropout, nn.Dropout,
}  # fmt: skip
_WITH_WEIGHTS = {nn.Embedding, nn.EmbeddingBag, nn.GroupNorm, nn.LayerNorm, nn.Linear, nn.RMSNorm}


_SUPPORTED: set[Any] = _ELEMENTWISE | _WITH_WEIGHTS | {nn.Flatten}
_FORWARDS = {kind: kind.forward for kind in _SUPPORTED}
"""The methods of torch, so that a patched class is noticed."""

_HOOKS_OF_ALL_MODULES = (
    "_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks",
    "_global_backward_pre_hooks",
)  # fmt: skip


@dataclass(frozen=True)
class LayerSequence:
    """Layers in the order in which they run, each with its name in the model."""

    layers: tuple[tuple[str, nn.Module], ...]

    @classmethod
    def of(cls, model: nn.Module) -> LayerSequence | None:
        """Return the layers of ``model`` if it is such a sequence, else None."""
        layers = _flattened("", model)
        if layers is None or not any(_trainable(layer) for _, layer in layers):
            return None
        return cls(tuple(layers))

    def takes(self, features: Features) -> bool:
        """Can these features be fed to the first layer, one example per row?"""
        first = self.layers[0][1]
        if isinstance(features, SparseRows):
            return isinstance(first, nn.Linear | nn.EmbeddingBag)
        if isinstance(first, nn.EmbeddingBag):
            return features.ndim == 2 and not features.is_floating_point()
        return features.ndim >= 2 or isinstance(first, nn.Embedding)

    def outputs(self, params: Params, features: Features) -> Tensor:
        """Run all layers, without gradient, and return the outputs."""
        with torch.no_grad():
            signal = self._first(params, features)
            for name, layer in self.layers:
                signal = _run(layer, _own(layer, name, params), signal)
            assert isinstance(signal, Tensor)
            return signal

    def layer_calls(
        self, params: Params, features: Features, of_outputs: Callable[[Tensor], Tensor]
    ) -> list[LayerCall]:
        """Return the inputs and output gradients of all layers with weights.

        ``of_outputs`` gives the gradient of the model's outputs. A zero is added to the output of
        each layer: the gradient of the zero is the gradient of that output.
        """
        inputs, zeros = [], []
        signal = self._first(params, features)
        for place, (name, layer) in enumerate(self.layers):
            output = _run(layer, _own(layer, name, params), signal)
            if _trainable(layer):
                inputs.append((layer, _prefix(name), _detached(signal)))
                if place + 1 < len(self.layers):
                    zeros.append(torch.zeros_like(output).requires_grad_())
                    output = output + zeros[-1]
            signal = output
        assert isinstance(signal, Tensor)
        last = of_outputs(signal.detach())
        found = [*torch.autograd.grad(signal, zeros, last)] if zeros else []
        found += [last] * (len(inputs) - len(found))
        return [LayerCall(*held, b.detach()) for held, b in zip(inputs, found, strict=True)]

    def _first(self, params: Params, features: Features) -> Features:
        """The inputs of the first layer: bags of words as sparse rows, values in its precision."""
        first = self.layers[0][1]
        if isinstance(first, nn.EmbeddingBag):
            return self.encoded(features)
        if isinstance(features, SparseRows) or not features.is_floating_point():
            return features
        copied = getattr(self.layers[0][1], "inplace", False)
        return features.to(next(iter(params.values())).dtype, copy=copied)

    def encoded(self, features: Features) -> Features:
        """Return tokens for a first layer of bags as sparse rows of counts, others unchanged."""
        first = self.layers[0][1]
        if isinstance(first, nn.EmbeddingBag) and isinstance(features, Tensor):
            return as_bags(features, first)
        return features

    def table_rows(self, features: Features) -> dict[str, Tensor]:
        """Return the rows of the first layer's table that these features read."""
        name, first = self.layers[0]
        features = self.encoded(features)
        if isinstance(features, SparseRows):
            return {f"{_prefix(name)}weight": features.by_column.columns}
        if isinstance(first, nn.Embedding):
            return {f"{_prefix(name)}weight": torch.unique(features)}
        return {}


def _flattened(prefix: str, module: nn.Module) -> list[tuple[str, nn.Module]] | None:
    if (
        "forward" in vars(module)  # patched: its class says nothing about what it does
        or any(getattr(torch_module, name) for name in _HOOKS_OF_ALL_MODULES)
        or module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    ):
        return None
    if type(module) is nn.Sequential:
        found: list[tuple[str, nn.Module]] = []
        for name, child in module._modules.items():  # a child that is used twice runs twice
            assert child is not None
            inner = _flattened(f"{prefix}.{name}" if prefix else name, child)
            if inner is None:
                return None
            found += inner
        return found or None
    return [(prefix, module)] if _treats_examples_alone(module) else None


def _treats_examples_alone(module: nn.Module) -> bool:
    """Does this layer compute for each example of a batch what it computes for it alone?"""
    if _FORWARDS.get(type(module)) is not type(module).forward:
        return False
    if isinstance(module, nn.Flatten):
        return type(module) is nn.Flatten and module.start_dim == 1
    return type(module) in _ELEMENTWISE | _WITH_WEIGHTS


def _run(layer: nn.Module, own: Params, signal: Features) -> Tensor:
    if isinstance(signal, SparseRows):
        return _on_sparse_rows(layer, own, signal)
    if isinstance(layer, nn.LayerNorm | nn.RMSNorm) and len(layer.normalized_shape) >= signal.ndim:
        raise ModelError(
            f"Expected a norm within each example, found {layer} on rows of shape "
            f"{tuple(signal.shape[1:])}. Give it the shape of one example."
        )
    if isinstance(layer, nn.Linear):
        rows = signal.to(own["weight"].dtype)
        return functional.linear(rows, own["weight"], own.get("bias"))
    result: Tensor = functional_call(layer, own, (signal,)) if own else layer(signal)
    return result


def _on_sparse_rows(layer: nn.Module, own: Params, rows: SparseRows) -> Tensor:
    if isinstance(layer, nn.EmbeddingBag):
        return rows.times(own["weight"])
    if isinstance(layer, nn.Linear):
        product = rows.times(own["weight"].T)
        return product if own.get("bias") is None else product.add_(own["bias"])
    raise ModelError(
        f"Expected nn.Linear or nn.EmbeddingBag(mode='sum') for sparse rows, found {layer}. Give "
        "it dense rows."
    )


def _detached(signal: Features) -> Features:
    return signal.detach() if isinstance(signal, Tensor) else signal


def _own(layer: nn.Module, name: str, params: Params) -> Params:
    """The layer's parameters: trained ones from ``params``, frozen ones from the layer."""
    held = {own: f"{_prefix(name)}{own}" for own, _ in layer.named_parameters(recurse=False)}
    return {
        own: params[full] if full in params else layer.get_parameter(own).detach()
        for own, full in held.items()
    }


def _prefix(name: str) -> str:
    return f"{name}." if name else ""


def _trainable(layer: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in layer.parameters())
