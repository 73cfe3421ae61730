"""Parameters that have whole shapes, and memory only while their module runs.

*How memory comes and goes.* The storage of a parameter is given size 0, and later its size again.
Whatever torch keeps of it for the backward pass shares that storage, and finds the weights in it.
Writes into gathered weights are lost when the bundle is freed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from adadps.engine.shards.group import Bundle, ShardedGroup
from adadps.errors import ModelError


class GatheredParameter(nn.Parameter):
    """A parameter that may be read only while its bundle is gathered."""

    _bundle: GatheredBundle
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
                        one._bundle.require_gathered()
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


def hull_of(parameter: nn.Parameter) -> GatheredParameter:
    """A parameter of the whole shape, without memory."""
    empty = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
    found = torch.Tensor._make_subclass(GatheredParameter, empty, parameter.requires_grad)
    assert isinstance(found, GatheredParameter)
    return found


class GatheredBundle:
    """A bundle, its shards here, and the parameters of the twin that it gives memory to."""

    def __init__(
        self,
        bundle: Bundle,
        group: ShardedGroup,
        shards: Sequence[Tensor],
        hulls: Sequence[GatheredParameter],
    ) -> None:
        self.bundle, self.name = bundle, bundle.name
        self._group, self._shards = group, shards
        # Writes through `data` leave the version of the parameter as it is.
        self._whole = [hull.data.as_subclass(Tensor) for hull in hulls]
        self.running = 0
        """How many forward passes of its module are going on."""
        self._is_gathered = True
        for hull in hulls:
            hull._bundle = self
        self.free()

    def is_within(self, other: GatheredBundle) -> bool:
        """Is this bundle the other one, or inside of it?"""
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
            found = self._group.gathered(self.bundle, [shard.cpu() for shard in self._shards])
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
        stack.enter_context(_disable_current_modes())
        stack.enter_context(torch._C.DisableTorchFunction())
        stack.enter_context(torch.no_grad())
        yield
