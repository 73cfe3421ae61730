"""The engine of a model that is sharded over processes: rules by layer, or a refusal.

It is chosen as `adadps.engine.choice` chooses it, but no pass stores the gradients of more than one
bundle: not even those of two synthetic rows, with which the rules are compared.
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from adadps.data.examples import Examples
from adadps.engine.by_example import modes_of
from adadps.engine.choice import CANNOT_RUN, IN_HALF, ghost_for, is_exact, runs, same_sums
from adadps.engine.general import GeneralEngine
from adadps.engine.ghost import GhostEngine
from adadps.engine.losses import Loss
from adadps.engine.passes.model_state import evaluating
from adadps.engine.rules.layers import require_supported
from adadps.engine.rules.structure import PythonGenerators
from adadps.engine.shards.model import ShardedModel
from adadps.errors import ModelError
from adadps.tensors.sums import dense


def engine_of_shards(sharded: ShardedModel, loss: Loss, probe: Examples) -> GhostEngine:
    """Return the engine for the twin of a sharded model; ``probe`` holds synthetic rows."""
    twin = sharded.twin
    for name, module in twin.named_modules():
        require_supported(module, name)
    with sharded.passing():
        found = ghost_for(twin, loss, probe.take(torch.arange(1)))
        if found is None or not _agrees(sharded, found, probe):
            raise ModelError(
                "Expected layers with rules in a model that is sharded, found one whose gradients "
                "would all be stored for every example. Use the layers on the page on layers, "
                "each through its own `forward`."
            )
        generators = PythonGenerators()
        if not runs(found, probe) or generators.have_drawn():
            raise ModelError(
                "Expected a model that runs in training mode as in evaluation mode, and draws from "
                "torch's generator alone, found another one. Take its other draws out."
            )
        found.modes = modes_of(twin)
    return found


def _agrees(sharded: ShardedModel, found: GhostEngine, probe: Examples) -> bool:
    """Do the rules give the gradients of two synthetic rows, away from the starting point?"""

    def away(name: str, shard: Tensor) -> Tensor:
        seed = zlib.crc32(f"{name} in process {sharded.group.rank}".encode())
        generator = torch.Generator().manual_seed(seed)
        return 0.1 * torch.randn(shard.shape, generator=generator).to(shard)

    general = GeneralEngine(sharded.twin, found.loss)
    share = 1e-3 if is_exact(found) else IN_HALF
    device = next(sharded.twin.parameters()).device
    batch = probe.take(torch.tensor([0, len(probe) - 1])).to(device)
    params = {n: p.detach() for n, p in sharded.twin.named_parameters() if p.requires_grad}
    with sharded.moved(away), evaluating(sharded.twin):
        try:
            by_rules = found.per_unit(params, batch, None)
            for weights in torch.eye(2, dtype=torch.float64, device=device):
                sums = by_rules.weighted_sum(weights)
                largest = max(float(dense(value).abs().max()) for value in sums.values())
                for names in sharded.bundles:
                    own = {name: params[name] for name in names}
                    with torch.no_grad():
                        stored = general.per_unit(own, batch, None)
                    if not torch.equal(by_rules.present, stored.present):
                        return False
                    if not same_sums(sums, stored.weighted_sum(weights), share, largest):
                        return False
                    sharded.free()
        except CANNOT_RUN:
            return False
    return True
