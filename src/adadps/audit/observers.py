"""What an observer makes of all that a run has released: one number a run.

Privacy is promised towards somebody who sees the weights after every step. Any function of them is
a fair score; the better it tells the two worlds apart, the higher the lower bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from adadps.audit.outcome import Claim
from adadps.tensors.sums import Params

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Released:
    """All that one run gave away: its claim, and the weights at the start and after its steps."""

    claim: Claim
    weights: Numbers

    @property
    def moves(self) -> Numbers:
        """What every step added to the weights."""
        return np.diff(self.weights, axis=0)


Observer = Callable[[Released], float]


def in_one_line(params: Params) -> Numbers:
    """All weights of a model, one after the other, as they are now.

    >>> in_one_line({"weight": torch.ones(1, 2), "bias": torch.zeros(1)})
    array([1., 1., 0.])
    """
    return torch.cat([value.detach().double().flatten() for value in params.values()]).numpy()


def observers_along(direction: Numbers) -> Mapping[str, Observer]:
    """Four observers who know where the example pulls the weights.

    *movement*: how far the weights went that way; more noise hides it better. *distance*: how far
    they went that way or back, which shows noise that is missing, or too small or too large, in one
    of the worlds. *difference*: how much the steps differ that way, in which noise that repeats
    cancels. *spread*: how far the weights went any other way, which shows noise whose size depends
    on the data.

    >>> seen = observers_along(np.array([1.0, 0.0]))
    >>> path = Released(Claim(1.0, 0.1, ""), np.array([[0.0, 0.0], [1.0, 2.0], [4.0, 2.0]]))
    >>> {name: float(observe(path)) for name, observe in seen.items()}
    {'movement': 4.0, 'distance': 4.0, 'difference': 2.0, 'spread': 2.0}
    """
    unit = direction / np.linalg.norm(direction)

    def movement(released: Released) -> float:
        return float((released.moves @ unit).sum())

    def distance(released: Released) -> float:
        return abs(movement(released))

    def difference(released: Released) -> float:
        return float(np.ptp(released.moves @ unit))

    def spread(released: Released) -> float:
        moves = released.moves
        return float(np.linalg.norm(moves - np.outer(moves @ unit, unit)))

    return {
        "movement": movement,
        "distance": distance,
        "difference": difference,
        "spread": spread,
    }
