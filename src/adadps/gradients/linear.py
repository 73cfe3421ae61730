"""The closed form for one linear layer, on dense or sparse rows.

With input a_i and output gradient b_i the gradient of example i is g_i = b_i a_iᵀ. Under the map
g ↦ D ∘ g + M its norm needs no g_i:

    ‖D ∘ g_i + M‖² = (b_i²)ᵀ (D ∘ D) (a_i²) + 2 b_iᵀ (D ∘ M) a_i + ‖M‖²,
    Σ_i w_i (D ∘ g_i + M) = D ∘ ((w · b)ᵀ a) + (Σ_i w_i) M.

Where D does not depend on the output (feature-only side information) the first term is
‖b_i‖² Σ_k (D_k a_ik)². All sums are in float64. The terms can cancel when M ≠ 0, so a bound on
their rounding is added there: a computed norm may be too large by rounding, never too small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional

from adadps.data.examples import Examples, Features, take
from adadps.gradients.affine import Affine
from adadps.gradients.general import Loss, guarded
from adadps.gradients.waist import Units
from adadps.types import Params


@dataclass(frozen=True)
class LinearGradients:
    """Inputs a and output gradients b of one linear layer, instead of their products."""

    inputs: Features
    output_gradients: Tensor
    has_bias: bool
    units: Units | None
    present: Tensor
    affine: Affine

    def scale(self, diagonal: Params) -> LinearGradients:
        """D ∘ g."""
        return replace(self, affine=self.affine.scale(diagonal))

    def shift(self, beta: float, mean: Params) -> LinearGradients:
        """β g + (1 - β) M."""
        return replace(self, affine=self.affine.shift(beta, mean))

    def parts(self) -> Iterator[LinearGradients]:
        """The batch itself."""
        yield self

    def norms(self) -> Tensor:
        """‖D ∘ g_i + M‖, in float64."""
        if self.units is not None:
            return self._norms_of_groups(self.units)
        squares = self._weight_squares()
        if self.has_bias:
            squares = squares + self._bias_squares()
        return torch.where(self.present, squares, 0).clamp_min(0).sqrt()

    def weighted_sum(self, weights: Tensor) -> Params:
        """Σ_i w_i (D ∘ g_i + M)."""
        masked = torch.where(self.present, weights.double(), 0)
        of_row = masked if self.units is None else masked[self.units.labels] * self.units.weight
        weighted = of_row.unsqueeze(1) * self.output_gradients
        sums = {"weight": _outer_sum(weighted, self.inputs)}
        if self.has_bias:
            sums["bias"] = weighted.sum(0)
        return self._transformed(sums, float(masked.sum()))

    def _transformed(self, sums: Params, count: float) -> Params:
        for name, offset_free in sums.items():
            total = offset_free
            if name in self.affine.factor:
                total = total * self.affine.factor[name]
            if name in self.affine.offset:
                total = total + count * self.affine.offset[name]
            sums[name] = total
        return sums

    def _weight_squares(self) -> Tensor:
        b, factor = self.output_gradients, self.affine.factor.get("weight")
        a_squared = _map_values(self.inputs, torch.square)
        if factor is None or factor.numel() == 1:
            outer = b.square().sum(1) * _times_vector(a_squared, None)
            squares = outer if factor is None else outer * factor.square().reshape(())
        elif factor.shape[0] == 1:
            squares = b.square().sum(1) * _times_vector(a_squared, factor.square().reshape(-1))
        else:
            full = factor.square().expand(b.shape[1], _width(self.inputs))
            squares = (b.square() * _times_matrix(a_squared, full)).sum(1)
        if "weight" not in self.affine.offset:
            return squares
        offset = self.affine.offset["weight"]
        cross = offset if factor is None else factor * offset
        inner = (b * _times_matrix(self.inputs, cross)).sum(1)
        sizes = (b.abs() * _times_matrix(_map_values(self.inputs, torch.abs), cross.abs())).sum(1)
        rounding = 2.3e-16 * b.shape[1] * _width(self.inputs)  # one ulp for each term
        terms = squares + 2 * sizes + offset.square().sum()
        return squares + 2 * inner + offset.square().sum() + rounding * terms

    def _bias_squares(self) -> Tensor:
        b = self.output_gradients
        if "bias" in self.affine.factor:
            b = b * self.affine.factor["bias"]
        if "bias" in self.affine.offset:
            b = b + self.affine.offset["bias"]
        return b.square().sum(1)

    def _norms_of_groups(self, units: Units) -> Tensor:
        """Build the gradient of one group at a time and measure it."""
        norms = torch.zeros_like(self.present, dtype=torch.float64)
        for unit in range(units.count):
            if self.present[unit]:
                rows = torch.nonzero(units.labels == unit).squeeze(1)
                alone = torch.zeros_like(norms)
                alone[unit] = 1
                members = replace(
                    self,
                    inputs=take(self.inputs, rows),
                    output_gradients=self.output_gradients[rows],
                    units=Units(units.labels[rows], units.count, units.weight),
                )
                squares = (leaf.square().sum() for leaf in members.weighted_sum(alone).values())
                norms[unit] = torch.stack(list(squares)).sum().sqrt()
        return norms


class LinearEngine:
    """Closed form for a model that is one `torch.nn.Linear`."""

    def __init__(self, model: nn.Linear, loss: Loss) -> None:
        self.loss = loss
        self.has_bias = model.bias is not None

    @staticmethod
    def fits(model: nn.Module) -> bool:
        """Is ``model`` one plain, fully trainable linear layer?"""
        return (
            type(model) is nn.Linear
            and all(parameter.requires_grad for parameter in model.parameters())
            and not model._forward_hooks
            and not model._forward_pre_hooks
        )

    def per_unit(self, params: Params, batch: Examples, units: Units | None) -> LinearGradients:
        """One forward pass, and the loss differentiated with respect to the outputs alone."""
        b = self._output_gradients(params, batch).double()
        inputs = _map_values(batch.features, torch.Tensor.double)
        finite = torch.isfinite(b).all(1) & _finite_rows(inputs)
        present = finite if units is None else units.present(finite)
        return LinearGradients(
            _zero_rows(inputs, ~finite),
            torch.where(finite.unsqueeze(1), b, 0),
            self.has_bias,
            units,
            present,
            Affine.identity(),
        )

    def mean_gradient(self, params: Params, batch: Examples) -> Params:
        """Mean gradient, from the same closed form."""
        gradients = self.per_unit(params, batch, None)
        weights = torch.full_like(gradients.output_gradients[:, 0], 1 / len(batch))
        return gradients.weighted_sum(weights)

    def outputs(self, params: Params, features: Features) -> Tensor:
        """W a + bias for every row."""
        with torch.no_grad():
            weight, bias = params["weight"], params.get("bias")
            if isinstance(features, Tensor):
                return functional.linear(features.to(weight.dtype), weight, bias)
            product = _times_matrix(features, weight)
            return product if bias is None else product + bias

    def _output_gradients(self, params: Params, batch: Examples) -> Tensor:
        """Each row's loss alone, so that a loss across rows cannot mix them."""

        def single(output: Tensor, target: Tensor) -> Tensor:
            return self.loss(output.unsqueeze(0), target.unsqueeze(0)).squeeze()

        of_each = vmap(grad(single), randomness="different")
        gradients: Tensor = guarded(of_each, self.outputs(params, batch.features), batch.targets)
        return gradients


def _outer_sum(b: Tensor, a: Features) -> Tensor:
    """bᵀ a: the sum of b_i a_iᵀ over the rows."""
    if isinstance(a, Tensor):
        return b.T @ a
    entries = torch.stack([a.columns, a.rows])
    transposed = torch.sparse_coo_tensor(
        entries, a.values, (a.width, len(a)), check_invariants=False
    )
    by_feature: Tensor = torch.sparse.mm(transposed, b)
    return by_feature.T.contiguous()


def _times_matrix(a: Features, matrix: Tensor) -> Tensor:
    """A matrixᵀ for rows a of A."""
    if isinstance(a, Tensor):
        return a @ matrix.T
    return functional.embedding_bag(
        a.columns,
        matrix.T.contiguous(),
        a.offsets,
        per_sample_weights=a.values.to(matrix.dtype),
        mode="sum",
        include_last_offset=True,
    )


def _times_vector(a: Features, vector: Tensor | None) -> Tensor:
    """Σ_k a_ik vector_k for each row, or plain row sums."""
    if isinstance(a, Tensor):
        return a.sum(1) if vector is None else a @ vector
    return a.row_sums(a.values if vector is None else a.values * vector[a.columns])


def _map_values(a: Features, function: Callable[[Tensor], Tensor]) -> Features:
    return function(a) if isinstance(a, Tensor) else a.with_values(function(a.values))


def _width(a: Features) -> int:
    return a.shape[1] if isinstance(a, Tensor) else a.width


def _finite_rows(a: Features) -> Tensor:
    if isinstance(a, Tensor):
        return torch.isfinite(a).all(1)
    return a.row_sums((~torch.isfinite(a.values)).double()) == 0


def _zero_rows(a: Features, rows: Tensor) -> Features:
    if isinstance(a, Tensor):
        return torch.where(rows.unsqueeze(1), 0, a)
    return a.with_values(torch.where(rows[a.rows], 0, a.values))
