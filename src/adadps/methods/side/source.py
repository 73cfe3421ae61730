"""What every kind of side information has in common.

Side information is a diagonal A > 0 (and sometimes a mean M) for the parameters of the model. A
stage applies the transform g ↦ D ∘ (β g + (1 - β) M) with D = 1/A.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from dp_accounting import DpEvent
from torch import Tensor

from adadps.data.provenance import Provenance
from adadps.engine.waist import Step
from adadps.errors import SideInformationError
from adadps.tensors.sums import Params
from adadps.types import Accountant, Relation

Named = Mapping[str, Tensor | tuple[Tensor, int | None]]
"""A by parameter or module: a tensor of its shape, or a vector along an axis (None: the one that
fits)."""


@dataclass(frozen=True)
class Transform:
    """g ↦ D ∘ (β g + (1 - β) M); without a mean, g ↦ D ∘ g.

    The noise of a gradient that was clipped with D may be drawn later, and then needs the same D.
    So D is copied, unless the source promises with ``lent=False`` that its tensors never change.
    """

    scale: Params
    mean: Params | None = None
    beta: float = 1.0
    lent: bool = True

    def stable_scale(self) -> Params:
        """Return D in tensors that never change."""
        if not self.lent:
            return self.scale
        return {name: value.detach().clone() for name, value in self.scale.items()}


class SideSource(Protocol):
    """A source of side information."""

    @property
    def event(self) -> DpEvent:
        """What it cost to learn this; a non-private event for an oracle."""

    @property
    def provenance(self) -> Provenance:
        """Where it comes from and why it is not sensitive."""

    def init(self, params: Params) -> Any:
        """Return the state before the first step, or refuse ``params`` that do not fit.

        Nothing is drawn here: `observe` draws noise, after the run has paid for ``event``.
        """

    def observe(self, state: Any, step: Step) -> tuple[Transform, Any]:
        """Return the transform for this step, and the next state."""


@runtime_checkable
class MeasuredSource(Protocol):
    """A source measured on private data, whose price depends on the relation and accountant."""

    def event_under(self, relation: Relation, accountant: Accountant) -> DpEvent:
        """Return what a ledger with this relation and accountant is charged."""


def inverse_scale(named: Named, params: Params) -> Params:
    """Return D = 1/A for every parameter, in shapes that broadcast.

    A full D has the memory layout of its weights. A parameter without side information gets the
    median of all given D.
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
        given[parameter] = _fitted(name, value, params[parameter])
    missing = [name for name in params if name not in given]
    if not missing:
        return given
    neutral = median(list(given.values())).double()
    return given | {name: neutral.reshape([1] * params[name].ndim) for name in missing}


def positive(name: str, values: Tensor) -> Tensor:
    """Return A in float64, or refuse entries that are not positive and finite."""
    _require_positive(name, values)
    return values.detach().double()


def _require_positive(name: str, values: Tensor) -> None:
    held = values.detach()
    low, high = (float(bound) for bound in held.aminmax()) if held.numel() else (0.0, 0.0)
    finite = math.isfinite(low) and math.isfinite(high)
    if not finite or low <= 0 or math.isinf(float(1 / torch.tensor(low, dtype=torch.float32))):
        found = "NaN or infinity" if not finite else f"a smallest entry of {low}"
        raise SideInformationError(
            f"Expected positive, finite side information for '{name}', found {found}. "
            "Set a floor above zero."
        )


def median(parts: list[Tensor]) -> Tensor:
    """Return the median of positive entries (the lower of two) without copying large parts.

    Positive float32 numbers are ordered like their bits: this counts the upper half of the bits,
    then the lower half within the bin that holds the median.
    """
    if sum(part.numel() for part in parts) < 2**22:
        return torch.cat([part.double().flatten() for part in parts]).median()
    rank, upper = (sum(part.numel() for part in parts) - 1) // 2, -1
    for shift in (16, 0):
        counts = torch.zeros(2**16, dtype=torch.int64)
        for bits in _bits(parts):
            inside = bits if upper < 0 else bits[bits >> 16 == upper]
            counts += torch.bincount((inside >> shift) & 0xFFFF, minlength=2**16).cpu()
        found = int(torch.searchsorted(counts.cumsum(0), rank, right=True))
        rank -= int(counts[:found].sum())
        upper = found if upper < 0 else (upper << 16) + found
    return torch.tensor(upper, dtype=torch.int32).view(torch.float32).to(parts[0].device)


def _bits(parts: list[Tensor]) -> Iterator[Tensor]:
    for part in parts:
        rows = part.T if part.ndim == 2 and part.T.is_contiguous() else part
        for chunk in torch.split(rows, max(1, 2**20 // max(1, rows[0].numel()))):
            yield chunk.float().contiguous().view(torch.int32).flatten()


def _parameter_name(name: str, params: Params) -> str:
    for candidate in (name, f"{name}.weight"):
        if candidate in params:
            return candidate
    raise SideInformationError(
        f"Expected side information for a parameter or module of the model, found '{name}'. "
        f"The model has: {', '.join(params)}. Name one of them (`at=...` in frequency and tfidf)."
    )


def _axis_for(vector: Tensor, shape: tuple[int, ...]) -> int:
    """Return the last axis that has the length of ``vector``, else the last axis."""
    fitting = [axis for axis, length in enumerate(shape) if length == vector.numel()]
    return fitting[-1] if fitting else -1


def _fitted(name: str, value: Tensor | tuple[Tensor, int | None], parameter: Tensor) -> Tensor:
    if isinstance(value, tuple):
        vector, given = value
        shape = tuple(parameter.shape)
        axis = _axis_for(vector, shape) if given is None else given
        fits = -len(shape) <= axis < len(shape) and vector.shape == (shape[axis],)
        if not fits:
            raise SideInformationError(
                f"Expected a vector that fits axis {axis} of '{name}' with shape {shape}, found "
                f"shape {tuple(vector.shape)}. Give one value per index along that axis."
            )
        broadcast = [1] * len(shape)
        broadcast[axis] = len(vector)
        return (1 / positive(name, vector)).reshape(broadcast).to(parameter.device)
    if value.shape != parameter.shape:
        raise SideInformationError(
            f"Expected side information of shape {tuple(parameter.shape)} for '{name}', found "
            f"{tuple(value.shape)}. Give a full tensor, or a pair (vector, axis)."
        )
    _require_positive(name, value)
    inverse = torch.empty_like(parameter)  # in the memory layout of the weights
    return torch.div(1, value.to(parameter), out=inverse)
