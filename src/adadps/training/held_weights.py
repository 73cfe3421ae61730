"""What a run asks of its weights besides moving them: here they are whole, in this process.

`adadps.training.sharded_stepper` answers otherwise, where each process holds a shard.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from torch import nn

from adadps.engine.group import Group
from adadps.engine.waist import Weights
from adadps.tensors.sums import Params
from adadps.training.checkpoint import Checkpoint, pack
from adadps.training.describe import frozen_part_of


class HeldWhole(ABC):
    """Weights and states that this process holds whole."""

    model: nn.Module
    group: Group
    weights: Weights
    states: tuple[Any, ...]
    own_params: Params

    @property
    @abstractmethod
    def params(self) -> Params:
        """The trainable parameters with all their noise."""

    @property
    @abstractmethod
    def given_params(self) -> Params:
        """The weights that evaluations and results show."""

    @property
    def whole_form(self) -> Params:
        """Tensors with the shapes of the parameters."""
        return self.own_params

    @property
    def evaluated_params(self) -> Params:
        """What an evaluation runs the model with."""
        return self.given_params

    @property
    def common_states(self) -> Any:
        """The states that all processes hold alike."""
        return self.states

    def digest(self) -> str:
        """Hash what all processes hold alike of the weights."""
        return self.weights.digest()

    def frozen_part(self, assumed_public: Iterable[str]) -> str:
        """Hash what the run may not change."""
        return frozen_part_of(self.model, assumed_public)

    def load(self, held: Checkpoint) -> None:
        """Take over the weights of a checkpoint."""
        held.put_into(self.own_params)

    def packed(self) -> tuple[Params, Any, Params]:
        """Return weights, states and the states' tensors for a checkpoint."""
        return self.params, *pack(self.states, self.own_params)
