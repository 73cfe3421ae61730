"""The general engine: per-example gradients by torch.func.vmap, for any model that vmap can run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from adadps.data.examples import Examples, Features
from adadps.data.sparse_rows import SparseRows
from adadps.errors import ModelError
from adadps.gradients.affine import Affine
from adadps.gradients.waist import Units
from adadps.types import Params

Loss = Callable[[Tensor, Tensor], Tensor]
"""loss(outputs, targets) with one number an example."""


@dataclass(frozen=True)
class StoredGradients:
    """One stored gradient for each unit: simple, general, and large."""

    gradients: Params
    present: Tensor
    affine: Affine

    def scale(self, diagonal: Params) -> StoredGradients:
        """D ∘ g."""
        return replace(self, affine=self.affine.scale(diagonal))

    def shift(self, beta: float, mean: Params) -> StoredGradients:
        """β g + (1 - β) M."""
        return replace(self, affine=self.affine.shift(beta, mean))

    def norms(self) -> Tensor:
        """‖a ∘ g_i + m‖, in float64."""
        squares = self.present.double() * 0
        for name in self.gradients:
            squares += self._transformed(name).flatten(1).square().sum(1)
        return torch.where(self.present, squares, 0).sqrt()

    def weighted_sum(self, weights: Tensor) -> Params:
        """Σ_i w_i (a ∘ g_i + m)."""
        masked = torch.where(self.present, weights.double(), 0)
        return {
            name: torch.tensordot(masked, self._finite(name), dims=1) for name in self.gradients
        }

    def parts(self) -> Iterator[StoredGradients]:
        """The batch itself."""
        yield self

    def _transformed(self, name: str) -> Tensor:
        gradient = self.gradients[name].double()
        if name in self.affine.factor:
            gradient = gradient * self.affine.factor[name]
        if name in self.affine.offset:
            gradient = gradient + self.affine.offset[name]
        return gradient

    def _finite(self, name: str) -> Tensor:
        """The transformed gradient without what overflowed, whose weight is 0: 0 · ∞ is NaN."""
        return torch.nan_to_num(self._transformed(name), nan=0.0, posinf=0.0, neginf=0.0)


class GeneralEngine:
    """Differentiates each example alone, all of them at once, with vmap."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        self.model = model
        self.loss = loss

    def per_unit(self, params: Params, batch: Examples, units: Units | None) -> StoredGradients:
        """Store one gradient a row and add up the rows of each unit."""
        of_each = vmap(grad(self._single_loss), in_dims=(None, 0, 0), randomness="different")
        rows = _dense(batch.features, params)
        gradients: Params = guarded(of_each, params, rows, batch.targets)
        finite = torch.stack([torch.isfinite(g).flatten(1).all(1) for g in gradients.values()]).all(
            0
        )
        zeroed = {
            name: torch.where(finite.view(-1, *[1] * (g.ndim - 1)), g, 0)
            for name, g in gradients.items()
        }
        if units is None:
            return StoredGradients(zeroed, finite, Affine.identity())
        summed = {name: units.weight * units.sums(g.double()) for name, g in zeroed.items()}
        return StoredGradients(summed, units.present(finite), Affine.identity())

    def mean_gradient(self, params: Params, batch: Examples) -> Params:
        """∇ of the mean loss, by one backward pass."""

        def mean_loss(at: Params) -> Tensor:
            outputs = functional_call(self.model, at, (_dense(batch.features, params),))
            return self.loss(outputs, batch.targets).mean()

        gradients: Params = grad(mean_loss)(params)
        return gradients

    def outputs(self, params: Params, features: Features) -> Tensor:
        """The model's outputs, without gradient."""
        with torch.no_grad():
            result: Tensor = functional_call(self.model, params, (_dense(features, params),))
            return result

    def _single_loss(self, params: Params, row: Tensor, target: Tensor) -> Tensor:
        outputs = functional_call(self.model, params, (row.unsqueeze(0),))
        return self.loss(outputs, target.unsqueeze(0)).squeeze()


def guarded(of_each: Callable[..., Any], *arguments: Any) -> Any:
    """Call something made by vmap; say what to change where it cannot run."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")
            warnings.filterwarnings("ignore", ".*vmap.*")
            return of_each(*arguments)
    except RuntimeError as error:
        raise ModelError(
            "Expected a model and a loss that torch.func.vmap can differentiate example by "
            f"example; it stopped with: {error}. Replace in-place operations, `.item()`, "
            "data-dependent branches, packed sequences and GRU/RNN layers by ones it supports."
        ) from error


def _dense(features: Features, params: Params) -> Tensor:
    dense = features.to_dense() if isinstance(features, SparseRows) else features
    if dense.is_floating_point():
        return dense.to(next(iter(params.values())).dtype)
    return dense
