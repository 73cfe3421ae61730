"""The few types that every room of the house shares."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from torch import Tensor

from adadps.data.examples import PublicExamples
from adadps.errors import SettingError

Params = dict[str, Tensor]
"""One tensor for each trainable parameter, by its name in the model."""

Schedule = float | Callable[[int], float]
"""A constant, or a function of the step t = 1, 2, 3, ..."""


class Kind(Enum):
    """What flows between two stages."""

    EXAMPLES = "examples"
    PER_UNIT = "per-unit gradients"
    RELEASED = "released (privatized) gradients"
    EXPOSED = "exposed (not private) gradients"
    UPDATE = "an update of the weights"


class Relation(Enum):
    """Which two data sets are neighbours, i.e. what epsilon compares."""

    ADD_OR_REMOVE_ONE = "add or remove one"
    ZERO_OUT = "zero out one"
    REPLACE_ONE = "replace one"


class Accountant(Enum):
    """How events are composed into epsilon."""

    PLD = "pld"
    RDP = "rdp"


class Noise(Protocol):
    """Where a stage gets its privacy noise from."""

    def release(self, total: Tensor, *, standard_deviation: float) -> Tensor:
        """Return ``total`` plus Gaussian noise, on the public grid."""


@dataclass(frozen=True)
class Step:
    """What a stage may know about the step it takes part in.

    ``mean_gradient`` is the model's ordinary gradient on public examples at the current weights.
    ``watch`` receives un-noised facts about private data; it does nothing outside of debugging.
    """

    index: int
    expected_size: float
    noise: Noise
    mean_gradient: Callable[[PublicExamples], Params]
    watch: Callable[[str, Tensor], None] = lambda _name, _value: None
    _public: dict[int, Params] = field(default_factory=dict, repr=False)

    def public_gradient(self, public: PublicExamples) -> Params:
        """Mean gradient on this step's batch of ``public``, computed once per step."""
        if id(public) not in self._public:
            self._public[id(public)] = self.mean_gradient(public.batch(self.index))
        return self._public[id(public)]


def at(schedule: Schedule, index: int) -> float:
    """Value of a schedule at step ``index``.

    >>> at(0.5, 7), at(lambda t: 1 / t, 4)
    (0.5, 0.25)
    """
    return float(schedule(index)) if callable(schedule) else float(schedule)


def require(condition: bool, expected: str, found: object, cure: str) -> None:
    """Raise a `SettingError` with expectation, finding and cure unless ``condition`` holds."""
    if not condition:
        raise SettingError(f"Expected {expected}, found {found}. {cure}")


def require_positive(name: str, value: float, *, infinite: bool = False) -> float:
    """Check that ``value`` is a positive number (and finite, unless ``infinite``)."""
    fits = value > 0 and (infinite or math.isfinite(value))
    require(fits, f"{name} > 0", value, f"Give a positive, finite {name}.")
    return float(value)
