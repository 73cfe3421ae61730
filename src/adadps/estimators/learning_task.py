"""What an estimator learns: the form of rows and targets, the loss, and what is stated of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from adadps.engine.losses import Loss
from adadps.estimators.planner.plan import RULE, DefaultRule, LossFacts
from adadps.estimators.rows import RowScaling


@dataclass(frozen=True)
class LearningTask:
    """What is learned. Only ``targets``, and bounds that were read off, depend on private data."""

    scaling: RowScaling
    targets: npt.NDArray[Any]
    outputs: int
    loss: Loss
    loss_facts: LossFacts
    facts: tuple[str, ...]
    rule: DefaultRule = RULE
    names: tuple[str, ...] = ()
    """The names of the classes, where they are texts."""
