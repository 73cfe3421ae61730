"""The form in which a run has checked a model: it must not change while the run lasts.

A parameter that was frozen in the middle of a run would be trained and noised all the same, one
that was replaced or converted would stay as it is, and hooks that were added were never tried on
synthetic rows.
None of that would be seen, so each of these is refused before the next batch is paid for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from adadps.engine.passes.model_state import described
from adadps.errors import ModelError

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


class ModelForm:
    """The modules of a model, their modes, hooks and parameters, and which of these are trained.

    >>> layer = nn.Linear(2, 1)
    >>> form = ModelForm(layer)
    >>> form.require_same()
    >>> _ = layer.bias.requires_grad_(False)
    >>> form.require_same()
    Traceback (most recent call last):
    adadps.errors.ModelError: Expected the model as it was when the run began, found that ...
    """

    def __init__(self, model: nn.Module) -> None:
        self._everywhere = _hooks_of_all_modules()
        self._alive = list(model.parameters())  # so that no other one gets an identity of theirs
        self._memory = {  # with the memory itself, so that no other one gets its address
            name: (parameter, parameter.detach(), memory)
            for name, parameter in model.named_parameters()
            if parameter.requires_grad and (memory := _memory_of(parameter)) is not None
        }
        self._modules = [(name, module, _form_of(module)) for name, module in model.named_modules()]

    def require_same(self) -> None:
        """Refuse a model that was changed, other than in the values of its weights."""
        change = next(self._changes(), None)
        if change is not None:
            raise ModelError(
                f"Expected the model as it was when the run began, found that {change}. Undo it, "
                "or finish this run and begin another one on the changed model; both can be paid "
                "from one ledger."
            )

    def _changes(self) -> Iterator[str]:
        if _hooks_of_all_modules() != self._everywhere:
            yield "hooks of all modules were added or removed"
        for name, module, form in self._modules:
            now = _form_of(module)
            if now != form:
                yield from (
                    f"{what.format(described(name))}"
                    for what, one, other in zip(_WHAT, now, form, strict=True)
                    if one != other
                )
        for name, (parameter, _, memory) in self._memory.items():
            if _memory_of(parameter) not in (None, memory):
                yield f"'{name}' was put into other memory (`.to(...)`, `.half()`, `.data = ...`)"


_WHAT = (
    "{} was put into another mode, training or evaluation",
    "parts of {} were added, removed or replaced",
    "parameters of {} were frozen, unfrozen or replaced",
    *["hooks of {} were added or removed"] * len(_HOOKS),
)


def _form_of(module: nn.Module) -> list[Any]:
    """Its mode, parts, parameters (by identity: no value is read) and hooks."""
    held = vars(module)
    return [
        held["training"],
        [*map(id, held["_modules"].values())],
        [(id(p), p.requires_grad) for p in held["_parameters"].values() if p is not None],
        *[[*(held.get(name) or ())] for name in _HOOKS],
    ]


def _memory_of(parameter: nn.Parameter) -> int | None:
    """The memory of a parameter, or of its shard; None of a kind that may have another one.

    A table whose noise waits is of such a kind: it takes over what is written to it.
    """
    held = getattr(parameter, "_local_tensor", parameter)
    return held.untyped_storage()._cdata if type(held) in (Tensor, nn.Parameter) else None


def _hooks_of_all_modules() -> list[Any]:
    held = vars(torch.nn.modules.module)
    return [[*held[f"_global{name}"]] for name in _HOOKS]
