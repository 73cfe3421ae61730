"""Second moments of what layers read and write, for whitening."""

from __future__ import annotations

from dataclasses import dataclass, field

from adadps.tensors.sums import Params


@dataclass(frozen=True)
class Moments:
    """Second moments of the inputs and output gradients of layers, by the names of their weights.

    Sums over all rows and positions: ``inputs`` of a aᵀ, with a 1 appended to a where there
    is a bias; ``outputs`` of b bᵀ; ``words`` of a² for tables, one number for each word along
    ``axes``.
    """

    inputs: Params = field(default_factory=dict)
    outputs: Params = field(default_factory=dict)
    words: Params = field(default_factory=dict)
    axes: dict[str, int] = field(default_factory=dict)

    def plus(self, other: Moments) -> Moments:
        """Add up the moments of two pieces of a batch."""
        return Moments(
            _sums_of(self.inputs, other.inputs),
            _sums_of(self.outputs, other.outputs),
            _sums_of(self.words, other.words),
            {**self.axes, **other.axes},
        )


def _sums_of(one: Params, other: Params) -> Params:
    return {
        name: one[name] + other[name] if name in one and name in other else {**one, **other}[name]
        for name in {**one, **other}
    }
