"""Plain torch without privacy: forward pass, backward pass, SGD update."""

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
    """A linear layer on sparse rows as an `nn.EmbeddingBag` of sums, the fastest form in torch."""

    def __init__(self, features: int, classes: int, *, sparse: bool) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(
            features, classes, mode="sum", sparse=sparse, include_last_offset=True
        )
        nn.init.uniform_(self.bag.weight, -(features**-0.5), features**-0.5)
        self.bias = nn.Parameter(torch.zeros(classes))

    def forward(self, columns: Tensor, offsets: Tensor, values: Tensor) -> Tensor:
        """Return the score of each class."""
        scores: Tensor = self.bag(columns, offsets, per_sample_weights=values) + self.bias
        return scores


def prepare_dense(workload: Workload, data: SyntheticData) -> Build:
    """Prepare training in which every weight has a gradient and an update."""
    return lambda: _running(workload, data, sparse=False)


def prepare_sparse(workload: Workload, data: SyntheticData) -> Build:
    """Prepare training in which only the rows that a batch touches are updated."""
    return lambda: _running(workload, data, sparse=True)


def has_sparse_form(workload: Workload) -> bool:
    """Tell whether torch can hold the gradient of a layer as rows."""
    return isinstance(workload, SparseLogisticRegression | EmbeddingBagClassifier)


def needs(workload: Workload) -> int:
    """Estimate the bytes of weights, gradients, and a copy of each."""
    return 4 * workload.parameters() * BYTES


def model_of(workload: Workload, *, sparse: bool) -> nn.Module:
    """Return the workload's model in the form that is fastest in torch."""
    if isinstance(workload, SparseLogisticRegression):
        return BagLinear(workload.features, workload.classes, sparse=sparse)
    model = workload.model()
    for module in model.modules():
        if isinstance(module, nn.EmbeddingBag):
            module.sparse = sparse
    return model


def inputs_of(batch: SyntheticData) -> tuple[Tensor, ...]:
    """Return the model's inputs: columns, offsets and values of sparse rows, or the tensor."""
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
    """Return a function that makes one SGD step on a fresh batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)

    def step() -> None:
        batch = draw()
        optimizer.zero_grad()
        torch.autograd.backward(workload.loss(model(*inputs_of(batch)), batch.targets).mean())
        optimizer.step()

    return step
