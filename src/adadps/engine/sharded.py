"""Models whose parameters are sharded by `torch.distributed.fsdp.fully_shard`.

What the user has called ``fully_shard`` on is a declaration: which parameters are gathered
together. Hooks of torch do not run here, because they know nothing of torch.func.vmap, nor of
layers that run by our own functions. The model that is differentiated is a *twin* of the user's
(`ShardedModel.twin`): its layers are torch's own, and its parameters have whole shapes, but no
memory. A unit of them gets memory, and all shards, when its module begins to run, and loses both
when that ends; in the backward pass again, from the module's outputs on, until another unit is
gathered. So a process holds its shards, and the unit that is running with those around it.

*How memory comes and goes.* The storage of a parameter is given size 0, and later its size again.
Whatever torch keeps of it for the backward pass shares that storage, and finds the weights in it.
Writes into gathered weights are lost when the unit is freed.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from adadps.engine.group import Group
from adadps.engine.sharded_group import Form, ShardedGroup, Unit
from adadps.errors import AdadpsError, ModelError
from adadps.tensors.products import with_known_signature
from adadps.tensors.sums import Params


def is_sharded(model: nn.Module) -> bool:
    """Has the model parameters that are dealt out over processes?"""
    return any(hasattr(parameter, "device_mesh") for parameter in model.parameters())


class ShardedModel:
    """The user's model, the shards that this process holds of it, and the twin that runs.

    ``make_group`` builds the group of units and of the names of trained parameters.
    """

    def __init__(
        self,
        model: nn.Module,
        processes: int,
        make_group: Callable[[Sequence[Unit], Iterable[str]], ShardedGroup],
    ) -> None:
        self.model = model
        self.reshard()
        named = dict(model.named_parameters())
        paths = _units_of(model, named)
        for name, parameter in named.items():
            _require_dealt_out(name, parameter, processes)
        forms = {name: Form.over(name, p.shape, processes) for name, p in named.items()}
        units = [Unit(path, tuple(forms[n] for n in names)) for path, names in paths.items()]
        trained = [name for name, parameter in named.items() if parameter.requires_grad]
        self.group = make_group(units, trained)
        self.shards: Params = {name: _shard_of(parameter) for name, parameter in named.items()}
        for name, form in forms.items():
            _require_shape(form, self.shards[name], self.group)
        hulls = {name: _hull(parameter) for name, parameter in named.items()}
        self._gathered = [
            _GatheredUnit(unit, self.group, [self.shards[f.name] for f in unit.forms],
                          [hulls[f.name] for f in unit.forms])
            for unit in units
        ]  # fmt: skip
        self.twin = _twin_of(model, {id(p): hulls[name] for name, p in named.items()})
        for unit in self._gathered:
            module = self.twin.get_submodule(unit.name)
            module.register_forward_pre_hook(_BeforeForward(self, unit), prepend=True)
            module.register_forward_hook(_AfterForward(self, unit))

    @property
    def units(self) -> list[list[str]]:
        """The names of the trained parameters of each unit."""
        trained = set(self.group.trained)
        named = [[f.name for f in unit.unit.forms if f.name in trained] for unit in self._gathered]
        return [names for names in named if names]

    @property
    def trained(self) -> Params:
        """The shards of the parameters that are trained, which share memory with the model."""
        return {name: self.shards[name] for name in self.group.trained}

    @property
    def whole_form(self) -> Params:
        """Tensors with the whole shapes of the trained parameters, which take no memory."""
        found = {}
        for name in self.group.trained:
            shard = self.shards[name]
            found[name] = shard.new_zeros(()).expand(self.group.forms[name].shape)
        return found

    def reshard(self) -> None:
        """Free what torch's own hooks have gathered in the user's model.

        After a forward pass without a backward pass they keep it, though the shards move.
        """
        for module in self.model.modules():
            if _is_declared(module):
                module.reshard()  # type: ignore[operator]

    def take(self, unit: _GatheredUnit) -> None:
        """Gather a unit for the backward pass, and free all that are not around it."""
        for other in self._gathered:
            if other.running == 0 and not unit.is_within(other):
                other.free()
        unit.gather()

    def free(self) -> None:
        """Free all units."""
        for unit in self._gathered:
            unit.running = 0
            unit.free()

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Surround passes: after them no unit is gathered."""
        try:
            yield
        finally:
            self.free()

    @contextmanager
    def moved(self, changes: Callable[[str, Tensor], Tensor]) -> Iterator[None]:
        """Change the trained shards for a while."""
        before = {name: shard.clone() for name, shard in self.trained.items()}
        try:
            for name, shard in self.trained.items():
                shard.add_(changes(name, shard))
            self.free()
            yield
        finally:
            for name, shard in self.trained.items():
                shard.copy_(before[name])
            self.free()


# --- what the user has declared ---


def _is_declared(module: nn.Module) -> bool:
    from torch.distributed.fsdp import FSDPModule

    return isinstance(module, FSDPModule)


def _units_of(model: nn.Module, named: Mapping[str, nn.Parameter]) -> dict[str, list[str]]:
    """The names of parameters by the nearest module around them that was sharded."""
    declared = {name for name, module in model.named_modules() if _is_declared(module)}
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
                f"Expected full precision, found a MixedPrecisionPolicy at '{path or 'the model'}': "
                "norms and sums are computed in full precision. Call `fully_shard` without it, and "
                "use `torch.autocast` inside of `forward`."
            )


def _require_dealt_out(name: str, parameter: Any, processes: int) -> None:
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


def _require_shape(form: Form, shard: Tensor, group: ShardedGroup) -> None:
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


def _shard_of(parameter: Any) -> Tensor:
    shard: Tensor = parameter.detach().to_local()
    return shard


# --- gathering ---


class GatheredParameter(nn.Parameter):
    """A parameter that may be read only while its unit is gathered."""

    _unit: _GatheredUnit
    comes_and_goes = True

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Refuse a read of weights that are not there, then call the function."""
        with torch._C.DisableTorchFunctionSubclass():
            if func not in _ABOUT_FORM:
                for one in tree_leaves((args, kwargs or {})):
                    if isinstance(one, GatheredParameter):
                        one._unit.require_gathered()
            return func(*args, **(kwargs or {}))


_TENSOR: Any = Tensor
_ABOUT_FORM = {
    getattr(_TENSOR, name).__get__
    for name in ("shape", "dtype", "device", "layout", "requires_grad", "is_leaf", "ndim", "grad",
                 "is_sparse", "_version", "is_meta", "is_cuda", "data")
} | {
    getattr(_TENSOR, name)
    for name in ("size", "dim", "numel", "__len__", "is_floating_point", "requires_grad_", "detach",
                 "element_size", "untyped_storage", "is_contiguous", "stride", "is_complex")
}  # fmt: skip
"""What can be asked of a parameter without reading a weight."""


def _hull(parameter: nn.Parameter) -> GatheredParameter:
    """A parameter of the whole shape, without memory."""
    empty = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
    found = torch.Tensor._make_subclass(GatheredParameter, empty, parameter.requires_grad)
    assert isinstance(found, GatheredParameter)
    return found


class _GatheredUnit:
    """A unit, its shards here, and the parameters of the twin that it gives memory to."""

    def __init__(
        self,
        unit: Unit,
        group: ShardedGroup,
        shards: Sequence[Tensor],
        hulls: Sequence[GatheredParameter],
    ) -> None:
        self.unit, self.name = unit, unit.name
        self._group, self._shards = group, shards
        # Writes through `data` leave the version of the parameter as it is.
        self._whole = [hull.data.as_subclass(Tensor) for hull in hulls]
        self.running = 0
        """How many forward passes of its module are going on."""
        self._is_gathered = True
        for hull in hulls:
            hull._unit = self
        self.free()

    def is_within(self, other: _GatheredUnit) -> bool:
        """Is this unit the other one, or inside of it?"""
        return other.name in ("", self.name) or self.name.startswith(f"{other.name}.")

    def require_gathered(self) -> None:
        """Refuse a read of weights that are not there."""
        if not self._is_gathered:
            raise ModelError(
                f"Expected parameters that are read while their own module runs, found one of "
                f"'{self.name or 'the model'}' that is read outside of it. Call `fully_shard` on a "
                "module around all that read it, or leave it to that of the model."
            )

    def gather(self) -> None:
        """Take over the shards of all processes, unless they are here."""
        if self._is_gathered:
            return
        with _outside_of_transforms():
            found = self._group.gathered(self.unit, [shard.cpu() for shard in self._shards])
            for place, whole in enumerate(self._whole):
                size = whole.numel() * whole.element_size()
                whole.untyped_storage().resize_(size)
                parts = [own[place] for own in found]
                line = whole.view(-1).view(torch.uint8) if whole.numel() else None
                if line is not None:
                    line.copy_(torch.cat(parts))
        self._is_gathered = True

    def free(self) -> None:
        """Give the memory back."""
        if not self._is_gathered:
            return
        self._is_gathered = False
        for whole in self._whole:
            if not whole.untyped_storage().resizable():
                raise ModelError(
                    f"Expected weights of '{self.name or 'the model'}' that only torch reads, "
                    "found an array that shares their memory. Leave `.numpy()` of parameters out."
                )
            whole.untyped_storage().resize_(0)


@contextmanager
def _outside_of_transforms() -> Iterator[None]:
    """No graph, no torch.func and no modes: what happens here is no part of a pass."""
    with ExitStack() as stack:
        stack.enter_context(torch._C._DisableFuncTorch())
        stack.enter_context(_disable_current_modes())  # type: ignore[no-untyped-call]
        stack.enter_context(torch._C.DisableTorchFunction())
        stack.enter_context(torch.no_grad())
        yield


class _BeforeForward:
    """Gathers a unit when its module begins to run."""

    def __init__(self, model: ShardedModel, unit: _GatheredUnit) -> None:
        self._model, self._unit = model, unit

    def __call__(self, module: nn.Module, given: Any) -> None:
        """Gather."""
        del module, given
        self._unit.gather()
        self._unit.running += 1


class _AfterForward:
    """Frees a unit when its module has run, and has it gathered again on the way back."""

    def __init__(self, model: ShardedModel, unit: _GatheredUnit) -> None:
        self._model, self._unit = model, unit

    def __call__(self, module: nn.Module, given: Any, outputs: Any) -> Any:
        """Free."""
        del module, given
        self._unit.running -= 1
        if self._unit.running == 0:
            self._unit.free()

        def marked(output: Tensor) -> Tensor:
            if not output.is_floating_point():
                return output
            found: Tensor = _OnTheWayBack.apply(self, output)  # type: ignore[no-untyped-call]
            return found

        return tree_map_only(Tensor, marked, outputs)

    def gather(self) -> None:
        """Gather the unit for the backward pass of its module."""
        self._model.take(self._unit)


@with_known_signature
class _OnTheWayBack(torch.autograd.Function):
    """The same values; a unit is gathered when their gradient arrives."""

    @staticmethod
    def forward(unit: _AfterForward, values: Tensor) -> Tensor:  # noqa: ARG004
        """Return a copy: a view of another function's output could not be written to."""
        return values.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        """Keep the unit."""
        ctx.unit = inputs[0]

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[None, Tensor]:
        """Gather."""
        ctx.unit.gather()
        return None, above

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], unit: Any, values: Tensor) -> tuple[Tensor, Any]:  # noqa: ARG004
        """Treat all examples at once."""
        found: Tensor = _OnTheWayBack.apply(unit, values)  # type: ignore[no-untyped-call]
        return found, in_dims[1]


# --- the twin ---

_OF_TORCH = ("__composable_api_state_key", "_is_fsdp_managed_module", "_fsdp_use_orig_params")


def _twin_of(model: nn.Module, hulls: Mapping[int, GatheredParameter]) -> nn.Module:
    """A copy of the model with other parameters, torch's own layers, and the same buffers."""
    memo: dict[int, Any] = {**hulls, **{id(buffer): buffer for buffer in model.buffers()}}
    try:
        for module in reversed(list(model.modules())):  # the inner ones first
            if _is_declared(module):
                kind = type(module).__mro__[2]
                plain = kind.__new__(kind)
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
            value = type(value)(others)
        found[name] = value
    return found


def _is_of_torch(hook: Any) -> bool:
    owner = getattr(hook, "__self__", None)
    return type(owner).__module__.startswith("torch.distributed.")


def sharded_model(
    model: nn.Module, group: Group, make_group: Callable[[Sequence[Unit], Iterable[str]], ShardedGroup]
) -> ShardedModel | None:
    """Return the model as a sharded one; None if it is not sharded."""
    if not is_sharded(model):
        return None
    if group.is_alone:
        raise ModelError(
            "Expected several processes for a model that `fully_shard` has sharded, found one. "
            "Start the script with torchrun, or leave `fully_shard` out."
        )
    return ShardedModel(model, group.size, make_group)
