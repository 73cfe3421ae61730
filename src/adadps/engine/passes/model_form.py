"""The form in which a run has checked a model: it must not change while the run lasts.

A parameter that was frozen in the middle of a run would be trained and noised all the same, one
that was replaced would stay as it is, and hooks that were added were never tried on synthetic rows.
None of that would be seen, so each of it is refused before the next batch is paid for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

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
        self._model = model
        self._everywhere = _hooks_of_all_modules()
        self._modules = [
            (name, module, module.training, _hooks_of(module), _parameters_of(module))
            for name, module in model.named_modules()
        ]

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
        now = list(self._model.modules())
        for place, (name, module, training, hooks, held) in enumerate(self._modules):
            where = described(name)
            if place >= len(now) or now[place] is not module:
                yield f"{where} was removed or replaced, or others were added before it"
            if module.training is not training:
                yield f"{where} was put into {'evaluation' if training else 'training'} mode"
            if _hooks_of(module) != hooks:
                yield f"hooks of {where} were added or removed"
            parameters = _parameters_of(module)
            if parameters != held:
                yield f"parameters of {where} were frozen, unfrozen or replaced"
        if len(now) > len(self._modules):
            yield "modules were added"


def _parameters_of(module: nn.Module) -> list[tuple[str, int, bool]]:
    """Names, identities, and which are trained; no value is read."""
    return [
        (name, id(parameter), parameter.requires_grad)
        for name, parameter in module._parameters.items()
        if parameter is not None
    ]


def _hooks_of(module: nn.Module) -> tuple[tuple[Any, ...], ...]:
    return tuple(tuple(vars(module).get(name) or ()) for name in _HOOKS)


def _hooks_of_all_modules() -> tuple[tuple[Any, ...], ...]:
    held: Mapping[str, Any] = vars(torch.nn.modules.module)
    return tuple(tuple(held.get(f"_global{name}") or ()) for name in _HOOKS)
