"""A pass on rows that must leave nothing behind: no state, no chance from outside, no error text.

Every pass of a run goes through here, on private rows and on others, so that a model behaves the
same on all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TypeVar

import torch
from torch import nn

from adadps.engine.loss import Loss
from adadps.engine.losses import looks_at_one_example
from adadps.engine.passes.chance import Bytes, secret_chance
from adadps.engine.passes.model_state import same_state
from adadps.engine.rules.sequence import Sequence
from adadps.errors import ModelError

Result = TypeVar("Result")

_WITH_CHANCE = (nn.Dropout, nn.AlphaDropout)


class Isolation:
    """Runs one model with one loss; ``secret`` gives the bytes for the chance inside them."""

    def __init__(
        self, model: nn.Module, loss: Loss, secret: Bytes, *, quotes_errors: bool = False
    ) -> None:
        self._model, self._loss, self._secret = model, loss, secret
        self._quotes_errors = quotes_errors
        sequence = Sequence.of(model)
        # Layers and losses that are known draw nothing and hold nothing, and need no guard.
        self._holds_nothing = sequence is not None and looks_at_one_example(loss)
        self._draws_nothing = self._holds_nothing and not any(
            isinstance(layer, _WITH_CHANCE) for layer in model.modules()
        )

    def drawing_from(self, secret: Bytes, *, quotes_errors: bool) -> Isolation:
        """The same with another source of chance, and with errors in full for debugging."""
        return Isolation(self._model, self._loss, secret, quotes_errors=quotes_errors)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """A pass. Buffers and attributes are put back after it, always and silently."""
        same = nullcontext() if self._holds_nothing else same_state(self._model, self._loss)
        with self._chance(), same:
            yield

    def on_private_rows(self, differentiate: Callable[[], Result]) -> Result:
        """A pass on private rows, whose errors are not quoted: their texts can hold values."""
        if self._quotes_errors:
            with self():
                return differentiate()
        try:
            with self():
                return differentiate()
        except Exception as error:
            kind = type(error).__name__
        raise ModelError(  # outside of the handler, so that the other error does not come along
            "Expected a model and a loss that run on every row as they do on synthetic rows, found "
            f"{kind} in a step. Its text is not shown, because it might reveal values of a private "
            "row. Check that whole numbers fit the model's tables and the number of its outputs, "
            "and try the model on public rows."
        )

    @contextmanager
    def _chance(self) -> Iterator[None]:
        if self._draws_nothing:
            yield
            return
        with secret_chance(self._secret, _device(self._model)):
            yield


def _device(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))
