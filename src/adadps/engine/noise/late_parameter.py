"""Parameters that nobody reads without their noise.

While rows of a table wait for noise, the run trains a copy of the table that is its own. The
model's parameter calls before torch reads it: all rows get their noise, and the whole table is
written to the memory that the parameter had before the run (*shown*). With the next step that
memory stays as it is, and the parameter holds NaN until it is asked again (*hidden*). So

- whatever goes through torch's functions, methods and modules reads all weights, with all noise;
- what torch does not announce (`torch.func.grad` of the parameters, `torch.tensor(p)`, a class of
  tensors with rules of its own) reads NaN, which tells nothing and is seen at once;
- a view of the memory, a pointer or an array, taken before the run or during it, sees the table as
  it was when somebody last asked for it: whole. Which rows have moved since cannot be told.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version


class LateParameter(nn.Parameter):
    """A parameter whose rows get their noise before anything reads them."""

    _curtain: Curtain

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Show all weights, then do what was asked for."""
        with torch._C.DisableTorchFunctionSubclass(), ExitStack() as opened:
            if func not in _ABOUT_SHAPE:
                found = {id(p): p for p in _late_parameters((args, kwargs or {}))}
                for _, parameter in sorted(found.items()):
                    opened.enter_context(_open(parameter))
            return func(*args, **(kwargs or {}))

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        if id(self) not in memo:
            memo[id(self)] = nn.Parameter(self.detach().clone(), self.requires_grad)
        held: nn.Parameter = memo[id(self)]
        return held

    def __reduce_ex__(self, protocol: Any) -> Any:
        plain: Any = nn.Parameter(self.detach(), self.requires_grad)
        return plain.__reduce_ex__(protocol)


class Curtain:
    """What stands between a run's own copy of a table and the model's parameter."""

    def __init__(self, parameter: LateParameter, settle: Callable[[], None]) -> None:
        self._parameter, self._settle = parameter, settle
        self._memory = parameter.data
        self.own = parameter.data.clone()
        self._nothing = self._memory.new_full((), math.nan).expand(self._memory.shape)
        self._lock = threading.RLock()  # another thread may read the model
        self._is_shown = True

    @contextmanager
    def open(self) -> Iterator[Tensor]:
        """The memory of the parameter, with all weights in it; nobody hides it meanwhile."""
        with self._lock:
            if not self._is_shown:
                self._settle()
                self._memory.copy_(self.own)
                self._parameter.data = self._memory
                self._is_shown = True
            yield self._memory

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Hide the weights while the run's own copy moves; what others wrote to them goes along."""
        with self._lock:
            if self._is_shown:
                with torch._C.DisableTorchFunctionSubclass():
                    self.own.copy_(self._parameter.data)
                    self._parameter.data = self._nothing
                    increment_version(self._parameter)  # graphs with the old weights must notice
                self._is_shown = False
            yield


def can_watch(parameter: nn.Parameter) -> bool:
    """Is it a plain parameter of torch, or one that is watched already?"""
    return type(parameter) in {nn.Parameter, LateParameter}


def watch(parameter: nn.Parameter, settle: Callable[[], None]) -> Tensor:
    """Begin a copy of the weights that a run may change, and that ``settle`` gives its noise."""
    parameter.__class__ = LateParameter
    assert isinstance(parameter, LateParameter)
    with torch._C.DisableTorchFunctionSubclass():
        parameter._curtain = Curtain(parameter, settle)
    return parameter._curtain.own


def closed(parameter: nn.Parameter) -> AbstractContextManager[None]:
    """While a run reads or moves its own copy, nobody sees it; what others wrote is taken over."""
    return parameter._curtain.closed() if isinstance(parameter, LateParameter) else nullcontext()


def shown(parameter: nn.Parameter) -> Tensor:
    """The memory of a parameter, where all weights have all their noise."""
    with torch._C.DisableTorchFunctionSubclass():
        if not isinstance(parameter, LateParameter):
            return parameter.detach()
        with _open(parameter) as memory:
            return memory


def unwatch(parameter: nn.Parameter) -> Tensor:
    """Let a watched parameter get its noise, and make it a plain one; what it holds."""
    if not isinstance(parameter, LateParameter):
        return parameter.detach()
    with torch._C.DisableTorchFunctionSubclass(), _open(parameter) as memory:
        parameter.__class__ = nn.Parameter  # type: ignore[assignment]
        del parameter._curtain
        return memory


def _open(parameter: LateParameter) -> AbstractContextManager[Tensor]:
    curtain = vars(parameter).get("_curtain")
    if curtain is None:  # another thread has ended the run just now
        return nullcontext(parameter.detach())
    opened: AbstractContextManager[Tensor] = curtain.open()
    return opened


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
    for name in ("size", "dim", "numel", "__len__", "is_floating_point", "requires_grad_")
}  # fmt: skip
"""What can be asked of a parameter without reading a weight."""
