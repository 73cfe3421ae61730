"""What training differentiates: one model, one loss, one way to read the features.

A logical batch is differentiated in physical pieces, so that any batch size fits in the memory of
one piece. Each piece is padded with synthetic rows and runs in isolation.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from adadps.data.examples import Examples, Features, take
from adadps.data.sparse_rows import SparseRows
from adadps.engine.choice import reads_in_sequence
from adadps.engine.general import GeneralEngine
from adadps.engine.ghost import GhostEngine
from adadps.engine.losses import cross_entropy
from adadps.engine.noise.randomness import Randomness
from adadps.engine.passes.isolation import Isolation
from adadps.engine.passes.model_state import evaluating
from adadps.engine.passes.synthetic import ROWS
from adadps.engine.waist import Engine, GradientBatch, Units, added
from adadps.tensors.sums import Params, Sums


@dataclass(frozen=True)
class Objective:
    """A model and a loss behind an engine, with optional public feature weights in front.

    ``synthetic`` rows pad every batch; every pass runs in ``isolation``. ``feature_weights`` s turn
    every row x into s ∘ x / ‖s ∘ x‖, one row at a time.
    """

    model: nn.Module
    engine: Engine
    synthetic: Examples
    isolation: Isolation
    feature_weights: Tensor | None = None

    def drawing_from(self, randomness: Randomness, *, quotes_errors: bool = False) -> Objective:
        """Return the same with a run's own secret source for draws inside the model."""
        isolation = self.isolation.drawing_from(randomness.bytes, quotes_errors=quotes_errors)
        return replace(self, isolation=isolation)

    def reparametrised(self, feature_weights: Tensor) -> Objective:
        """Return the same objective on re-weighted, re-normalised features."""
        held = self.feature_weights
        return replace(
            self, feature_weights=feature_weights if held is None else held * feature_weights
        )

    def params(self) -> Params:
        """Return the trainable parameters, which share memory with the model."""
        return {
            name: parameter.detach()
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        }

    def per_unit(
        self, params: Params, batch: Examples, units: Units | None, chunk: int | None = None
    ) -> GradientBatch:
        """Return per-unit gradients, in pieces of about ``chunk`` examples with whole units.

        Without ``chunk`` the engine decides how many it can hold, so that memory stays constant.
        Each piece is padded with synthetic rows: the result for a row does not depend on how many
        others were drawn, and an empty batch is padding alone.
        """
        chunk = chunk or self.engine.most_at_once(params)
        multiple = min(ROWS, chunk)
        chunk -= chunk % multiple

        def differentiate(rows: Tensor | None, part: Units | None) -> GradientBatch:
            piece = self._prepared(batch if rows is None else batch.take(rows))
            count = padding_for(len(piece), multiple)
            padded = _followed_by(piece, self.synthetic, count)
            return self.isolation.on_private_rows(
                partial(self.engine.per_unit, params, padded, part, count)
            )

        if len(batch) <= chunk:
            return differentiate(None, units)
        pieces = _pieces(batch.targets, units, chunk)
        return ChunkedGradients(tuple(partial(differentiate, rows, part) for rows, part in pieces))

    def encoded(self, batch: Examples) -> Examples:
        """Return the batch with features in the form that the engine reads."""
        return Examples(self.engine.encoded(batch.features), batch.targets)

    def reads(self, features: Features) -> dict[str, Tensor]:
        """Return the rows of each table that these features make the model read."""
        return self.engine.reads(features)

    def tables(self) -> list[str]:
        """Return the names of the parameters of which a batch reads only some rows."""
        return list(self.reads(self.synthetic.features))

    def tables_by_feature(self) -> list[nn.Parameter]:
        """Return the weights of linear layers that sparse rows read one feature at a time."""
        if not isinstance(self.synthetic.features, SparseRows):
            return []
        found = (self.model.get_parameter(name) for name in self.tables())
        layers = {id(m.weight) for m in self.model.modules() if isinstance(m, nn.Linear)}
        return [parameter for parameter in found if id(parameter) in layers]

    def mean_gradient(self, params: Params, batch: Examples) -> Params:
        """Return the ordinary mean gradient, for public data."""
        with self.isolation():
            return self.engine.mean_gradient(params, self._prepared(batch))

    def outputs(self, params: Params, features: Features, chunk: int = 4096) -> Tensor:
        """Return outputs in evaluation mode, computed in pieces of ``chunk`` rows."""
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
    """Return the outputs of a trained model, through the feature weights of its training."""
    kind = GhostEngine if reads_in_sequence(model, features) else GeneralEngine
    engine = kind(model, cross_entropy)  # the loss is not used for outputs
    params = {name: parameter.detach() for name, parameter in model.named_parameters()}
    no_rows = Examples(take(features, torch.arange(0)), torch.zeros(0))
    isolation = Isolation(model, cross_entropy, os.urandom)
    return Objective(model, engine, no_rows, isolation, feature_weights).outputs(params, features)


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


# --- padding ---


def padding_for(rows: int, multiple: int = ROWS) -> int:
    """Return how many synthetic rows follow this many real ones.

    >>> padding_for(0), padding_for(5), padding_for(16), padding_for(17), padding_for(5, 2)
    (16, 11, 0, 15, 1)
    """
    return -rows % multiple if rows else multiple


def _followed_by(batch: Examples, synthetic: Examples, count: int) -> Examples:
    """The batch and ``count`` synthetic rows after it.

    Sparse synthetic rows have no entries, so that they touch no row of a table.
    """
    if count == 0:
        return batch
    device = synthetic.targets.device
    chosen = torch.arange(count, device=device) % len(synthetic)
    targets = torch.cat([batch.targets, synthetic.targets[chosen].to(batch.targets.device)])
    if isinstance(batch.features, SparseRows):
        return Examples(batch.features.followed_by_empty(count), targets)
    more = synthetic.take(chosen).to(batch.targets.device)
    assert isinstance(more.features, Tensor)
    return Examples(torch.cat([batch.features, more.features]), targets)


# --- physical pieces of a logical batch ---


@dataclass(frozen=True)
class ChunkedGradients:
    """Pieces that are differentiated when they are needed, and then forgotten.

    `norms` followed by `weighted_sum` differentiates twice; `adadps.engine.waist.reduce` walks
    through `parts` and differentiates once.
    """

    pieces: tuple[Callable[[], GradientBatch], ...]
    transforms: tuple[Callable[[GradientBatch], GradientBatch], ...] = ()

    def scale(self, diagonal: Params) -> ChunkedGradients:
        """D ∘ g."""
        return self._then(lambda batch: batch.scale(diagonal))

    def shift(self, beta: float, mean: Params) -> ChunkedGradients:
        """β g + (1 - β) M."""
        return self._then(lambda batch: batch.shift(beta, mean))

    def norms(self) -> Tensor:
        """Return the norms of all units, piece by piece."""
        return torch.cat([part.norms() for part in self.parts()])

    def weighted_sum(self, weights: Tensor) -> Sums:
        """Return Σ_i w_i g_i over all pieces."""
        total: Sums | None = None
        start = 0
        for part in self.parts():
            size = len(part.norms())
            total = added(total, part.weighted_sum(weights[start : start + size]))
            start += size
        return total or {}

    def parts(self) -> Iterator[GradientBatch]:
        """Yield each piece, differentiated and transformed."""
        for piece in self.pieces:
            batch = piece()
            for transform in self.transforms:
                batch = transform(batch)
            yield batch

    def _then(self, transform: Callable[[GradientBatch], GradientBatch]) -> ChunkedGradients:
        return replace(self, transforms=(*self.transforms, transform))


def _pieces(targets: Tensor, units: Units | None, chunk: int) -> list[tuple[Tensor, Units | None]]:
    size = len(targets)
    if units is None:
        return [
            (rows, None) for rows in torch.split(torch.arange(size, device=targets.device), chunk)
        ]
    units_per_piece = max(1, round(chunk * units.count / size))
    starts = torch.arange(0, units.count, units_per_piece, device=targets.device)
    # Pieces without rows are joined to the piece before them.
    filled = torch.unique(units.labels // units_per_piece)
    bounds = [0, *(starts[filled[1:]]).tolist(), units.count]
    pieces: list[tuple[Tensor, Units | None]] = []
    for first, end in pairwise(bounds):
        rows = torch.nonzero((units.labels >= first) & (units.labels < end)).squeeze(1)
        pieces.append((rows, Units(units.labels[rows] - first, end - first, units.weight)))
    return pieces
