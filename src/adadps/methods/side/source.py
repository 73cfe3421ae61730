"""What every kind of side information has in common.

Side information is a diagonal A > 0 (and sometimes a mean M) for the parameters of the model. A
stage applies the transform g ↦ D ∘ (β g + (1 - β) M) with D = 1/A. `fixed` is the simplest source:
an A that does not change during training.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from dp_accounting import DpEvent, NonPrivateDpEvent, NoOpDpEvent
from torch import Tensor

from adadps.accounting.events import is_free
from adadps.data.identity import PublicRows
from adadps.data.provenance import Provenance, digest_of
from adadps.engine.waist import Step
from adadps.errors import SideInformationError
from adadps.tensors.sums import Params
from adadps.types import Accountant, Relation, Unit

Named = Mapping[str, Tensor | tuple[Tensor, int | None]]
"""A by parameter or module: a tensor of its shape, or a vector along an axis (None: the one that
fits)."""


@dataclass(frozen=True)
class Transform:
    """g ↦ D ∘ (β g + (1 - β) M); without a mean, g ↦ D ∘ g; with matrices, g ↦ D ∘ (Q g P).

    ``inputs`` has matrices P along the inputs of layers, ``outputs`` matrices Q along their
    outputs, by the names of their weights.

    The noise of a gradient that was clipped with D may be drawn later, and then needs the same D.
    So D is copied, unless the source promises with ``lent=False`` that its tensors never change.
    """

    scale: Params
    mean: Params | None = None
    beta: float = 1.0
    lent: bool = True
    inputs: Params = field(default_factory=dict)
    outputs: Params = field(default_factory=dict)

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


@runtime_checkable
class GivesMatrices(Protocol):
    """A source whose transforms have matrices: they come before any scale of the same gradients."""

    gives_matrices: bool


@runtime_checkable
class LearnsFromReleases(Protocol):
    """A source that follows what its own run releases: post-processing, which costs nothing."""

    def learn(self, state: Any, released: Params, step: Step) -> Any:
        """Return the state for the next step, given what this one has released, with its noise."""


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


NOT_PUBLIC = "it is NOT public: computed from private data without noise"
"""The place of a reason, for sources that are not public."""


@dataclass(frozen=True)
class Fixed:
    """A given A for some parameters; all others get the median of D = 1/A.

    ``rows`` are the rows of the public corpus behind A, if it is known; ``unit`` is the unit of
    privacy for which ``event`` is the price.
    """

    named: Named
    provenance: Provenance
    event: DpEvent
    rows: PublicRows | None = field(default=None, repr=False, compare=False)
    unit: Unit = Unit.EXAMPLE

    def init(self, params: Params) -> Transform:
        """Return D = 1/A, checked against the model."""
        return Transform(inverse_scale(self.named, params), lent=False)

    def observe(self, state: Transform, step: Step) -> tuple[Transform, Transform]:  # noqa: ARG002
        """Return the same transform at every step."""
        return state, state


@dataclass(frozen=True)
class Uniform:
    """A = 1: no side information at all."""

    @property
    def provenance(self) -> Provenance:
        """States that A is a constant."""
        return Provenance("none: A = 1", public_because="a constant")

    @property
    def event(self) -> DpEvent:
        """Nothing is charged for a constant."""
        return NoOpDpEvent()

    def init(self, params: Params) -> Transform:
        """Return D = 1."""
        return Transform(
            {
                name: torch.ones([1] * p.ndim, dtype=torch.float64, device=p.device)
                for name, p in params.items()
            },
            lent=False,
        )

    def observe(self, state: Transform, step: Step) -> tuple[Transform, Transform]:  # noqa: ARG002
        """Return the same transform at every step."""
        return state, state


def fixed(
    named: Named,
    *,
    source: str,
    public_because: str,
    digest: str | None = None,
    event: DpEvent | None = None,
    rows: PublicRows | None = None,
    unit: Unit = Unit.EXAMPLE,
) -> Fixed:
    """Use a given A: ``{name: tensor}`` or ``{name: (vector, axis)}``, by parameter or module.

    ``event`` is what it cost to learn A, if it was measured on private data with a private
    mechanism. State it for the relation and accountant of the run's ledger (under replace-one, RDP
    does not double the sensitivity by itself); ``unit`` is the unit of privacy that it protects.
    Leave both out for public knowledge. ``rows`` are the `public_rows` of the corpus behind A:
    private examples that occur among them are left out of training.

    >>> side = fixed({"weight": (torch.tensor([1.0, 0.5]), 1)}, source="a table in a book",
    ...              public_because="published")
    >>> side.init({"weight": torch.zeros(3, 2), "bias": torch.zeros(3)}).scale["weight"]
    tensor([[1., 2.]], dtype=torch.float64)
    """
    held = {name: _as_entry(value) for name, value in named.items()}
    price = event or NoOpDpEvent()
    if digest is None and is_free(price):  # only public values may be hashed
        values = [value[0] if isinstance(value, tuple) else value for value in held.values()]
        digest = digest_of([*held, *values])
    return Fixed(held, Provenance(source, public_because, digest), price, rows, unit)


def from_private_data(named: Named, *, source: str) -> Fixed:
    """Use an A that was computed from *private* data without noise, so that epsilon is infinite.

    This is for comparisons with published methods, such as token frequencies of the training set.
    The result says why it is not private. `noisy_frequencies` measures A at a price instead.

    >>> side = from_private_data({"weight": (torch.ones(2), 1)}, source="token counts of the mails")
    >>> side.event
    NonPrivateDpEvent()
    """
    return fixed(named, source=source, public_because=NOT_PUBLIC, event=NonPrivateDpEvent())


def uniform() -> Uniform:
    """Use A = 1, which turns AdaDPS into DP-SGD."""
    return Uniform()


def _as_entry(
    value: Tensor | tuple[Tensor, int | None],
) -> Tensor | tuple[Tensor, int | None]:
    if isinstance(value, tuple):
        return torch.as_tensor(value[0]), value[1]
    return torch.as_tensor(value)
