"""One model, one loss, one way to read the features: what training differentiates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from adadps.data.examples import Examples, Features, take
from adadps.data.sparse_rows import SparseRows
from adadps.errors import DataError, ModelError
from adadps.gradients.choice import engine_for, reads_in_sequence, require_gradients
from adadps.gradients.chunked import ChunkedGradients
from adadps.gradients.general import GeneralEngine
from adadps.gradients.ghost import GhostEngine
from adadps.gradients.loss import Loss
from adadps.gradients.waist import Engine, GradientBatch, Units
from adadps.types import Params


@dataclass(frozen=True)
class Objective:
    """Model and loss behind an engine, with optional public feature weights in front.

    ``feature_weights`` s turn every row x into s ∘ x / ‖s ∘ x‖, one row at a time.
    """

    model: nn.Module
    engine: Engine
    feature_weights: Tensor | None = None

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

        Without ``chunk`` the engine says how many it can hold, so that memory stays constant.
        """
        chunk = chunk or self.engine.most_at_once(params)
        if len(batch) <= chunk:
            return self.engine.per_unit(params, self._prepared(batch), units)

        def differentiate(rows: Tensor, part: Units | None) -> GradientBatch:
            return self.engine.per_unit(params, self._prepared(batch.take(rows)), part)

        pieces = _pieces(batch.targets, units, chunk)
        return ChunkedGradients(tuple(partial(differentiate, rows, part) for rows, part in pieces))

    def reads(self, features: Features) -> dict[str, Tensor]:
        """Rows that these features make the model read, where it is not all of a parameter."""
        return self.engine.reads(features)

    def tables_by_feature(self, features: Features) -> list[nn.Parameter]:
        """Weights of linear layers of which sparse rows read one feature at a time."""
        one = take(features, torch.arange(1))  # all of them would be sorted by column
        names = self.reads(one) if isinstance(features, SparseRows) else {}
        found = (self.model.get_parameter(name) for name in names)
        layers = {id(m.weight) for m in self.model.modules() if isinstance(m, nn.Linear)}
        return [parameter for parameter in found if id(parameter) in layers]

    def mean_gradient(self, params: Params, batch: Examples) -> Params:
        """Ordinary mean gradient, for public data."""
        return self.engine.mean_gradient(params, self._prepared(batch))

    def outputs(self, params: Params, features: Features, chunk: int = 4096) -> Tensor:
        """Outputs in evaluation mode, in pieces of ``chunk`` rows."""
        device = next(iter(params.values())).device
        training = self.model.training
        self.model.eval()
        try:
            rows = torch.split(torch.arange(len(features)), chunk)
            outputs = [
                self.engine.outputs(params, self.prepare(take(features, part).to(device)))
                for part in rows
            ]
        finally:
            self.model.train(training)
        return torch.cat(outputs)

    def prepare(self, features: Features) -> Features:
        """Apply the feature weights, if there are any."""
        if self.feature_weights is None:
            return features
        return reweighed(features, self.feature_weights)

    def _prepared(self, batch: Examples) -> Examples:
        return Examples(self.prepare(batch.features), batch.targets)


def objective(model: nn.Module, loss: Loss, probe: Examples) -> Objective:
    """Choose the engine for ``model`` and refuse what mixes examples.

    ``probe`` are a few examples on which the loss is tried before anything is trained.
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ModelError(
            "Expected a model with trainable parameters, found none. Set requires_grad on the "
            "parameters that should be trained."
        )
    for name, module in model.named_modules():
        if _mixes_examples(module):
            raise ModelError(
                f"Expected layers that treat every example alone, found {type(module).__name__} "
                f"at '{name}', which mixes the examples of a batch. Replace it by GroupNorm or "
                "LayerNorm."
            )
    held = Objective(model, engine_for(model, loss, probe))
    _require_loss_per_example(held, loss, probe)
    _require_loss_everywhere(held, loss, probe)
    require_gradients(held.engine, probe)
    return held


def predict(model: nn.Module, features: Features, feature_weights: Tensor | None) -> Tensor:
    """Outputs of a trained model, through the feature weights that it was trained with."""
    kind = GhostEngine if reads_in_sequence(model, features) else GeneralEngine
    engine = kind(model, lambda outputs, _: outputs.sum(1))
    held = Objective(model, engine, feature_weights)
    params = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return held.outputs(params, features)


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


def _mixes_examples(module: nn.Module) -> bool:
    keeps_statistics = bool(getattr(module, "track_running_stats", False))
    return isinstance(module, nn.modules.batchnorm._BatchNorm) or keeps_statistics


def _require_loss_everywhere(held: Objective, loss: Loss, data: Examples) -> None:
    """Find targets that the loss refuses now, not at the step that happens to draw them."""
    params = held.params()
    for rows in torch.split(torch.arange(len(data)), 4096):
        part = data.take(rows)
        outputs = _outputs(held, params, part.features)
        try:
            loss(outputs, part.targets.to(outputs.device))
        except (IndexError, RuntimeError, ValueError):
            raise DataError(
                "Expected targets that the loss accepts for every example, found some that it "
                "refuses. Check that labels are whole numbers from 0 to the number of classes "
                "minus 1, and that targets have the shape of the outputs."
            ) from None


def _outputs(held: Objective, params: Params, features: Features) -> Tensor:
    try:
        return held.outputs(params, features)
    except (IndexError, RuntimeError) as error:
        raise DataError(
            f"Expected features that fit the model, found some that it refuses: {error}. Build the "
            "model with the width of the data and a row for every word."
        ) from error


def _require_loss_per_example(held: Objective, loss: Loss, probe: Examples) -> None:
    device = next(iter(held.params().values())).device
    batch = probe.take(torch.arange(3) % len(probe)).to(device)
    outputs = _outputs(held, held.params(), batch.features)
    if outputs.is_floating_point():  # a fresh model may give all rows the same output
        outputs = outputs + torch.rand(outputs.shape, device=device, dtype=outputs.dtype)
    try:
        losses = loss(outputs, batch.targets)
    except (IndexError, RuntimeError, ValueError) as error:
        raise DataError(
            f"Expected targets that the loss accepts, found some that it refuses: {error}. Class "
            "labels are whole numbers in one axis; other targets have the shape of the outputs."
        ) from error
    if losses.shape != (len(batch),):
        raise ModelError(
            f"Expected a loss with one number an example, i.e. shape ({len(batch)},), found "
            f"{tuple(losses.shape)}. Use reduction='none', average over other axes, and give "
            "outputs and targets the same shape."
        )
    alone = torch.cat(
        [loss(outputs[i : i + 1], batch.targets[i : i + 1]) for i in range(len(batch))]
    )
    if not torch.allclose(losses, alone, rtol=1e-4, atol=1e-5, equal_nan=True):
        raise ModelError(
            "Expected each example's loss to depend on that example alone, found a loss that "
            "changes with its neighbours in the batch. Use a loss without statistics, ranks or "
            "pairs across examples."
        )
