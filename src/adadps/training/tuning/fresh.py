"""Trials must not share weights: each begins with a model of its own."""

from __future__ import annotations

import weakref

from torch import Tensor, nn

from adadps.errors import ContractError


class FreshModels:
    """Knows the trainable weights of earlier models as long as somebody holds them.

    >>> layer = nn.Linear(2, 1)
    >>> models = FreshModels()
    >>> models.require_fresh(layer)
    >>> models.require_fresh(nn.Linear(2, 1))
    >>> models.require_fresh(nn.Sequential(layer))
    Traceback (most recent call last):
    adadps.errors.ContractError: Expected a new model for every trial, found weights ...
    """

    def __init__(self) -> None:
        self._seen: list[weakref.ref[Tensor]] = []

    def require_fresh(self, model: nn.Module) -> None:
        """Refuse a model that shares trainable weights with an earlier one."""
        self._seen = [held for held in self._seen if held() is not None]
        known = {_place(tensor) for held in self._seen if (tensor := held()) is not None}
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        if any(_place(weight) in known for weight in trained if weight.numel()):
            raise ContractError(
                "Expected a new model for every trial, found weights of an earlier one: trials "
                "would continue each other. Build the model inside of `make`, or copy it there."
            )
        self._seen += [weakref.ref(weight) for weight in trained]


def _place(tensor: Tensor) -> tuple[str, int]:
    return str(tensor.device), tensor.untyped_storage().data_ptr()
