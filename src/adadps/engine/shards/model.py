"""Models whose parameters are sharded by `torch.distributed.fsdp.fully_shard`.

What the user has called ``fully_shard`` on is a declaration: which parameters are gathered
together. Hooks of torch do not run here, because they know nothing of torch.func.vmap, nor of
layers that run by our own functions. The model that is differentiated is a *twin* of the user's
(`ShardedModel.twin`): its layers are torch's own, and its parameters have whole shapes, but no
memory. A bundle of them gets memory, and all shards, when its module begins to run, and loses both
when that ends; in the backward pass again, from the module's outputs on, until another bundle is
gathered. So a process holds its shards, and the bundle that is running with those around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from adadps.engine.group import Group
from adadps.engine.shards.declared import (
    bundles_of,
    is_declared,
    require_dealt_out,
    require_shape,
    shard_of,
    twin_of,
)
from adadps.engine.shards.gathering import GatheredBundle, hull_of
from adadps.engine.shards.group import Bundle, Form, ShardedGroup
from adadps.errors import ModelError
from adadps.tensors.products import with_known_signature
from adadps.tensors.sums import Params


class ShardedModel:
    """The user's model, the shards that this process holds of it, and the twin that runs.

    ``make_group`` builds the group of bundles and of the names of trained parameters.
    """

    def __init__(
        self,
        model: nn.Module,
        processes: int,
        make_group: Callable[[Sequence[Bundle], Iterable[str]], ShardedGroup],
    ) -> None:
        self.model = model
        self.reshard()
        named = dict(model.named_parameters())
        paths = bundles_of(model, named)
        for name, parameter in named.items():
            require_dealt_out(name, parameter, processes)
        forms = {name: Form.over(name, p.shape, processes) for name, p in named.items()}
        bundles = [Bundle(path, tuple(forms[n] for n in names)) for path, names in paths.items()]
        trained = [name for name, parameter in named.items() if parameter.requires_grad]
        self.group = make_group(bundles, trained)
        self.shards: Params = {name: shard_of(parameter) for name, parameter in named.items()}
        for name, form in forms.items():
            require_shape(form, self.shards[name], self.group)
        hulls = {name: hull_of(parameter) for name, parameter in named.items()}
        self._gathered = [
            GatheredBundle(bundle, self.group, [self.shards[f.name] for f in bundle.forms],
                          [hulls[f.name] for f in bundle.forms])
            for bundle in bundles
        ]  # fmt: skip
        self.twin = twin_of(model, {id(p): hulls[name] for name, p in named.items()})
        for bundle in self._gathered:
            module = self.twin.get_submodule(bundle.name)
            module.register_forward_pre_hook(_BeforeForward(self, bundle), prepend=True)
            module.register_forward_hook(_AfterForward(self, bundle))

    @property
    def bundles(self) -> list[list[str]]:
        """The names of the trained parameters of each bundle."""
        trained = set(self.group.trained)
        named = [
            [f.name for f in bundle.bundle.forms if f.name in trained] for bundle in self._gathered
        ]
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
            if is_declared(module):
                module.reshard()  # type: ignore[operator]

    def take(self, bundle: GatheredBundle) -> None:
        """Gather a bundle for the backward pass, and free all that are not around it."""
        for other in self._gathered:
            if other.running == 0 and not bundle.is_within(other):
                other.free()
        bundle.gather()

    def free(self) -> None:
        """Free all bundles."""
        for bundle in self._gathered:
            bundle.running = 0
            bundle.free()

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Surround passes: after them no bundle is gathered."""
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


def sharded_model(
    model: nn.Module,
    group: Group,
    make_group: Callable[[Sequence[Bundle], Iterable[str]], ShardedGroup],
) -> ShardedModel:
    """Return a model that was sharded, refused where there are no others to hold its shards."""
    if group.is_alone:
        raise ModelError(
            "Expected several processes for a model that `fully_shard` has sharded, found one. "
            "Start the script with torchrun, or leave `fully_shard` out."
        )
    return ShardedModel(model, group.size, make_group)


# --- where bundles are gathered ---


class _BeforeForward:
    """Gathers a bundle when its module begins to run."""

    def __init__(self, model: ShardedModel, bundle: GatheredBundle) -> None:
        self._model, self._bundle = model, bundle

    def __call__(self, module: nn.Module, given: Any) -> None:
        """Gather."""
        del module, given
        self._bundle.gather()
        self._bundle.running += 1


class _AfterForward:
    """Frees a bundle when its module has run, and has it gathered again on the way back."""

    def __init__(self, model: ShardedModel, bundle: GatheredBundle) -> None:
        self._model, self._bundle = model, bundle

    def __call__(self, module: nn.Module, given: Any, outputs: Any) -> Any:
        """Free, once the outputs are copies: they may be views of weights."""
        del module, given
        self._require_seen(tree_leaves(outputs))

        def marked(output: Tensor) -> Tensor:
            if not output.is_floating_point():
                return output
            found: Tensor = _OnTheWayBack.apply(self, output)  # type: ignore[no-untyped-call]
            return found

        found = tree_map_only(Tensor, marked, outputs)
        self._bundle.running -= 1
        if self._bundle.running == 0:
            self._bundle.free()
        return found

    def _require_seen(self, leaves: Sequence[Any]) -> None:
        """Refuse outputs that hide their tensors: their gradients would arrive unnoticed."""
        seen = any(isinstance(leaf, Tensor) and leaf.is_floating_point() for leaf in leaves)
        other = [leaf for leaf in leaves if not isinstance(leaf, _IN_THE_OPEN)]
        if other and not seen:
            raise ModelError(
                "Expected tensors, or tuples, lists and mappings of tensors, as the outputs of "
                f"'{self._bundle.name or 'the model'}', found {type(other[0]).__name__}. Return "
                "its tensors, or call `fully_shard` on modules that return some."
            )

    def gather(self) -> None:
        """Gather the bundle for the backward pass of its module."""
        self._model.take(self._bundle)


_IN_THE_OPEN = (Tensor, int, float, str, type(None))
"""What an output can be made of."""


@with_known_signature
class _OnTheWayBack(torch.autograd.Function):
    """The same values; a bundle is gathered when their gradient arrives."""

    @staticmethod
    def forward(bundle: _AfterForward, values: Tensor) -> Tensor:  # noqa: ARG004
        """Return a copy: a view of another function's output could not be written to."""
        return values.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        """Keep the bundle."""
        ctx.bundle = inputs[0]

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[None, Tensor]:
        """Gather."""
        ctx.bundle.gather()
        return None, above

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Tensor, Any]:  # noqa: ARG004
        """Treat all examples at once."""
        found: Tensor = _OnTheWayBack.apply(*inputs)  # type: ignore[no-untyped-call]
        return found, in_dims[1]
