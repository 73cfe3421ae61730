"""What every kind of side information has in common.

Side information is a diagonal A > 0 (and sometimes a mean M) for the model's parameters. A stage
applies the transform g ↦ D ∘ (β g + (1 - β) M) with D = 1/A.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from dp_accounting import DpEvent
from torch import Tensor

from adadps.data.provenance import Provenance
from adadps.errors import SideInformationError
from adadps.types import Params, Step

Named = Mapping[str, Tensor | tuple[Tensor, int]]
"""A by parameter or module: a tensor of the parameter's shape, or a vector along one axis."""


@dataclass(frozen=True)
class Transform:
    """g ↦ D ∘ (β g + (1 - β) M); without a mean, g ↦ D ∘ g."""

    scale: Params
    mean: Params | None = None
    beta: float = 1.0


class SideSource(Protocol):
    """A source of side information."""

    @property
    def event(self) -> DpEvent:
        """What it cost to know this; not private at all for an oracle."""

    @property
    def provenance(self) -> Provenance:
        """Where it comes from and why it is not sensitive."""

    def init(self, params: Params) -> Any:
        """State before the first step; refuses what does not fit ``params``."""

    def observe(self, state: Any, step: Step) -> tuple[Transform, Any]:
        """The transform for this step, and the next state."""


def inverse_scale(named: Named, params: Params) -> Params:
    """D = 1/A for every parameter, in shapes that broadcast.

    A parameter without side information gets the median of all given D.
    """
    if not named:
        raise SideInformationError(
            "Expected side information for at least one parameter, found none. "
            f"Name one of: {', '.join(params)}."
        )
    given: Params = {}
    for name, value in named.items():
        parameter = _parameter_name(name, params)
        if parameter in given:
            raise SideInformationError(
                f"Expected side information once for '{parameter}', found it twice. Name it by "
                "parameter or by module, not both."
            )
        given[parameter] = 1 / _fitted(name, value, params[parameter])
    neutral = torch.cat([scale.flatten() for scale in given.values()]).median()
    return {
        name: given.get(name, neutral.reshape([1] * parameter.ndim))
        for name, parameter in params.items()
    }


def positive(name: str, values: Tensor) -> Tensor:
    """Check that every entry of A is a positive finite number, in float64."""
    wide = values.detach().double()
    low, finite = float(wide.min()) if wide.numel() else 0.0, bool(torch.isfinite(wide).all())
    if not finite or low <= 0 or bool(torch.isinf(1 / wide.float()).any()):
        found = "NaN or infinity" if not finite else f"a smallest entry of {low}"
        raise SideInformationError(
            f"Expected positive, finite side information for '{name}', found {found}. "
            "Set a floor above zero."
        )
    return wide


def _parameter_name(name: str, params: Params) -> str:
    for candidate in (name, f"{name}.weight"):
        if candidate in params:
            return candidate
    raise SideInformationError(
        f"Expected side information for a parameter or module of the model, found '{name}'. "
        f"The model has: {', '.join(params)}. Name one of them (`at=...` in frequency and tfidf)."
    )


def _fitted(name: str, value: Tensor | tuple[Tensor, int], parameter: Tensor) -> Tensor:
    if isinstance(value, tuple):
        vector, axis = value
        shape = tuple(parameter.shape)
        fits = -len(shape) <= axis < len(shape) and vector.shape == (shape[axis],)
        if not fits:
            raise SideInformationError(
                f"Expected a vector that fits axis {axis} of '{name}' with shape {shape}, found "
                f"shape {tuple(vector.shape)}. Give one number for each index along that axis."
            )
        broadcast = [1] * len(shape)
        broadcast[axis] = len(vector)
        return positive(name, vector).reshape(broadcast).to(parameter.device)
    if value.shape != parameter.shape:
        raise SideInformationError(
            f"Expected side information of shape {tuple(parameter.shape)} for '{name}', found "
            f"{tuple(value.shape)}. Give a full tensor, or a pair (vector, axis)."
        )
    return positive(name, value).to(parameter.device)
