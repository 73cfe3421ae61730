"""Plain torch without privacy: forward, backward, step of SGD."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from adadps_experiments.bench.contenders.trainer import BYTES, LR, Build, TimedStep
from adadps_experiments.bench.workloads import (
    SEED,
    EmbeddingBagClassifier,
    SparseLogisticRegression,
    SyntheticData,
    Workload,
)


class BagLinear(nn.Module):
    """A linear layer on sparse rows as an `nn.EmbeddingBag` of sums: what torch does fastest."""

    def __init__(self, features: int, classes: int, *, sparse: bool) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(
            features, classes, mode="sum", sparse=sparse, include_last_offset=True
        )
        nn.init.uniform_(self.bag.weight, -(features**-0.5), features**-0.5)
        self.bias = nn.Parameter(torch.zeros(classes))

    def forward(self, columns: Tensor, offsets: Tensor, values: Tensor) -> Tensor:
        """Scores of each class."""
        scores: Tensor = self.bag(columns, offsets, per_sample_weights=values) + self.bias
        return scores


def prepare_dense(workload: Workload, data: SyntheticData) -> Build:
    """Gradients and updates of every weight."""
    return lambda: _running(workload, data, sparse=False)


def prepare_sparse(workload: Workload, data: SyntheticData) -> Build:
    """Gradients and updates of the rows that the batch touches."""
    return lambda: _running(workload, data, sparse=True)


def has_sparse_form(workload: Workload) -> bool:
    """Is there a layer whose gradient torch can hold as rows?"""
    return isinstance(workload, SparseLogisticRegression | EmbeddingBagClassifier)


def needs(workload: Workload) -> int:
    """Weights, gradients, and a copy of either."""
    return 4 * workload.parameters() * BYTES


def model_of(workload: Workload, *, sparse: bool) -> nn.Module:
    """The workload's model in the form that is fastest in torch."""
    if isinstance(workload, SparseLogisticRegression):
        return BagLinear(workload.features, workload.classes, sparse=sparse)
    model = workload.model()
    for module in model.modules():
        if isinstance(module, nn.EmbeddingBag):
            module.sparse = sparse
    return model


def inputs_of(batch: SyntheticData) -> tuple[Tensor, ...]:
    """What the model takes: columns, offsets and values of sparse rows, or the tensor itself."""
    if isinstance(batch.features, Tensor):
        return (batch.features,)
    rows = batch.features
    return tuple(torch.from_numpy(part) for part in (rows.indices, rows.indptr, rows.data))


def _running(workload: Workload, data: SyntheticData, *, sparse: bool) -> TimedStep:
    model = model_of(workload, sparse=sparse)
    rng = np.random.default_rng(SEED)
    return TimedStep(sgd_step(model, workload, lambda: data.draw(rng, workload.batch)))


def sgd_step(
    model: nn.Module, workload: Workload, draw: Callable[[], SyntheticData]
) -> Callable[[], None]:
    """One step of SGD on a fresh batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)

    def step() -> None:
        batch = draw()
        optimizer.zero_grad()
        torch.autograd.backward(workload.loss(model(*inputs_of(batch)), batch.targets).mean())
        optimizer.step()

    return step
