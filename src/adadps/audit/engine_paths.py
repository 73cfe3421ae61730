"""The library's own methods, and its ways from an example to the weights: what is audited."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy import sparse
from torch import Tensor, nn

from adadps.audit.worst_case import zero_linear
from adadps.data.examples import PublicExamples, public_examples
from adadps.methods.paper import adadps, adadps_public, dp_adam, dp_sgd
from adadps.methods.side import RMSPropStatistics, frequency
from adadps.methods.side.frequency import given_frequencies
from adadps.methods.stages import Chain
from adadps.methods.stages.privatize import Privatize

LEARNING_RATE = 0.5
"""It changes nothing about what an observer of the steps sees."""


class NotPlain(nn.Parameter):
    """A parameter of another class than torch's own: its noise does not wait."""


class Wrapped(nn.Module):
    """A linear model that no layer-by-layer engine knows, at w = 0."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, width))

    def forward(self, rows: Tensor) -> Tensor:
        """w·x for every row x."""
        return rows @ self.weight.T


def _not_plain(width: int) -> nn.Module:
    model = zero_linear(width)
    model.weight = NotPlain(model.weight.detach())
    return model


@dataclass(frozen=True)
class EnginePath:
    """One way from an example to the weights, and the rows and steps that show its faults.

    Noise that may wait is left to until the end. To wait, the example's weights must not be touched
    by other rows, and there must be several steps.
    """

    make_model: Callable[[int], nn.Module]
    as_sparse: bool
    noise_waits: bool = False
    opposing: int = 1
    bystanders: int = 0
    steps: int = 1


PATHS = {
    "dense": EnginePath(zero_linear, as_sparse=False),
    "general": EnginePath(Wrapped, as_sparse=False),
    "sparse": EnginePath(_not_plain, as_sparse=True),
    "late": EnginePath(
        zero_linear, as_sparse=True, noise_waits=True, opposing=0, bystanders=8, steps=8
    ),
}
"""Closed forms; vmap; sparse rows with noise at every step; sparse rows with late noise."""


def usual_steps(path: str) -> int:
    """Few steps leave the most to see, but noise must have some to wait for; 1 if not known."""
    return PATHS[path].steps if path in PATHS else 1


def public_rows(width: int, path: EnginePath) -> PublicExamples:
    """Made-up public rows, one for each feature; none of them is a row of the private data.

    Where noise is to wait there is one row alone, for a feature that is neither the example's nor a
    canary's: what reads a weight ends its waiting.
    """
    features = [1] if path.noise_waits else list(range(width))
    one_each = sparse.identity(width, format="csr")[features]
    return public_examples(
        2 * one_each if path.as_sparse else 2 * torch.from_numpy(one_each.toarray()).float(),
        torch.linspace(1.0, 2.0, width)[features],
        source="made up",
        public_because="it is part of the audit",
        batch_size=len(features),
    )


def _by_frequency(privacy: Privatize, width: int, path: EnginePath) -> Chain:  # noqa: ARG001
    values = torch.linspace(0.1, 1.0, width)
    given = given_frequencies(values, source="made up", public_because="made up")
    return adadps(frequency(given, floor=0.01), privacy, lr=LEARNING_RATE)


def _by_public_gradients(privacy: Privatize, width: int, path: EnginePath) -> Chain:
    rule = RMSPropStatistics(decay=0.9, epsilon=1e-3)
    return adadps_public(public_rows(width, path), rule, privacy, lr=LEARNING_RATE)


METHODS: dict[str, Callable[[Privatize, int, EnginePath], Chain]] = {
    "dp-sgd": lambda privacy, _width, _path: dp_sgd(privacy, lr=LEARNING_RATE),
    "dp-adam": lambda privacy, _width, _path: dp_adam(privacy, lr=LEARNING_RATE),
    "adadps": _by_frequency,
    "adadps-public": _by_public_gradients,
}
"""By name; side information is made up for so many features, in rows as the path has them."""
