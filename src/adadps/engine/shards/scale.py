"""Side information as large as the model, of which each process holds a shard.

Norms need D and M of whole layers: they are gathered for one parameter at a time, and forgotten.
Sums do not: D ∘ Σ w_i g_i is taken entry by entry, on the rows that a process holds, after the
sums were dealt out (`adadps.engine.shards.group.Mapped`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from adadps.engine.rules.gradients import Affine, LeafMap
from adadps.engine.rules.layered import LayeredGradients
from adadps.engine.shards.group import Mapped, ShardedGroup
from adadps.errors import ContractError
from adadps.tensors.sums import Params


@dataclass(frozen=True)
class ShardedAffine(Affine):
    """Scales and shifts in their order, of which this process has its shards."""

    group: ShardedGroup | None = None
    acts: tuple[tuple[float | None, Params], ...] = ()
    """β and M of a shift, None and D of a scale."""

    def scale(self, diagonal: Params) -> ShardedAffine:
        """Return these maps followed by multiplication by ``diagonal``."""
        return replace(self, acts=(*self.acts, (None, diagonal)))

    def shift(self, beta: float, mean: Params) -> ShardedAffine:
        """Return these maps followed by g ↦ β g + (1 - β) ``mean``."""
        return replace(self, acts=(*self.acts, (beta, mean)))

    def of(self, name: str) -> LeafMap:
        """Gather the map of one whole parameter; all processes ask for it together."""
        assert self.group is not None
        group, form = self.group, self.group.forms[name]
        return self._map(name, lambda own: group.whole(form, own).to(own.device))

    def of_shard(self, name: str) -> LeafMap:
        """Return the map of the rows that this process holds."""
        return self._map(name, lambda own: own)

    def _map(self, name: str, given: Callable[[Tensor], Tensor]) -> LeafMap:
        found = LeafMap()
        for beta, held in self.acts:
            value = given(held[name].double())
            found = found.scaled(value) if beta is None else found.shifted(beta, value)
        return found


@dataclass(frozen=True)
class MappedInShards(LayeredGradients):
    """Gradients that are scaled and shifted by side information in shards."""

    @classmethod
    def of(cls, found: LayeredGradients, group: ShardedGroup) -> MappedInShards:
        """Return the same gradients, to be mapped in shards."""
        if found.units is not None:  # refused before the run, by `require_rows`
            raise ContractError("Expected examples that are clipped alone, found users.")
        held: dict[str, Any] = {item.name: getattr(found, item.name) for item in fields(found)}
        return cls(**{**held, "affine": ShardedAffine(group=group)})

    def weighted_sum(self, weights: Tensor) -> Mapped:
        """Return Σ_i w_i g_i, with the maps that its shards will go through."""
        every = functional.pad(weights.double(), (0, self.padding))
        of_row = torch.where(self.present, every, 0)
        affine = self.affine
        assert isinstance(affine, ShardedAffine)
        sums = {name: self._summed(name, of_row) for name in self.leaves}
        return Mapped(sums, affine.of_shard, float(of_row.sum()))

    def _in_single(self, name: str) -> bool:
        """Sums are in float64: what float32 loses to underflow must not be multiplied by D."""
        del name
        return False
