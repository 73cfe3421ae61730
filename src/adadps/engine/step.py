"""A step as stages and weights see it: its noise, and updates whose noise is not drawn yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from torch import Tensor

from adadps.data.examples import PublicExamples
from adadps.tensors.outer_sum import OuterSum, dense
from adadps.tensors.params import Params, Sum
from adadps.tensors.row_sparse import RowSparse

SMALLEST_DEVIATION = 1e-150
"""Less noise is refused: its square is no number any more."""


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
class NoisySum:
    """``factor`` · (``total`` + N(0, ``deviation``²)) with a noise that is not drawn yet.

    Only a multiple can be taken of it; whoever adds it to the weights draws the noise.
    """

    total: Sum
    deviation: float
    factor: float = 1.0

    def __mul__(self, factor: float) -> NoisySum:
        return replace(self, factor=self.factor * factor)

    __rmul__ = __mul__

    def __truediv__(self, divisor: float) -> NoisySum:
        return replace(self, factor=self.factor / divisor)


Leaf = Tensor | RowSparse | NoisySum
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
            return NoisySum(total, deviation)
        if self.late:
            return dense(total) if isinstance(total, OuterSum) else total
        return self.noise.release(dense(total), standard_deviation=deviation)

    def public_gradient(self, public: PublicExamples) -> Params:
        """Mean gradient on this step's batch of ``public``, computed once per step."""
        if id(public) not in self._public:
            self._public[id(public)] = self.mean_gradient(public.batch(self.index))
        return self._public[id(public)]
