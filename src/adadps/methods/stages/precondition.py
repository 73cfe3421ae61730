"""Scale gradients by side information: before the clip (AdaDPS) or after the noise (DP-R-Pub)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from adadps.engine.waist import GradientBatch, Step
from adadps.methods.side.source import SideSource, Transform
from adadps.methods.stages.chain import AFTER_RELEASE
from adadps.methods.stages.informed import ReadsSide
from adadps.tensors.sums import Params
from adadps.types import Kind


@dataclass(frozen=True)
class Precondition(ReadsSide):
    """g ↦ (β g + (1 - β) M) / A, on the gradient of each unit or on the released mean."""

    @property
    def rule(self) -> Mapping[Kind, Kind]:
        """Gives the kind of signal that it takes."""
        return {Kind.PER_UNIT: Kind.PER_UNIT, **AFTER_RELEASE}

    def init(self, params: Params) -> Any:
        """Return the initial state of the side information."""
        return self.side.init(params)

    def apply(
        self, signal: GradientBatch | Params, state: Any, step: Step
    ) -> tuple[GradientBatch | Params, Any]:
        """Apply the transform of this step."""
        transform, following = self.side.observe(state, step)
        if isinstance(signal, dict):
            return _transformed(signal, transform), following
        if transform.mean is not None:
            signal = signal.shift(transform.beta, transform.mean)
        return signal.scale(transform.stable_scale()), following

    def __str__(self) -> str:
        return f"precondition({self.provenance.source})"


def precondition(side: SideSource) -> Precondition:
    """Precondition gradients by side information.

    Before `privatize` this is AdaDPS; after it, the noise is scaled along with the gradient.
    """
    return Precondition(side)


def _transformed(released: Params, transform: Transform) -> Params:
    shifted = released
    if transform.mean is not None:
        shifted = {
            name: transform.beta * value + (1 - transform.beta) * transform.mean[name]
            for name, value in released.items()
        }
    return {name: value * transform.scale[name] for name, value in shifted.items()}
