"""The gradients of a batch: one form per parameter, and what stages have done to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional

from adadps.engine.moments import Moments
from adadps.engine.rules.built import KEPT, BuiltGradients
from adadps.engine.rules.gradients import Affine, OneProduct, PerExampleGradients
from adadps.engine.rules.whitening import bias_of, moments_of, whitened
from adadps.engine.waist import Units
from adadps.errors import OrderError
from adadps.tensors.squares import CANCELLED
from adadps.tensors.sums import OuterSum, Params, RowSparse, SinglePrecision, Sum, Sums, dense


@dataclass(frozen=True)
class LayeredGradients:
    """A `PerExampleGradients` per parameter, and the maps that stages have applied to them.

    The last ``padding`` units are synthetic: they are absent, and no result contains them. With
    ``single``, wide layers are summed in float32, and norms are raised by what that costs; ``rows``
    is the size of the whole batch, of which this may be a piece. ``shared`` names parameters that
    are used in several places, or in others than their own layer.
    """

    leaves: Mapping[str, PerExampleGradients]
    present: Tensor
    units: Units | None = None
    affine: Affine = field(default_factory=Affine)
    padding: int = 0
    single: SinglePrecision | None = None
    rows: int = 0
    shared: frozenset[str] = frozenset()

    def scale(self, diagonal: Params) -> LayeredGradients:
        """D ∘ g."""
        return replace(self, affine=self.affine.scale(diagonal))

    def shift(self, beta: float, mean: Params) -> LayeredGradients:
        """β g + (1 - β) M."""
        return replace(self, affine=self.affine.shift(beta, mean))

    def whiten(self, inputs: Params, outputs: Params) -> LayeredGradients:
        """Multiply gradients by matrices along the inputs and the outputs of their layers."""
        for name in dict.fromkeys([*inputs, *outputs]):
            if self.affine.maps.get(name) or self.affine.maps.get(bias_of(name)):
                raise OrderError(
                    "Expected matrices before any scale or shift of the same weights, found "
                    f"'{name}' scaled already. Place `precondition(whiten(...))` first."
                )
        found, finite = whitened(self.leaves, inputs, outputs)
        leaves = _kept_in_memory(found)
        if finite is None:
            return replace(self, leaves=leaves)
        kept = finite if self.units is None else self.units.present(finite)
        return replace(self, leaves=leaves, present=self.present & kept)

    def moments(self) -> Moments:
        """Return second moments of what layers read and write, summed over all rows but padding."""
        rows = torch.arange(len(self.present) - self.padding, device=self.present.device)
        leaves = {name: leaf.take(rows) for name, leaf in self.leaves.items()}
        return moments_of(leaves, self.shared)

    def in_single(self, single: SinglePrecision, rows: int) -> LayeredGradients:
        """Return the same, with sums of wide layers in float32; the whole batch has ``rows``."""
        return replace(self, single=single, rows=rows)

    def parts(self) -> Iterator[LayeredGradients]:
        """Yield the batch itself."""
        yield self

    def norms(self) -> Tensor:
        """‖D ∘ g_i + M‖ over all parameters, in float64."""
        real = slice(0, len(self.present) - self.padding)
        if self.units is not None:
            return self._norms_of_groups(self.units)[real]
        squares = torch.zeros_like(self.present, dtype=torch.float64)
        for name, leaf in self.leaves.items():
            squares += leaf.squares(self.affine.of(name))
        return torch.where(self.present, squares, 0).clamp_min(0).sqrt()[real] * (1 + self.charge)

    def weighted_sum(self, weights: Tensor) -> Sums:
        """Σ_i w_i (D ∘ g_i + M)."""
        every = functional.pad(weights.double(), (0, self.padding))
        masked = torch.where(self.present, every, 0)
        of_row = masked
        if self.units is not None:
            of_row = masked[self.units.labels] * self.units.row_weights()
        count = float(masked.sum())
        return {
            name: self.affine.of(name).apply_to_sum(self._summed(name, of_row), count)
            for name in self.leaves
        }

    @property
    def charge(self) -> float:
        """The share of every norm that is added for the rounding of sums in float32.

        It depends on public quantities alone: the sizes of layers and the expected batch size.
        """
        if self.single is None or not any(self._in_single(name) for name in self.leaves):
            return 0.0
        return self.single.charge

    def _in_single(self, name: str) -> bool:
        """Is this parameter summed in float32, as far as public quantities tell?

        A shift M and the members of a unit can cancel: there the terms of a sum have no bound.
        """
        leaf = self.leaves[name]
        if self.single is None or self.units is not None or not isinstance(leaf, OneProduct):
            return False
        return leaf.is_wide and self.affine.of(name).offset is None

    def _summed(self, name: str, weights: Tensor) -> Sum:
        total = self.leaves[name].weighted(weights)
        if isinstance(total, OuterSum) and self.single is not None and self._in_single(name):
            total.terms_in_single = self.single.terms_for(self.rows, weights.device)
        return total

    def _norms_of_groups(self, units: Units) -> Tensor:
        """Build the gradient of one group at a time and measure it."""
        norms = torch.zeros_like(self.present, dtype=torch.float64)
        of_row = units.row_weights()
        for unit in torch.nonzero(self.present).flatten().tolist():
            rows = torch.nonzero(units.labels == unit).squeeze(1)
            members = {name: leaf.take(rows) for name, leaf in self.leaves.items()}
            weights = of_row[rows]
            squares = [self._square(name, leaf.weighted(weights)) for name, leaf in members.items()]
            norms[unit] = torch.stack(squares).sum().sqrt()
            norms[unit] += CANCELLED * (weights * self._sizes(members, len(rows))).sum()
        return norms

    def _sizes(self, members: Mapping[str, PerExampleGradients], count: int) -> Tensor:
        """The norms of the members of a group, which can cancel in their sum."""
        squares = torch.zeros(count, dtype=torch.float64, device=self.present.device)
        for name, leaf in members.items():
            squares += leaf.squares(replace(self.affine.of(name), offset=None))
        return squares.sqrt()

    def _square(self, name: str, total: Sum) -> Tensor:
        mapped = self.affine.of(name).apply_to_sum(total, 1.0)
        values = mapped.values if isinstance(mapped, RowSparse) else dense(mapped)
        return values.square().sum()


def layered(
    leaves: Mapping[str, PerExampleGradients], finite: Tensor, units: Units | None, synthetic: int
) -> LayeredGradients:
    """Return gradients of rows of which the last ``synthetic`` are padding, and absent."""
    leaves = _kept_in_memory(leaves)
    if units is not None:
        padded = units.followed_by(synthetic)
        present = padded.present(finite)
        present[units.count :] = False
        return LayeredGradients(leaves, present, padded, padding=padded.count - units.count)
    real = torch.arange(len(finite), device=finite.device) < len(finite) - synthetic
    return LayeredGradients(leaves, finite & real, padding=synthetic)


def _kept_in_memory(leaves: Mapping[str, PerExampleGradients]) -> dict[str, PerExampleGradients]:
    """Return the same, with as many built gradients as fit in memory between norms and sums."""
    left, found = KEPT, dict(leaves)
    for name, leaf in leaves.items():
        if isinstance(leaf, BuiltGradients) and leaf.numbers * len(leaf) <= left:
            left -= leaf.numbers * len(leaf)
            found[name] = replace(leaf, kept=True)
    return found
