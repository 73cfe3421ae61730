"""Models that are sequences of layers, all known to treat every example of a batch separately.

Such a model runs on whole batches, without torch.func.vmap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules import module as torch_module

from adadps.data.fields import Rows
from adadps.data.sparse_rows import SparseRows
from adadps.engine.rules.layers import LayerCall
from adadps.engine.rules.pooling import MaxPool, require_winners
from adadps.engine.rules.sparse import as_bags
from adadps.errors import ModelError
from adadps.tensors.products import linear
from adadps.tensors.sums import Params

_ELEMENTWISE = {
    nn.CELU, nn.ELU, nn.GELU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.Identity,
    nn.LeakyReLU, nn.LogSigmoid, nn.Mish, nn.ReLU, nn.ReLU6, nn.SELU, nn.Sigmoid, nn.SiLU,
    nn.Softplus, nn.Softshrink, nn.Softsign, nn.Tanh, nn.Tanhshrink, nn.Threshold,
    nn.AlphaDropout, nn.Dropout,
}  # fmt: skip
_ON_IMAGES = {
    nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3,
    nn.MaxPool1d: 1, nn.MaxPool2d: 2, nn.MaxPool3d: 3,
    nn.AvgPool1d: 1, nn.AvgPool2d: 2, nn.AvgPool3d: 3,
    nn.AdaptiveAvgPool1d: 1, nn.AdaptiveAvgPool2d: 2, nn.AdaptiveAvgPool3d: 3,
}  # fmt: skip
"""Layers on images, with the number of axes of one channel."""

_WITH_WEIGHTS = {nn.Embedding, nn.EmbeddingBag, nn.GroupNorm, nn.LayerNorm, nn.Linear, nn.RMSNorm}


_SUPPORTED: set[Any] = _ELEMENTWISE | _WITH_WEIGHTS | set(_ON_IMAGES) | {nn.Flatten}
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

    def takes(self, features: Rows) -> bool:
        """Can these features be fed to the first layer, one example per row?"""
        first = self.layers[0][1]
        if isinstance(features, SparseRows):
            return isinstance(first, nn.Linear | nn.EmbeddingBag)
        if isinstance(first, nn.EmbeddingBag):
            return features.ndim == 2 and not features.is_floating_point()
        return features.ndim >= 2 or isinstance(first, nn.Embedding)

    def outputs(self, params: Params, features: Rows) -> Tensor:
        """Run all layers, without gradient, and return the outputs."""
        with torch.no_grad():
            signal = self._first(params, features)
            for name, layer in self.layers:
                signal = _run(layer, _own(layer, name, params), signal)
            assert isinstance(signal, Tensor)
            return signal

    def numbers(self, params: Params, features: Rows) -> int:
        """Return how many numbers the layers write for one example."""
        with torch.no_grad():
            signal, total = self._first(params, features), 0
            for name, layer in self.layers:
                signal = _run(layer, _own(layer, name, params), signal)
                total += signal.numel()
        return total // max(1, len(features))

    def layer_calls(
        self, params: Params, features: Rows, of_outputs: Callable[[Tensor], Tensor]
    ) -> list[LayerCall]:
        """Return the inputs and output gradients of all layers with weights.

        ``of_outputs`` gives the gradient of the model's outputs. The backward pass goes from there
        to the outputs of the layers with weights, and no further.
        """
        inputs, outputs = [], []
        may_overwrite = any(getattr(layer, "inplace", False) for _, layer in self.layers)
        signal = self._first(params, features)
        for place, (name, layer) in enumerate(self.layers):
            output = _run(layer, _own(layer, name, params), signal)
            if _trainable(layer):
                inputs.append((layer, _prefix(name), _detached(signal)))
                if place + 1 < len(self.layers):
                    outputs.append(output if output.requires_grad else output.requires_grad_())
                    output = output.clone() if may_overwrite else output
            signal = output
        assert isinstance(signal, Tensor)
        last = of_outputs(signal.detach())
        found = [*torch.autograd.grad(signal, outputs, last)] if outputs else []
        found += [last] * (len(inputs) - len(found))
        pairs = zip(inputs, found, strict=True)
        return [LayerCall(layer, prefix, *_each(a, b.detach())) for (layer, prefix, a), b in pairs]

    def _first(self, params: Params, features: Rows) -> Rows:
        """The inputs of the first layer: bags of words as sparse rows, values in its precision."""
        first = self.layers[0][1]
        if isinstance(first, nn.EmbeddingBag):
            return self.encoded(features)
        if isinstance(features, SparseRows) or not features.is_floating_point():
            return features
        copied = getattr(self.layers[0][1], "inplace", False)
        return features.to(next(iter(params.values())).dtype, copy=copied)

    def encoded(self, features: Rows) -> Rows:
        """Return tokens for a first layer of bags as sparse rows of counts, others unchanged."""
        first = self.layers[0][1]
        if isinstance(first, nn.EmbeddingBag) and isinstance(features, Tensor):
            return as_bags(features, first)
        return features

    def table_rows(self, features: Rows) -> dict[str, Tensor]:
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
        return module.start_dim == 1
    return not getattr(module, "return_indices", False)


def _run(layer: nn.Module, own: Params, signal: Rows) -> Tensor:
    if isinstance(signal, SparseRows):
        return _on_sparse_rows(layer, own, signal)
    if isinstance(layer, nn.LayerNorm | nn.RMSNorm) and len(layer.normalized_shape) >= signal.ndim:
        raise ModelError(
            f"Expected a norm within each example, found {layer} on rows of shape "
            f"{tuple(signal.shape[1:])}. Give it the shape of one example."
        )
    axes = _ON_IMAGES.get(type(layer))
    if axes is not None and signal.ndim != axes + 2:
        raise ModelError(
            f"Expected images of channels and {axes} axes for {layer}, found rows of shape "
            f"{tuple(signal.shape[1:])}. Give every example an axis of channels."
        )
    if isinstance(layer, MaxPool):
        require_winners(layer, signal)
    if isinstance(layer, nn.Linear):
        rows = signal.to(own["weight"].dtype)
        return linear(rows, own["weight"], own.get("bias"))
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


def _each(inputs: Rows, b: Tensor) -> tuple[Rows, Tensor]:
    """Inputs and output gradients with an inner batch of one for every example."""
    if isinstance(inputs, SparseRows):
        return inputs, b
    return inputs.unsqueeze(1), b.unsqueeze(1)


def _detached(signal: Rows) -> Rows:
    return signal.detach() if isinstance(signal, Tensor) else signal


def _own(layer: nn.Module, name: str, params: Params) -> Params:
    """The layer's parameters: trained ones from ``params``, frozen ones from the layer."""
    prefix, found = _prefix(name), {}
    for own, held in layer._parameters.items():
        if held is not None:
            trained = params.get(f"{prefix}{own}")
            found[own] = held.detach() if trained is None else trained
    return found


def _prefix(name: str) -> str:
    return f"{name}." if name else ""


def _trainable(layer: nn.Module) -> bool:
    with torch._C.DisableTorchFunctionSubclass():  # asks no table for its weights
        return any(parameter.requires_grad for parameter in layer.parameters())
