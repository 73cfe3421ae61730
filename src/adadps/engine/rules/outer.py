"""Linear layers: gradients as outer products that are never formed.

With input a_i and output gradient b_i the gradient of example i is g_i = b_i a_iᵀ, and

    ‖D ∘ g_i + M‖² = (b_i²)ᵀ (D ∘ D) (a_i²) + 2 b_iᵀ (D ∘ M) a_i + ‖M‖²,
    Σ_i w_i g_i = (w · b)ᵀ a.

For D = u vᵀ the first term is ‖u ∘ b_i‖² ‖v ∘ a_i‖². If the layer sees several positions t of an
example, g_i = Σ_t b_t a_tᵀ: then with D = u vᵀ

    ‖D ∘ g_i‖² = Σ_{t,s} ⟨u ∘ b_t, u ∘ b_s⟩ ⟨v ∘ a_t, v ∘ a_s⟩,

which is exact in float64 and pays for a few positions of a wide layer; with many positions g_i is
built (`adadps.engine.rules.built`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from adadps.engine.rules.built import BuiltGradients
from adadps.engine.rules.gradients import LeafMap, OneProduct
from adadps.tensors.products import product
from adadps.tensors.squares import (
    CANCELLED,
    DOUBLE,
    TINY,
    inner_products,
    normalised_square,
    rounding_of,
    sums_of_squares,
    unit_squares,
)
from adadps.tensors.sums import WIDE, OuterSum

CHUNK = 2**23
"""This many numbers are held at once where per-example gradients are built."""

Measure = Callable[[Tensor, Tensor, LeafMap], Tensor]


@dataclass(frozen=True)
class Outer(OneProduct):
    """g_i = b_i a_iᵀ for inputs a (examples × in) and output gradients b (examples × out)."""

    inputs: Tensor
    output_gradients: Tensor

    @property
    def is_wide(self) -> bool:
        """Is the parameter in float32, and so large that its sums take time?"""
        size = self.inputs.shape[1] * self.output_gradients.shape[1]
        return self.inputs.dtype == torch.float32 and size >= WIDE

    def squares(self, leaf_map: LeafMap) -> Tensor:
        """Return ‖D ∘ g_i + M‖² by the closed form."""
        by_output, by_input, full = split(leaf_map)
        a, b = (self.inputs, by_input), (self.output_gradients, by_output)
        squares = scaled_squares(*a, *b, full)
        if leaf_map.offset is None:
            return squares
        return self._with_shift(squares, leaf_map, leaf_map.offset)

    def _with_shift(self, squares: Tensor, leaf_map: LeafMap, offset: Tensor) -> Tensor:
        a, b = self.inputs.double(), self.output_gradients.double()
        cross = leaf_map.product((b.shape[1], a.shape[1]), a.device) * offset
        inner = (b * (a @ cross.T)).sum(1)
        sizes = (b.abs() * (a.abs() @ cross.abs().T)).sum(1)
        return with_offset(squares, inner, sizes, offset)

    def weighted(self, weights: Tensor) -> OuterSum:
        """Return (w · b)ᵀ a."""
        return OuterSum(self.output_gradients, self.inputs, weights)

    def take(self, rows: Tensor) -> Outer:
        """Return the gradients of some of the examples."""
        return Outer(self.inputs[rows], self.output_gradients[rows])


@dataclass(frozen=True)
class OverTime:
    """g_i = Σ_t b_t a_tᵀ for inputs (examples × time × in), gradients (examples × time × out)."""

    inputs: Tensor
    output_gradients: Tensor

    def squares(self, leaf_map: LeafMap) -> Tensor:
        """Measure by inner products of positions, or by gradients built a few at a time."""
        (_, time, width), outputs = self.inputs.shape, self.output_gradients.shape[2]
        _, _, full = split(leaf_map)
        if full is None and leaf_map.offset is None:
            return self._in_pieces(_by_positions, time * time, leaf_map)
        return self._in_pieces(_by_gradients, width * outputs, leaf_map)

    def weighted(self, weights: Tensor) -> OuterSum:
        """Return (w · b)ᵀ a over all positions of all examples."""
        b = self.output_gradients.double() * weights.view(-1, 1, 1)
        return OuterSum(b.flatten(0, 1), self.inputs.flatten(0, 1))

    def take(self, rows: Tensor) -> OverTime:
        """Return the gradients of some of the examples."""
        return OverTime(self.inputs[rows], self.output_gradients[rows])

    def _in_pieces(self, measure: Measure, numbers: int, leaf_map: LeafMap) -> Tensor:
        size = max(1, CHUNK // numbers)
        pieces = zip(
            torch.split(self.inputs, size), torch.split(self.output_gradients, size), strict=True
        )
        return torch.cat([measure(a.double(), b.double(), leaf_map) for a, b in pieces])


PASSES = 24
"""Writing and reading a built gradient takes about as long as this many products per number."""


def in_cheapest_form(uses: OverTime) -> OverTime | BuiltGradients:
    """Return gradients that are built, unless inner products of positions take fewer operations.

    Those are in float64, and the sum is one more product of all positions.
    """
    (_, time, width), outputs = uses.inputs.shape, uses.output_gradients.shape[2]
    of_pairs = 2 * time * time * (width + outputs) + 2 * time * width * outputs
    if of_pairs <= (time + PASSES) * width * outputs:
        return uses
    return BuiltGradients(((_products, uses.inputs, uses.output_gradients),), width * outputs)


def before_building(built: BuiltGradients) -> OverTime | None:
    """Return what `in_cheapest_form` was given; None if these gradients are built otherwise."""
    if any(build is not _products for build, _, _ in built.uses):
        return None
    inputs, outputs = zip(*((a, b) for _, a, b in built.uses), strict=True)
    return OverTime(torch.cat(inputs, 1), torch.cat(outputs, 1))


def _products(a: Tensor, b: Tensor) -> Tensor:
    return torch.bmm(b.mT, a)


def scaled_squares(
    a: Tensor,
    by_input: Tensor | None,
    b: Tensor,
    by_output: Tensor | None,
    full: Tensor | None,
) -> Tensor:
    """Σ_jk b_j² D_jk² a_k² for every example; a factor of D that is missing is 1."""
    if full is None:
        rounding = 1 + DOUBLE * (a.shape[1] + b.shape[1] + 16)
        return sums_of_squares(b, by_output) * sums_of_squares(a, by_input) * rounding
    squared, largest = normalised_square(full)
    a_unit, a_size = unit_squares(a, by_input, squared.dtype)
    b_unit, b_size = unit_squares(b, by_output, squared.dtype)
    relative = inner_products(product(a_unit, squared), b_unit)
    rounding = rounding_of(squared.dtype) * (sum(full.shape) + 16)
    return bounded(relative, rounding, full.numel(), a_size * b_size * largest)


def bounded(
    relative: Tensor, rounding: float | Tensor, terms: int | Tensor, size: Tensor
) -> Tensor:
    """Undo the division by ``size``, and add all that rounding may have taken away."""
    return (relative * (1 + rounding) + TINY * terms) * size.square()


def with_offset(squares: Tensor, inner: Tensor, sizes: Tensor, offset: Tensor) -> Tensor:
    """‖D ∘ g‖² + 2⟨D ∘ g, M⟩ + ‖M‖²; the terms can cancel, so a bound on rounding is added."""
    constant = offset.square().sum()
    rounding = DOUBLE * offset.numel() * (squares + 2 * sizes + constant)
    return squares + 2 * inner + constant + rounding


def split(leaf_map: LeafMap) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Split D for a matrix into a row vector by output, one by input, and a full matrix."""
    by_output = by_input = full = None
    for factor in leaf_map.factors:
        if factor.shape[0] == 1:
            by_input = factor.double() if by_input is None else by_input * factor
        elif factor.shape[1] == 1:
            by_output = factor.T.double() if by_output is None else by_output * factor.T
        else:
            full = factor
    return by_output, by_input, full


def _by_positions(a: Tensor, b: Tensor, leaf_map: LeafMap) -> Tensor:
    by_output, by_input, _ = split(leaf_map)
    a = a if by_input is None else a * by_input
    b = b if by_output is None else b * by_output
    of_inputs, of_outputs = a @ a.mT, b @ b.mT
    terms = of_inputs * of_outputs
    sizes = _lengths(a) * _lengths(b)
    length = a.shape[1] ** 2 + a.shape[2] + b.shape[2]
    return terms.sum((1, 2)).clamp_min(0) + DOUBLE * length * sizes.sum(1).square()


def _by_gradients(a: Tensor, b: Tensor, leaf_map: LeafMap) -> Tensor:
    gradients = b.mT @ a
    diagonal = leaf_map.product(tuple(gradients.shape[1:]), a.device)
    sizes = (_lengths(a) * _lengths(b)).sum(1) * diagonal.abs().max()
    exact = _lengths(leaf_map.apply(gradients).flatten(1))
    return (exact + CANCELLED * sizes).square()


def _lengths(vectors: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=-1)
    return lengths
