"""What the user has declared by `torch.distributed.fsdp.fully_shard`, and the twin of the model."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from adadps.engine.shards.gathering import GatheredParameter
from adadps.engine.shards.group import Form, ShardedGroup
from adadps.errors import AdadpsError, ModelError


def is_declared(module: nn.Module) -> bool:
    """Has the user called ``fully_shard`` on it?"""
    from torch.distributed.fsdp import FSDPModule

    return isinstance(module, FSDPModule)


def bundles_of(model: nn.Module, named: Mapping[str, nn.Parameter]) -> dict[str, list[str]]:
    """The names of parameters by the nearest module around them that was sharded."""
    declared = {name for name, module in model.named_modules() if is_declared(module)}
    if "" not in declared:
        raise ModelError(
            "Expected `fully_shard` on the model itself, found it on parts of it alone. Call "
            "`fully_shard(model)` after its parts, as torch asks for."
        )
    for path in declared:
        _require_full_precision(path, model.get_submodule(path))
    found: dict[str, list[str]] = {}
    for name in named:
        path = name
        while path not in declared:
            path = path.rpartition(".")[0]
        found.setdefault(path, []).append(name)
    return found


def _require_full_precision(path: str, module: Any) -> None:
    groups = getattr(module._get_fsdp_state(), "_fsdp_param_groups", None)
    one = getattr(module._get_fsdp_state(), "_fsdp_param_group", None)
    for group in groups or [one]:
        policy = getattr(group, "mp_policy", None)
        if any(getattr(policy, name, None) for name in ("param_dtype", "output_dtype")):
            raise ModelError(
                "Expected norms and sums in full precision, found a MixedPrecisionPolicy at "
                f"'{path or 'the model'}'. Call `fully_shard` without it, and use `torch.autocast` "
                "inside of `forward`."
            )


def require_dealt_out(name: str, parameter: Any, processes: int) -> None:
    """Refuse a parameter that is not sharded, or in another way than by rows."""
    mesh = getattr(parameter, "device_mesh", None)
    if mesh is None:
        found = "one that is whole in every process"
    elif mesh.ndim != 1 or mesh.size() != processes:
        found = f"a mesh of {tuple(mesh.shape)} for {processes} processes"
    elif mesh.mesh.tolist() != list(range(processes)):
        found = "a mesh in another order"
    elif len(parameter.placements) != 1 or getattr(parameter.placements[0], "dim", None) != 0:
        found = f"{parameter.placements}"
    elif parameter.is_meta:
        found = "a parameter without values, on the device 'meta'"
    else:
        return
    raise ModelError(
        f"Expected parameters whose rows are dealt out over all processes, found {found} at "
        f"'{name}'. Call `fully_shard(model)` without a mesh, placements or ignored parameters."
    )


def require_shape(form: Form, shard: Tensor, group: ShardedGroup) -> None:
    """Refuse a shard of another shape than the rows of this process have."""
    if tuple(shard.shape) != form.shape_of(group.rank):
        raise ModelError(
            f"Expected {form.shape_of(group.rank)} as the shard of '{form.name}' in process "
            f"{group.rank}, found {tuple(shard.shape)}. Use `fully_shard` of torch as it is."
        )
    if not shard.is_contiguous():
        raise ModelError(
            f"Expected shards in one piece of memory, found '{form.name}' in another layout. Call "
            "`fully_shard` on contiguous parameters."
        )


def shard_of(parameter: Any) -> Tensor:
    """Return the rows of a parameter that this process holds, in the memory of the model."""
    shard: Tensor = parameter.detach().to_local()
    return shard


# --- the twin ---

_OF_TORCH = ("__composable_api_state_key", "_is_fsdp_managed_module", "_fsdp_use_orig_params")


def twin_of(model: nn.Module, hulls: Mapping[int, GatheredParameter]) -> nn.Module:
    """A copy of the model with other parameters, torch's own layers, and the same buffers."""
    memo: dict[int, Any] = {**hulls, **{id(buffer): buffer for buffer in model.buffers()}}
    try:
        for module in reversed(list(model.modules())):  # the inner ones first
            if is_declared(module):
                kind = type(module).__mro__[2]
                plain: Any = object.__new__(kind)
                memo[id(module)] = plain
                plain.__dict__.update(copy.deepcopy(_without_torch(vars(module)), memo))
        twin: nn.Module = copy.deepcopy(model, memo)
    except AdadpsError:
        raise
    except Exception as error:
        raise ModelError(
            "Expected a model that can be copied but for its weights, found that it cannot: "
            f"{error}. Leave locks, files and generators out of its attributes."
        ) from error
    for layer in twin.modules():
        if isinstance(layer, nn.RNNBase):
            weights = [getattr(layer, name) for name in layer._flat_weights_names]
            layer._flat_weights = weights
            layer._flat_weight_refs = [weakref.ref(weight) for weight in weights]
    return twin


def _without_torch(held: Mapping[str, Any]) -> dict[str, Any]:
    """What a module holds, without what ``fully_shard`` has added."""
    found = {}
    for name, value in held.items():
        if name.startswith(_OF_TORCH):
            continue
        if name.endswith("_hooks") and isinstance(value, dict):
            others = {key: hook for key, hook in value.items() if not _is_of_torch(hook)}
            found[name] = type(value)(others)
        else:
            found[name] = value
    return found


def _is_of_torch(hook: Any) -> bool:
    owner = getattr(hook, "__self__", None)
    return type(owner).__module__.startswith("torch.distributed.")
