"""Parameters that call before anything reads them, so that late noise is there in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn


class LateParameter(nn.Parameter):
    """A parameter whose rows get their noise before anything reads them."""

    _settle: Callable[[], None]

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Settle, then do what was asked for."""
        with torch._C.DisableTorchFunctionSubclass():
            if func not in _ABOUT_SHAPE:
                for parameter in _late_parameters((args, kwargs or {})):
                    parameter._settle()
            return func(*args, **(kwargs or {}))

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        if id(self) not in memo:
            memo[id(self)] = nn.Parameter(self.detach().clone(), self.requires_grad)
        held: nn.Parameter = memo[id(self)]
        return held

    def __reduce_ex__(self, protocol: Any) -> Any:
        plain: Any = nn.Parameter(self.detach(), self.requires_grad)
        return plain.__reduce_ex__(protocol)


def can_watch(parameter: nn.Parameter) -> bool:
    """Is it a plain parameter of torch, or one that is watched already?"""
    return type(parameter) in {nn.Parameter, LateParameter}


def watch(parameter: nn.Parameter, settle: Callable[[], None]) -> None:
    """Call ``settle`` before every read of ``parameter``, through whatever name it is reached."""
    parameter.__class__ = LateParameter
    parameter._settle = settle  # type: ignore[attr-defined]


def settle_and_unwatch(parameter: nn.Parameter) -> None:
    """Let a watched parameter get its noise, and make it a plain one."""
    if isinstance(parameter, LateParameter):
        parameter._settle()
        unwatch(parameter)


def unwatch(parameter: nn.Parameter) -> None:
    """Make it a plain parameter again."""
    if isinstance(parameter, LateParameter):
        parameter.__class__ = nn.Parameter  # type: ignore[assignment]
        del parameter._settle


def _late_parameters(held: Any) -> Iterator[LateParameter]:
    if isinstance(held, LateParameter):
        yield held
    elif isinstance(held, Mapping):
        for value in held.values():
            yield from _late_parameters(value)
    elif isinstance(held, list | tuple):
        for value in held:
            yield from _late_parameters(value)


_TENSOR: Any = Tensor
_ABOUT_SHAPE = {
    getattr(_TENSOR, name).__get__
    for name in ("shape", "dtype", "device", "layout", "requires_grad", "is_leaf", "ndim", "grad",
                 "is_sparse", "_version")
} | {
    getattr(_TENSOR, name)
    for name in ("size", "dim", "numel", "__len__", "stride", "is_floating_point", "requires_grad_")
}  # fmt: skip
"""What can be asked of a parameter without reading a weight."""
