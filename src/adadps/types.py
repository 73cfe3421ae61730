"""The few types that every room of the house shares."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Protocol

from torch import Tensor

from adadps.data.examples import PublicExamples
from adadps.errors import SettingError
from adadps.outer_sum import OuterSum, dense
from adadps.row_sparse import RowSparse

Params = dict[str, Tensor]
"""One tensor for each trainable parameter, by its name in the model."""

Sum = Tensor | RowSparse | OuterSum
"""A sum of gradients: whole, of a table of words only the touched rows, or not multiplied out."""

Sums = dict[str, Sum]
"""A sum of gradients for each trainable parameter."""

Schedule = float | Callable[[int], float]
"""A constant, or a function of the step t = 1, 2, 3, ..."""


SMALLEST_DEVIATION = 1e-150
"""Less noise is refused: its square is no number any more."""


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


class Unit(Enum):
    """Whose data epsilon protects: what a sampler draws, and what is clipped as one."""

    EXAMPLE = "example"
    USER = "user"


class Accountant(Enum):
    """How events are composed into epsilon."""

    PLD = "pld"
    RDP = "rdp"


class Noise(Protocol):
    """Where a stage gets its privacy noise from."""

    def release(
        self,
        total: Tensor,
        *,
        standard_deviation: float | Tensor,
        grid_width: float | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Return ``total`` plus Gaussian noise, on the public grid."""

    def draw(self, count: int, use: Callable[[int, Any], object]) -> None:
        """Give ``count`` fresh normals to ``use(start, values)``, piece by piece."""

    def release_into(
        self,
        changes: Sequence[tuple[Tensor, Tensor | OuterSum]],
        *,
        standard_deviation: float,
        factor: float,
    ) -> None:
        """Add ``factor`` times the released total to the weights in place, for all pairs."""


@dataclass(frozen=True)
class Unrealised:
    """``factor`` · (``total`` + N(0, ``deviation``²)) with a noise that is not drawn yet.

    Only a multiple can be taken of it; whoever adds it to the weights draws the noise.
    """

    total: Sum
    deviation: float
    factor: float = 1.0

    def __mul__(self, factor: float) -> Unrealised:
        return replace(self, factor=self.factor * factor)

    __rmul__ = __mul__

    def __truediv__(self, divisor: float) -> Unrealised:
        return replace(self, factor=self.factor / divisor)


Leaf = Tensor | RowSparse | Unrealised
"""What one parameter's part of an update can be."""


class Update(dict[str, Leaf]):
    """What is added to each weight, after it was multiplied by ``keep`` (1 minus its decay)."""

    keep: float = 1.0


@dataclass(frozen=True)
class Step:
    """What a stage may know about the step it takes part in.

    ``mean_gradient`` is the model's ordinary gradient on public examples at the current weights.
    ``watch`` receives un-noised facts about private data; it does nothing outside of debugging.
    ``late`` says that noise may be left for later and sums may stay row-sparse. ``answers`` is the
    number of answers from devices that are outside of this process; None where all is in here.
    """

    index: int
    expected_size: float
    noise: Noise
    mean_gradient: Callable[[PublicExamples], Params]
    watch: Callable[[str, Tensor], None] = lambda _name, _value: None
    late: bool = False
    answers: int | None = None
    _public: dict[int, Params] = field(default_factory=dict, repr=False)

    def release(self, total: Sum, deviation: float) -> Leaf:
        """``total`` plus Gaussian noise, now or later."""
        if self.late and deviation > 0:
            return Unrealised(total, deviation)
        if self.late:
            return dense(total) if isinstance(total, OuterSum) else total
        return self.noise.release(dense(total), standard_deviation=deviation)

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


def described(schedule: Schedule) -> str:
    """A schedule as text that is the same in every process.

    >>> described(0.5), described(math.sqrt)
    ('0.5', 'sqrt')
    """
    if not callable(schedule):
        return f"{schedule:g}"
    name = getattr(schedule, "__qualname__", None)
    return str(schedule) if name is None else str(name)


def require(condition: bool, expected: str, found: object, cure: str) -> None:
    """Raise a `SettingError` with expectation, finding and cure unless ``condition`` holds."""
    if not condition:
        raise SettingError(f"Expected {expected}, found {found}. {cure}")


def require_positive(name: str, value: float, *, infinite: bool = False) -> float:
    """Check that ``value`` is a positive number (and finite, unless ``infinite``)."""
    fits = value > 0 and (infinite or math.isfinite(value))
    require(fits, f"{name} > 0", value, f"Give a positive, finite {name}.")
    return float(value)
