"""The general engine: stored per-example gradients, for any model that torch.func.vmap can run."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from adadps.data.examples import Examples
from adadps.data.fields import Arguments, Features, arguments
from adadps.engine.by_example import PassByExample
from adadps.engine.losses import Loss
from adadps.engine.rules.gradients import MaterialisedGradients
from adadps.engine.rules.layered import LayeredGradients, layered
from adadps.engine.waist import Units
from adadps.tensors.sums import Params

STORED_BYTES = 2**29
"""Memory for stored gradients; sums in float64 take about three times as much in addition."""


class GeneralEngine:
    """Differentiates each example alone, and all of them at once, with vmap."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        self.model = model
        self.loss = loss
        self._passes = PassByExample(model)

    @property
    def stored(self) -> frozenset[str]:
        """Return the names of all trainable parameters: their gradients are stored."""
        return self._passes.stored

    def per_unit(
        self, params: Params, batch: Examples, units: Units | None, synthetic: int = 0
    ) -> LayeredGradients:
        """Return one stored gradient per row, to be added up by unit."""
        rows = _given(batch.features, params)
        _, gradients = self._passes.gradients(self.loss, params, rows, batch.targets)
        finite = torch.stack(
            [torch.isfinite(g).reshape(len(g), -1).all(1) for g in gradients.values()]
        ).all(0)
        finite = finite if batch.absent is None else finite & ~batch.absent
        zeroed = {
            name: torch.where(finite.view(-1, *[1] * (g.ndim - 1)), g, 0)
            for name, g in gradients.items()
        }
        leaves = {name: MaterialisedGradients(gradient) for name, gradient in zeroed.items()}
        return layered(leaves, finite, units, synthetic)

    def mean_gradient(self, params: Params, batch: Examples) -> Params:
        """Return ∇ of the mean loss, by one backward pass."""

        def mean_loss(at: Params) -> Tensor:
            outputs = functional_call(self.model, at, *_given(batch.features, params))
            return self.loss(outputs, batch.targets).mean()

        gradients: Params = grad(mean_loss)(params)
        return gradients

    def outputs(self, params: Params, features: Features) -> Any:
        """Return the model's outputs, without gradient."""
        with torch.no_grad():
            return functional_call(self.model, params, *_given(features, params))

    def encoded(self, features: Features) -> Features:
        """Return the features as they are."""
        return features

    def most_at_once(self, params: Params) -> int:
        """Return how many gradients fit in `STORED_BYTES`."""
        size = sum(value.numel() * value.element_size() for value in params.values())
        return max(1, STORED_BYTES // size)

    def reads(self, features: Features) -> dict[str, Tensor]:  # noqa: ARG002
        """Return no table: every parameter is read whole."""
        return {}


def _given(features: Features, params: Params) -> Arguments:
    return arguments(features, next(iter(params.values())).dtype)
