"""One run at a time changes a model."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from torch import nn

from adadps.engine.noise.late_parameter import LateParameter, make_plain
from adadps.errors import ContractError

_LATEST: WeakKeyDictionary[nn.Module, ModelLock] = WeakKeyDictionary()


class ModelLock:
    """The right to change a model, until another run takes it.

    >>> layer = nn.Linear(2, 1)
    >>> first = ModelLock(layer)
    >>> first.require_valid()
    >>> second = ModelLock(layer)
    >>> first.require_valid()
    Traceback (most recent call last):
    adadps.errors.ContractError: Expected one run at a time on a model, ...
    """

    def __init__(self, model: nn.Module) -> None:
        for parameter in model.parameters():
            if isinstance(parameter, LateParameter):
                make_plain(parameter)  # left over from an abandoned run
        self._model = model
        _LATEST[model] = self

    def require_valid(self) -> None:
        """Refuse to continue if another run has begun on the model."""
        if _LATEST.get(self._model) is not self:
            raise ContractError(
                "Expected one run at a time on a model, found that another run has begun on it. "
                "Finish one before the next, or train a copy of the model."
            )
