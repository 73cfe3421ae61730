"""Side information from the private data itself: frequencies, measured once with noise.

The count vector c_i of each document over a *public* vocabulary is clipped, and noise is added to
the sum:

    f = Σ_i c_i · min(1, C/‖c_i‖) + N(0, σ²C²),    A = max(f / max f, floor)^power.

One document moves the sum by at most C, so this is one Gaussian mechanism, without amplification by
sampling.

*One object, one release.* The noise is drawn when A is first needed, which in a run is after its
payment, and never again: both sides of a two-sided chain, and later runs with the same object, read
the same noisy counts. *Every run pays.* The epsilon of each run is correct by itself, whatever else
happens; on a shared ledger a second run therefore pays again for counts that are already known. For
a fresh measurement, make a new object.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from dp_accounting import DpEvent, GaussianDpEvent
from torch import Tensor

from adadps.accounting.contract import measurement_divisor
from adadps.data.examples import as_features
from adadps.data.fields import Rows, one_input
from adadps.data.provenance import DeclaredRead, Provenance, declared_read
from adadps.data.sparse_rows import SparseRows
from adadps.engine.noise.randomness import SMALLEST_DEVIATION, secure
from adadps.engine.waist import Step
from adadps.errors import SideInformationError, require, require_positive
from adadps.methods.side.frequency import formula, relative_to_largest, require_shape
from adadps.methods.side.source import Transform, inverse_scale
from adadps.tensors.sums import Params
from adadps.types import Accountant, Relation, Unit

SMALLEST_NOISE, LARGEST_NOISE = 1e-6, 1e6
ROUNDING = 1e-9
"""Norms are raised by this share, which is far more than their rounding error in float64."""


@dataclass(frozen=True)
class PendingMeasurement:
    """The state before anything was drawn: the parameters for which A will be needed."""

    params: Params


class NoisyFrequencies:
    """Frequencies measured on private documents. Build it with `noisy_frequencies`."""

    def __init__(
        self,
        counts: Rows,
        *,
        clip_norm: float,
        noise_multiplier: float,
        shape: tuple[float, float],
        place: tuple[str, int | None],
        source: str,
    ) -> None:
        self.clip_norm, self.noise_multiplier = clip_norm, noise_multiplier
        self._shape, self._place, self._source = shape, place, source
        self._width = counts.width if isinstance(counts, SparseRows) else counts.shape[1]
        self._counts: Rows | None = counts
        self._documents = len(counts)
        self._released: Tensor | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "Expected a single owner of these noisy frequencies, found an attempt to copy them. A "
            "copy would draw a second noise: make a new object, which is paid for separately."
        )

    def require_rows(self, number: int, unit: Unit) -> None:
        """Refuse counts that do not have exactly one row per example, or per user, of a run."""
        if number != self._documents:
            raise SideInformationError(
                f"Expected one row of counts for each of the {number} {unit.value}s, found "
                f"{self._documents} rows. Count the words of the same {unit.value}s, one row each: "
                f"one {unit.value} in several rows would cost several times as much."
            )

    @property
    def event(self) -> DpEvent:
        """One Gaussian mechanism; `event_under` returns what a ledger is charged for it."""
        return GaussianDpEvent(self.noise_multiplier)

    def event_under(self, relation: Relation, accountant: Accountant) -> DpEvent:
        """Return what a ledger with this relation and accountant is charged."""
        divisor = measurement_divisor(relation, accountant)
        return GaussianDpEvent(self.noise_multiplier / divisor)

    @property
    def provenance(self) -> Provenance:
        """States that A was measured on private data, with noise."""
        return Provenance(
            f"{self._source}, measured with noise; {formula(*self._shape)}",
            public_because="released by a Gaussian mechanism that is part of epsilon: each count "
            f"vector clipped to L2 norm {self.clip_norm:g}, noise multiplier "
            f"{self.noise_multiplier:g}",
        )

    def init(self, params: Params) -> PendingMeasurement | Transform:
        """Check that A will fit the model; nothing is drawn yet."""
        self._transform(torch.ones(self._width, dtype=torch.float64), params)
        return PendingMeasurement(params)

    def observe(
        self,
        state: PendingMeasurement | Transform,
        step: Step,  # noqa: ARG002
    ) -> tuple[Transform, PendingMeasurement | Transform]:
        """Return the same transform at every step; the noise is drawn before the first one."""
        if isinstance(state, Transform):
            return state, state
        transform = self._transform(self._once(), state.params)
        return transform, transform

    def _transform(self, frequencies: Tensor, params: Params) -> Transform:
        at, axis = self._place
        relative = relative_to_largest(frequencies, *self._shape)
        return Transform(inverse_scale({at: (relative, axis)}, params), lent=False)

    @declared_read(DeclaredRead.PAID_MEASUREMENT)
    def _once(self) -> Tensor:
        """Return the noisy sum; the first call draws the noise and drops the counts."""
        with self._lock:
            if self._counts is not None:
                total = clipped_sum(self._counts, self.clip_norm)
                deviation = self.noise_multiplier * self.clip_norm
                self._released = secure().release(total, standard_deviation=deviation)
                self._counts = None
            assert self._released is not None
            return self._released


def noisy_frequencies(
    counts: Any,
    *,
    clip_norm: float,
    noise_multiplier: float,
    floor: float,
    power: float = 1.0,
    source: str,
    at: str = "weight",
    axis: int | None = None,
) -> NoisyFrequencies:
    """Use A = max(f / max f, floor)^power from noisy counts of the *private* documents.

    ``counts`` has one column per word of a public vocabulary and one row per example, or one row
    per user where users are protected (the sum over the examples of the user). Give
    ``counts > 0`` for document frequencies. This costs one Gaussian mechanism with
    ``noise_multiplier``, without amplification, which every run that uses it pays before the noise
    is drawn: `calibrate_side_noise` finds the noise for a slice of epsilon.

    >>> side = noisy_frequencies([[1, 0], [2, 1]], clip_norm=1.0, noise_multiplier=5.0, floor=0.1,
    ...                          source="words of the mails")
    >>> side.event
    GaussianDpEvent(noise_multiplier=5.0)
    """
    require_positive("clip_norm", clip_norm)
    require(
        SMALLEST_NOISE <= noise_multiplier <= LARGEST_NOISE,
        f"a noise_multiplier between {SMALLEST_NOISE:g} and {LARGEST_NOISE:g}",
        noise_multiplier,
        "It is the noise's standard deviation divided by clip_norm.",
    )
    require(
        clip_norm * noise_multiplier >= SMALLEST_DEVIATION,
        f"noise of a standard deviation of at least {SMALLEST_DEVIATION:g}",
        clip_norm * noise_multiplier,
        "Less is lost in floating point: raise clip_norm.",
    )
    require_shape(floor, power)
    held = one_input(as_features(counts))
    if isinstance(held, Tensor) and held.ndim != 2:
        raise SideInformationError(
            f"Expected counts as a matrix with one row per document, found {held.ndim} axes. Count "
            "the words of each document over a public vocabulary."
        )
    return NoisyFrequencies(
        held,
        clip_norm=float(clip_norm),
        noise_multiplier=float(noise_multiplier),
        shape=(floor, power),
        place=(at, axis),
        source=source,
    )


def clipped_sum(counts: Rows, clip_norm: float) -> Tensor:
    """Return Σ_i c_i · min(1, C/‖c_i‖) in float64.

    >>> clipped_sum(torch.tensor([[3.0, 4.0], [0.5, 0.0]]), 1.0)
    tensor([1.1000, 0.8000], dtype=torch.float64)
    """
    if isinstance(counts, SparseRows):
        values = counts.values.double()
        weights = _weights(counts.row_sums(values.square()).sqrt(), clip_norm)
        total = values.new_zeros(counts.width)
        return total.index_add_(0, counts.columns, values * weights[counts.rows])
    dense = counts.double()
    return dense.T @ _weights(torch.linalg.vector_norm(dense, dim=1), clip_norm)


def _weights(norms: Tensor, clip_norm: float) -> Tensor:
    """Return weights of at most 1 that keep every row within C despite rounding; 0 on overflow."""
    return (clip_norm / (norms * (1 + ROUNDING))).clamp_max(1.0)
