"""One model, one loss, one way to read the features: what training differentiates."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from adadps.data.examples import Examples, Features, take
from adadps.data.sparse_rows import SparseRows
from adadps.engine.choice import reads_in_sequence
from adadps.engine.chunked import ChunkedGradients
from adadps.engine.general import GeneralEngine
from adadps.engine.ghost import GhostEngine
from adadps.engine.losses import cross_entropy
from adadps.engine.noise.randomness import Randomness
from adadps.engine.passes.isolation import Isolation
from adadps.engine.passes.model_state import evaluating
from adadps.engine.passes.synthetic import ROWS, followed_by, padding_for
from adadps.engine.waist import Engine, GradientBatch, Units
from adadps.tensors.params import Params


@dataclass(frozen=True)
class Objective:
    """Model and loss behind an engine, with optional public feature weights in front.

    ``synthetic`` rows pad every batch; every pass runs in ``isolation``. ``feature_weights`` s turn
    every row x into s ∘ x / ‖s ∘ x‖, one row at a time.
    """

    model: nn.Module
    engine: Engine
    synthetic: Examples
    isolation: Isolation
    feature_weights: Tensor | None = None

    def drawing_from(self, randomness: Randomness, *, quotes_errors: bool = False) -> Objective:
        """The same with a run's own secret source for the chance inside the model."""
        isolation = self.isolation.drawing_from(randomness.bytes, quotes_errors=quotes_errors)
        return replace(self, isolation=isolation)

    def reparametrised(self, feature_weights: Tensor) -> Objective:
        """The same objective on re-weighted, re-normalised features."""
        held = self.feature_weights
        return replace(
            self, feature_weights=feature_weights if held is None else held * feature_weights
        )

    def params(self) -> Params:
        """The trainable parameters, sharing memory with the model."""
        return {
            name: parameter.detach()
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        }

    def per_unit(
        self, params: Params, batch: Examples, units: Units | None, chunk: int | None = None
    ) -> GradientBatch:
        """Per-unit gradients, in pieces of about ``chunk`` examples with whole units.

        Without ``chunk`` the engine says how many it can hold, so that memory stays constant. Each
        piece is padded with synthetic rows: what is computed for a row does not depend on how many
        others were drawn, and an empty batch is padding alone.
        """
        chunk = chunk or self.engine.most_at_once(params)
        multiple = min(ROWS, chunk)
        chunk -= chunk % multiple

        def differentiate(rows: Tensor | None, part: Units | None) -> GradientBatch:
            piece = self._prepared(batch if rows is None else batch.take(rows))
            count = padding_for(len(piece), multiple)
            padded = followed_by(piece, self.synthetic, count)
            return self.isolation.on_private_rows(
                partial(self.engine.per_unit, params, padded, part, count)
            )

        if len(batch) <= chunk:
            return differentiate(None, units)
        pieces = _pieces(batch.targets, units, chunk)
        return ChunkedGradients(tuple(partial(differentiate, rows, part) for rows, part in pieces))

    def encoded(self, batch: Examples) -> Examples:
        """The batch with features in the form that the engine reads."""
        return Examples(self.engine.encoded(batch.features), batch.targets)

    def reads(self, features: Features) -> dict[str, Tensor]:
        """Rows that these features make the model read, where it is not all of a parameter."""
        return self.engine.reads(features)

    def tables(self) -> list[str]:
        """Names of the parameters of which a batch reads some rows only."""
        return list(self.reads(self.synthetic.features))

    def tables_by_feature(self) -> list[nn.Parameter]:
        """Weights of linear layers of which sparse rows read one feature at a time."""
        if not isinstance(self.synthetic.features, SparseRows):
            return []
        found = (self.model.get_parameter(name) for name in self.tables())
        layers = {id(m.weight) for m in self.model.modules() if isinstance(m, nn.Linear)}
        return [parameter for parameter in found if id(parameter) in layers]

    def mean_gradient(self, params: Params, batch: Examples) -> Params:
        """Ordinary mean gradient, for public data."""
        with self.isolation():
            return self.engine.mean_gradient(params, self._prepared(batch))

    def outputs(self, params: Params, features: Features, chunk: int = 4096) -> Tensor:
        """Outputs in evaluation mode, in pieces of ``chunk`` rows."""
        device = next(iter(params.values())).device
        rows = torch.split(torch.arange(len(features)), chunk)
        with evaluating(self.model), self.isolation():
            outputs = [
                self.engine.outputs(params, self.prepare(take(features, part).to(device)))
                for part in rows
            ]
        return torch.cat(outputs)

    def prepare(self, features: Features) -> Features:
        """Apply the feature weights, if there are any."""
        if self.feature_weights is None:
            return features
        return reweighed(self.engine.encoded(features), self.feature_weights)

    def _prepared(self, batch: Examples) -> Examples:
        return Examples(self.prepare(batch.features), batch.targets)


def predict(model: nn.Module, features: Features, feature_weights: Tensor | None) -> Tensor:
    """Outputs of a trained model, through the feature weights that it was trained with."""
    kind = GhostEngine if reads_in_sequence(model, features) else GeneralEngine
    engine = kind(model, cross_entropy)  # of which only the outputs are asked for
    params = {name: parameter.detach() for name, parameter in model.named_parameters()}
    nobody = Examples(take(features, torch.arange(0)), torch.zeros(0))
    isolation = Isolation(model, cross_entropy, os.urandom)
    return Objective(model, engine, nobody, isolation, feature_weights).outputs(params, features)


def reweighed(features: Features, weights: Tensor) -> Features:
    """s ∘ x / ‖s ∘ x‖ for every row x; rows of zeros stay zero.

    >>> reweighed(torch.tensor([[3.0, 2.0]]), torch.tensor([1.0, 2.0]))
    tensor([[0.6000, 0.8000]])
    """
    if isinstance(features, SparseRows):
        values = features.values * weights.to(features.values)[features.columns]
        norms = features.row_sums(values.double().square()).sqrt().to(values.dtype)
        return features.with_values(values / norms.clamp_min(1e-30)[features.rows])
    scaled = features * weights.to(features)
    return torch.nn.functional.normalize(scaled, dim=1, eps=1e-30)


def _pieces(targets: Tensor, units: Units | None, chunk: int) -> list[tuple[Tensor, Units | None]]:
    size = len(targets)
    if units is None:
        return [
            (rows, None) for rows in torch.split(torch.arange(size, device=targets.device), chunk)
        ]
    units_a_piece = max(1, round(chunk * units.count / size))
    starts = torch.arange(0, units.count, units_a_piece, device=targets.device)
    filled = torch.unique(units.labels // units_a_piece)  # pieces that have rows take the others in
    bounds = [0, *(starts[filled[1:]]).tolist(), units.count]
    pieces: list[tuple[Tensor, Units | None]] = []
    for first, end in pairwise(bounds):
        rows = torch.nonzero((units.labels >= first) & (units.labels < end)).squeeze(1)
        pieces.append((rows, Units(units.labels[rows] - first, end - first, units.weight)))
    return pieces
