"""Averages of the weights over the steps of a run: post-processing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from adadps.engine.waist import Step, Update
from adadps.errors import require
from adadps.tensors.sums import Params
from adadps.types import Kind


@dataclass(frozen=True)
class AverageWeights:
    """w̄ ← d w̄ + (1 - d) w, beside the update. Build it with `average_weights`."""

    decay: float

    @property
    def rule(self) -> Mapping[Kind, Kind]:
        """Takes an update and gives it unchanged."""
        return {Kind.UPDATE: Kind.UPDATE}

    def init(self, params: Params) -> tuple[Params, Params]:
        """Return the weights, and zeros for their average."""
        return params, {n: torch.zeros_like(p, dtype=torch.float64) for n, p in params.items()}

    def apply(
        self, signal: Update, state: tuple[Params, Params], step: Step
    ) -> tuple[Update, tuple[Params, Params]]:
        """Average the weights as they will be after this update."""
        weights, means = state
        decay = 0.0 if step.index == 1 else self.decay
        moved = {}
        for name, value in weights.items():
            change = signal[name]
            assert isinstance(change, Tensor)  # noise that is drawn later cannot be averaged
            moved[name] = value.double() * signal.keep + change.to(value.dtype).double()
        following = {n: decay * mean + (1 - decay) * moved[n] for n, mean in means.items()}
        return signal, (weights, following)

    def averaged(self, state: tuple[Params, Params]) -> Params:
        """Return the averages in the precision of the weights."""
        weights, means = state
        return {name: means[name].to(value.dtype) for name, value in weights.items()}

    def __str__(self) -> str:
        return f"average_weights({self.decay:g})"


def average_weights(decay: float = 0.999) -> AverageWeights:
    """Average the weights of all steps with weights that fall by ``decay``: free post-processing.

    It stands after the update. Evaluations and the result have the averaged weights, and so has the
    model at the end of the run; gradients are taken at the others. The noise is drawn at every
    step.

    >>> from adadps.methods.stages import chain, privatize, sgd
    >>> print(chain(privatize(clip_norm=1.0, noise_multiplier=1.0), sgd(0.1), average_weights(0.9)))
    privatize(C=1, σ=1) > sgd(0.1) > average_weights(0.9)
    """
    require(0 <= decay < 1, "decay in [0, 1)", decay, "Nearer to 1 averages over more steps.")
    return AverageWeights(float(decay))
