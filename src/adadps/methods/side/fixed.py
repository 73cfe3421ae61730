"""Side information that does not change during training."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from dp_accounting import DpEvent, NonPrivateDpEvent, NoOpDpEvent
from torch import Tensor

from adadps.accounting.events import is_free
from adadps.data.overlap import PublicRows
from adadps.data.provenance import Provenance, digest_of
from adadps.engine.waist import Step
from adadps.methods.side.source import Named, Transform, inverse_scale
from adadps.tensors.sums import Params
from adadps.types import Unit

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
