"""What stages have done to a gradient so far: g ↦ a ∘ g + m, one a and m for each parameter."""

from __future__ import annotations

from dataclasses import dataclass

from adadps.types import Params


@dataclass(frozen=True)
class Affine:
    """The map g ↦ scale ∘ g + offset. Missing entries mean 1 and 0."""

    factor: Params
    offset: Params

    @classmethod
    def identity(cls) -> Affine:
        """The map that changes nothing."""
        return cls({}, {})

    def scale(self, diagonal: Params) -> Affine:
        """First this map, then multiplication by ``diagonal``."""
        wide = {name: value.double() for name, value in diagonal.items()}
        factor = self.factor | {
            name: value * self.factor[name] if name in self.factor else value
            for name, value in wide.items()
        }
        offset = {
            name: value * wide[name] if name in wide else value
            for name, value in self.offset.items()
        }
        return Affine(factor, offset)

    def shift(self, beta: float, mean: Params) -> Affine:
        """First this map, then g ↦ β g + (1 - β) ``mean``."""
        factor = {
            name: beta * self.factor[name] if name in self.factor else value.new_tensor(beta)
            for name, value in ((name, value.double()) for name, value in mean.items())
        }
        offset = {name: (1 - beta) * value.double() for name, value in mean.items()}
        for name, value in self.offset.items():
            offset[name] = offset[name] + beta * value
        return Affine(factor, offset)
