"""Whitening: a matrix on the inputs of every layer, from public examples.

A layer with inputs a has gradients Σ b aᵀ. Along directions in which inputs are large, gradients
are large, whatever the output gradients b are: the clip cuts everything down to make room for them,
and the noise drowns the rest. With the second moments A = E[a aᵀ] of public examples (a 1 is
appended to a where there is a bias) and their mean eigenvalue λ̄, every gradient is multiplied by

    P = (A / λ̄ + damping · I)^(-exponent),

before it is clipped. This is the input factor of K-FAC; its diagonal alone would be AdaDPS with one
number per feature. Tables of words have only a diagonal. With ``outputs``, the other factor of
K-FAC, from E[b bᵀ], stands on the other side: the pair of DP-KFC (2026). Both factors are relative
to their mean eigenvalue, so that they turn and stretch the gradient of a layer, but leave it to the
loss how large the gradients of one layer are beside those of another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from dp_accounting import DpEvent, NoOpDpEvent
from torch import Tensor

from adadps.data.examples import PublicExamples
from adadps.data.provenance import Provenance
from adadps.engine.group import Group
from adadps.engine.moments import Moments
from adadps.engine.waist import GradientBatch, Step
from adadps.errors import DataError, SideInformationError, require, require_positive
from adadps.methods.side.source import Transform
from adadps.tensors.sums import Params

LEAST_DAMPING = 1e-12
"""With less, matrices could leave the range of float32, and no gradient would be finite."""


@dataclass(frozen=True)
class WhiteningState:
    """D = 1 for every parameter, and the transform of the last refresh, if there was one.

    ``first_median`` is the median norm of public examples at the first refresh; 0 before it.
    """

    ones: Params
    transform: Transform | None = None
    first_median: float = 0.0


@dataclass(frozen=True)
class Whitening:
    """Matrices from public ``examples`` at the current weights. Build it with `whiten`."""

    examples: PublicExamples
    every: int
    damping: float
    exponent: float
    outputs: bool
    median_norm: float | None
    floor: float

    gives_matrices: ClassVar[bool] = True

    @property
    def event(self) -> DpEvent:
        """Nothing is charged for public data."""
        return NoOpDpEvent()

    @property
    def provenance(self) -> Provenance:
        """The provenance of the examples."""
        return self.examples.provenance

    @property
    def settings(self) -> str:
        """What is done with the examples; a run cannot be resumed with other settings."""
        sides = "inputs and outputs" if self.outputs else "inputs"
        scaled = "" if self.median_norm is None else (
            f", median norm {self.median_norm:g} (floor {self.floor:g})")  # fmt: skip
        return (
            f"whitens {sides} every {self.every} steps, damping {self.damping:g}, "
            f"exponent {self.exponent:g}{scaled}"
        )

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
            state = _of_first(self._refreshed(state, gradients), step.group)
        assert state.transform is not None
        return state.transform, state

    def require_layers(self, public: GradientBatch, private: GradientBatch) -> None:
        """Refuse a model without layers to whiten, or private rows of another form.

        ``private`` is a batch without rows, which only shows the form of the private data.
        """
        moments = _known_inputs(public)
        matrices = ({n: torch.eye(len(m)) for n, m in held.items()}
                    for held in (moments.inputs, moments.outputs))  # fmt: skip
        private.whiten(*matrices)

    def _refreshed(self, state: WhiteningState, gradients: GradientBatch) -> WhiteningState:
        found = self._transform(gradients, state.ones)
        if self.median_norm is None:
            return replace(state, transform=found)
        norms = torch.cat([_whitened(part, found).norms() for part in gradients.parts()])
        median = float(norms.median())
        first = state.first_median or median
        scaled = self._to_median(found, max(median, self.floor * first))
        return replace(state, transform=scaled, first_median=first)

    def _transform(self, gradients: GradientBatch, ones: Params) -> Transform:
        moments = _known_inputs(gradients)
        words = {
            name: self._by_word(value, moments.axes[name]) for name, value in moments.words.items()
        }
        return Transform(
            {**ones, **words},
            inputs={name: self._root(name, value) for name, value in moments.inputs.items()},
            outputs={
                name: self._root(name, value)
                for name, value in (moments.outputs if self.outputs else {}).items()
            },
            lent=False,
        )

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

    def _to_median(self, found: Transform, usual: float) -> Transform:
        """Scale all gradients so that a norm of ``usual`` becomes ``median_norm``."""
        assert self.median_norm is not None
        factor = self.median_norm / usual if usual > 0 else 1.0
        return replace(found, scale={name: value * factor for name, value in found.scale.items()})


def _of_first(state: WhiteningState, group: Group) -> WhiteningState:
    """The state that the first process has found: roots of matrices may differ in a last bit."""
    transform = state.transform
    if group.is_alone or transform is None:
        return state
    parts = {"scale": transform.scale, "inputs": transform.inputs, "outputs": transform.outputs}
    known = torch.tensor(state.first_median, dtype=torch.float64)
    told = group.first(
        {f"{part}/{name}": value for part, held in parts.items() for name, value in held.items()}
        | {"median": known}
    )
    found = {part: {name: told[f"{part}/{name}"] for name in held} for part, held in parts.items()}
    taken_over = replace(
        transform, scale=found["scale"], inputs=found["inputs"], outputs=found["outputs"]
    )
    return replace(state, transform=taken_over, first_median=float(told["median"]))


def _known_inputs(gradients: GradientBatch) -> Moments:
    """Return the moments of what layers read; a model has to have at least one such layer."""
    moments = gradients.moments()
    if not (moments.inputs or moments.words):
        raise SideInformationError(
            "Expected at least one layer with a rule (linear, convolutional, recurrent, "
            "attention, embedding), found none whose inputs are known. Use `side.public` "
            "instead, which needs gradients alone."
        )
    return moments


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
    floor: float = 1e-3,
) -> Whitening:
    """Multiply the gradients of every layer by P = (A / λ̄ + damping · I)^(-exponent).

    A = E[a aᵀ] are the second moments of the layer's inputs on a batch of public ``examples``,
    measured at the current weights every ``refresh_every`` steps. ``outputs`` adds the matrix of
    output gradients on the other side. With ``median_norm``, all gradients are also multiplied by a
    number, so that public ones have this median norm: ``median_norm=2`` with ``clip_norm=1`` clips
    at half of it, whatever the model. The median counts as at least ``floor`` times that of the
    first refresh: where a model fits all public examples, noise is not scaled up without end. It is
    that of single examples; the mean over the rows of a user is usually shorter. Nothing of this
    reads private rows: ε does not change.

    >>> from adadps import public_examples
    >>> data = public_examples([[0.0, 2.0], [1.0, 0.0]], [0, 1], source="two points",
    ...                        public_because="made up", batch_size=2)
    >>> whiten(data, refresh_every=10).provenance.source
    'two points'
    """
    if not isinstance(examples, PublicExamples):
        raise DataError(
            f"Expected public examples to whiten with, found {type(examples).__name__}. Give "
            "`public_examples(...)`, `side.image_probes(...)` or `side.token_probes(...)`."
        )
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
    require(0 < floor <= 1, "0 < floor <= 1", floor, "It is a share of the first median.")
    return Whitening(examples, refresh_every, damping, exponent, outputs, median_norm, floor)
