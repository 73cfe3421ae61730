"""Parameters whose rows wait for their noise.

*Parameters cannot be read without their noise.* While rows of a table wait for noise, the run
trains a *working copy* of the table. The model's parameter intervenes before torch reads it: all
rows get their noise, and the whole table is written to the memory that the parameter had before the
run (*published*). With the next step that memory stays as it is, and the parameter holds NaN until
it is read again (*hidden*). So

- whatever goes through torch's functions, methods and modules reads all weights, with all noise;
- reads that torch does not announce (`torch.func.grad` of the parameters, `torch.tensor(p)`, a
  tensor subclass with rules of its own) get NaN, which reveals nothing and is noticed at once;
- a view of the memory, a pointer or an array, taken before the run or during it, sees the table as
  it was when it was last published: whole. It cannot tell which rows have moved since.
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

    _working_copy: WorkingCopy

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Publish all weights, then call the function."""
        with torch._C.DisableTorchFunctionSubclass(), ExitStack() as published:
            if func not in _ABOUT_SHAPE:
                found = {id(p): p for p in _late_parameters((args, kwargs or {}))}
                for _, parameter in sorted(found.items()):
                    _require_allowed(parameter)
                    published.enter_context(_published(parameter))
            return func(*args, **(kwargs or {}))

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        if id(self) not in memo:
            memo[id(self)] = nn.Parameter(self.detach().clone(), self.requires_grad)
        held: nn.Parameter = memo[id(self)]
        return held

    def __reduce_ex__(self, protocol: Any) -> Any:
        plain: Any = nn.Parameter(self.detach(), self.requires_grad)
        return plain.__reduce_ex__(protocol)


class WorkingCopy:
    """A run's working copy of a table, and the model's parameter, published or hidden."""

    def __init__(
        self,
        parameter: LateParameter,
        settle: Callable[[], None],
        refuse: Callable[[], None] | None = None,
    ) -> None:
        self._parameter, self._settle, self._refuse = parameter, settle, refuse
        self._memory = parameter.data
        self.table = parameter.data.clone()
        self._nothing = self._memory.new_full((), math.nan).expand(self._memory.shape)
        self._lock = threading.RLock()  # another thread may read the model
        self._is_published = True

    @contextmanager
    def published(self) -> Iterator[Tensor]:
        """Give the parameter's memory with all weights in it; it is not hidden meanwhile."""
        with self._lock:
            if not self._is_published:
                self._settle()
                self._memory.copy_(self.table)
                self._parameter.data = self._memory
                self._is_published = True
            yield self._memory

    def require_allowed(self) -> None:
        """Refuse a read of a hidden table that its run has not announced, if it wants that."""
        if self._refuse is not None and not self._is_published:
            self._refuse()

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Hide the parameter while the working copy moves; first take over writes by others."""
        with self._lock:
            if self._is_published:
                with torch._C.DisableTorchFunctionSubclass():
                    self.table.copy_(self._parameter.data)
                    self._parameter.data = self._nothing
                    increment_version(self._parameter)  # graphs with the old weights must notice
                self._is_published = False
            yield


def can_be_late(parameter: nn.Parameter) -> bool:
    """Is it a plain parameter of torch, or one that is late already?"""
    return type(parameter) in {nn.Parameter, LateParameter}


def make_late(
    parameter: nn.Parameter, settle: Callable[[], None], refuse: Callable[[], None] | None = None
) -> Tensor:
    """Return a working copy for a run to change; ``settle`` draws the noise that it waits for.

    ``refuse`` is called when anything but the run reads the parameter while it is hidden.
    """
    parameter.__class__ = LateParameter
    assert isinstance(parameter, LateParameter)
    with torch._C.DisableTorchFunctionSubclass():
        parameter._working_copy = WorkingCopy(parameter, settle, refuse)
    return parameter._working_copy.table


def hidden(parameter: nn.Parameter) -> AbstractContextManager[None]:
    """Hide a late parameter while a run reads or moves its working copy."""
    return (
        parameter._working_copy.hidden() if isinstance(parameter, LateParameter) else nullcontext()
    )


def published(parameter: nn.Parameter) -> Tensor:
    """Return the memory of a parameter, in which all weights have all their noise."""
    with torch._C.DisableTorchFunctionSubclass():
        if not isinstance(parameter, LateParameter):
            return parameter.detach()
        with _published(parameter) as memory:
            return memory


def make_plain(parameter: nn.Parameter) -> Tensor:
    """Draw all noise that a late parameter waits for, and make it plain; return its memory."""
    if not isinstance(parameter, LateParameter):
        return parameter.detach()
    with torch._C.DisableTorchFunctionSubclass(), _published(parameter) as memory:
        parameter.__class__ = nn.Parameter  # type: ignore[assignment]
        del parameter._working_copy
        return memory


def _require_allowed(parameter: LateParameter) -> None:
    working_copy = vars(parameter).get("_working_copy")
    if working_copy is not None:
        working_copy.require_allowed()


def _published(parameter: LateParameter) -> AbstractContextManager[Tensor]:
    working_copy = vars(parameter).get("_working_copy")
    if working_copy is None:  # another thread has just ended the run
        return nullcontext(parameter.detach())
    opened: AbstractContextManager[Tensor] = working_copy.published()
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
