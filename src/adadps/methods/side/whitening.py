"""Whitening: a matrix on the inputs of every layer, from public examples.

A layer with inputs a has gradients Σ b aᵀ. Along directions in which inputs are large, gradients
are large, whatever the output gradients b are: the clip cuts everything down to make room for them,
and the noise drowns the rest. With the second moments A = E[a aᵀ] of public examples (a 1 is
appended to a where there is a bias) and their mean eigenvalue λ̄, every gradient is multiplied by

    P = (A / λ̄ + damping · I)^(-exponent),

before it is clipped. This is the input factor of K-FAC; its diagonal alone would be AdaDPS with one
number per feature. Tables of words have only a diagonal. With ``outputs``, the other factor of
K-FAC, from E[b bᵀ], stands on the other side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from dp_accounting import DpEvent, NoOpDpEvent
from torch import Tensor

from adadps.data.examples import PublicExamples
from adadps.data.provenance import Provenance
from adadps.engine.waist import GradientBatch, Step
from adadps.errors import SideInformationError, require, require_positive
from adadps.methods.side.source import Transform
from adadps.tensors.sums import Params

LEAST_DAMPING = 1e-12
"""With less, matrices could leave the range of float32, and no gradient would be finite."""


@dataclass(frozen=True)
class WhiteningState:
    """D = 1 for every parameter, and the transform of the last refresh, if there was one."""

    ones: Params
    transform: Transform | None = None


@dataclass(frozen=True)
class Whitening:
    """Matrices from public ``examples`` at the current weights. Build it with `whiten`."""

    examples: PublicExamples
    every: int
    damping: float
    exponent: float
    outputs: bool
    median_norm: float | None

    @property
    def event(self) -> DpEvent:
        """Nothing is charged for public data."""
        return NoOpDpEvent()

    @property
    def provenance(self) -> Provenance:
        """The provenance of the examples."""
        return self.examples.provenance

    def init(self, params: Params) -> WhiteningState:
        """Return D = 1: nothing is known before the first step."""
        return WhiteningState(
            {
                name: torch.ones([1] * value.ndim, dtype=torch.float64, device=value.device)
                for name, value in params.items()
            }
        )

    def observe(self, state: WhiteningState, step: Step) -> tuple[Transform, WhiteningState]:
        """Measure public examples anew if that is due, and return the transform."""
        if state.transform is None or (step.index - 1) % self.every == 0:
            gradients = step.differentiate(self.examples.batch(step.index).examples)
            state = replace(state, transform=self._transform(gradients, state.ones))
        assert state.transform is not None
        return state.transform, state

    def _transform(self, gradients: GradientBatch, ones: Params) -> Transform:
        moments = gradients.moments()
        if not (moments.inputs or moments.words):
            raise SideInformationError(
                "Expected at least one layer with a rule (linear, convolutional, recurrent, "
                "attention, embedding), found none whose inputs are known. Use `side.public` "
                "instead, which needs gradients alone."
            )
        words = {
            name: self._by_word(value, moments.axes[name]) for name, value in moments.words.items()
        }
        found = Transform(
            {**ones, **words},
            inputs={name: self._root(name, value) for name, value in moments.inputs.items()},
            outputs={
                name: self._root(name, value)
                for name, value in (moments.outputs if self.outputs else {}).items()
            },
            lent=False,
        )
        return found if self.median_norm is None else self._to_median(found, gradients)

    def _root(self, name: str, moment: Tensor) -> Tensor:
        """(A / λ̄ + damping · I)^(-exponent), in float32."""
        if not bool(torch.isfinite(moment).all()):
            raise SideInformationError(
                f"Expected finite inputs and gradients of '{name}' on public examples, found "
                "others. Check the public data, or train with a smaller learning rate."
            )
        values, vectors = torch.linalg.eigh(moment)
        mean = values.mean()
        relative = values.clamp_min(0) / mean if mean > 0 else torch.zeros_like(values)
        scale = (relative + self.damping).pow(-self.exponent)
        root: Tensor = (vectors * scale) @ vectors.T
        return root.float()

    def _by_word(self, moment: Tensor, axis: int) -> Tensor:
        mean = moment.mean()
        relative = moment / mean if mean > 0 else torch.zeros_like(moment)
        scale = (relative + self.damping).pow(-self.exponent)
        return scale.view((-1, 1) if axis == 0 else (1, -1))

    def _to_median(self, found: Transform, gradients: GradientBatch) -> Transform:
        """Scale all gradients so that the median public norm is ``median_norm``."""
        norms = torch.cat([_whitened(part, found).norms() for part in gradients.parts()])
        usual = float(norms.median())
        assert self.median_norm is not None
        factor = self.median_norm / usual if usual > 0 else 1.0
        return replace(found, scale={name: value * factor for name, value in found.scale.items()})


def _whitened(gradients: GradientBatch, transform: Transform) -> GradientBatch:
    if transform.inputs or transform.outputs:
        gradients = gradients.whiten(transform.inputs, transform.outputs)
    return gradients.scale(transform.scale)


def whiten(
    examples: PublicExamples,
    *,
    refresh_every: int = 25,
    damping: float = 0.1,
    exponent: float = 0.5,
    outputs: bool = False,
    median_norm: float | None = None,
) -> Whitening:
    """Multiply the gradients of every layer by P = (A / λ̄ + damping · I)^(-exponent).

    A = E[a aᵀ] are the second moments of the layer's inputs on a batch of public ``examples``,
    measured at the current weights every ``refresh_every`` steps. ``outputs`` adds the matrix of
    output gradients on the other side. With ``median_norm``, all gradients are also multiplied by a
    number, so that public ones have this median norm: ``median_norm=2`` with ``clip_norm=1`` clips
    at half of it, whatever the model. Nothing of this reads private rows: ε does not change.

    >>> from adadps import public_examples
    >>> data = public_examples([[0.0, 2.0], [1.0, 0.0]], [0, 1], source="two points",
    ...                        public_because="made up", batch_size=2)
    >>> whiten(data, refresh_every=10).provenance.source
    'two points'
    """
    require(refresh_every >= 1, "refresh_every >= 1", refresh_every, "Refresh at least once.")
    require(
        LEAST_DAMPING <= damping < math.inf,
        f"a finite damping of at least {LEAST_DAMPING:g}",
        damping,
        "It keeps directions without inputs finite.",
    )
    require(0 < exponent <= 1, "0 < exponent <= 1", exponent, "1/2 whitens, 1 inverts.")
    if median_norm is not None:
        require_positive("median_norm", median_norm)
    return Whitening(examples, refresh_every, damping, exponent, outputs, median_norm)
