"""The loop of the paper's published code: one backward pass for each group of four examples.

Each group's mean gradient is scaled by 1/A and clipped; noise is added to the sum. Only its time is
of interest here: groups by position in a batch have no ε in adadps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from adadps_experiments.bench.contenders.trainer import (
    BYTES,
    CLIP_NORM,
    LR,
    NOISE_MULTIPLIER,
    Build,
    TimedStep,
)
from adadps_experiments.bench.workloads import (
    SEED,
    SparseLogisticRegression,
    SyntheticData,
    Workload,
)

GROUP = 4
"""Examples per microbatch: a batch of 64 has 16 microbatches."""


def prepare(workload: Workload, data: SyntheticData) -> Build:
    """Prepare training on dense rows, with one entry of A per weight."""
    return lambda: _running(workload, data)


def needs(workload: Workload) -> int:
    """Estimate the bytes of weights, A, gradients, sum and noise, and of a batch of dense rows."""
    rows = (
        workload.batch * workload.features if isinstance(workload, SparseLogisticRegression) else 0
    )
    return (6 * workload.parameters() + 2 * rows) * BYTES


def dense_features(batch: SyntheticData) -> Tensor:
    """Return the features as a dense tensor."""
    if isinstance(batch.features, Tensor):
        return batch.features
    return torch.from_numpy(batch.features.toarray())


def clipped_sum(
    model: nn.Module,
    workload: Workload,
    batch: tuple[Tensor, Tensor],
    A: Sequence[Tensor],
    *,
    clip_norm: float,
    group: int,
) -> list[Tensor]:
    """Return the sum over groups of clip(g/A), with g the gradient of the group's mean loss."""
    params = [p for p in model.parameters() if p.requires_grad]
    total = [torch.zeros_like(parameter) for parameter in params]
    features, targets = batch
    for part, goal in zip(torch.split(features, group), torch.split(targets, group), strict=True):
        gradients = torch.autograd.grad(workload.loss(model(part), goal).mean(), params)
        scaled = [gradient / a for gradient, a in zip(gradients, A, strict=True)]
        norm = torch.stack([gradient.norm() for gradient in scaled]).norm()
        factor = min(1.0, clip_norm / max(float(norm), 1e-12))
        for sum_, gradient in zip(total, scaled, strict=True):
            sum_.add_(gradient, alpha=factor)
    return total


def _running(workload: Workload, data: SyntheticData) -> TimedStep:
    model, rng = workload.model(), np.random.default_rng(SEED)
    params = [p for p in model.parameters() if p.requires_grad]
    A = [torch.empty_like(parameter).uniform_(0.1, 1.0) for parameter in params]
    groups = -(-workload.batch // GROUP)

    def step() -> None:
        batch = data.draw(rng, workload.batch)
        pair = (dense_features(batch), batch.targets)
        total = clipped_sum(model, workload, pair, A, clip_norm=CLIP_NORM, group=GROUP)
        with torch.no_grad():
            for parameter, sum_ in zip(params, total, strict=True):
                sum_.add_(torch.randn_like(sum_), alpha=NOISE_MULTIPLIER * CLIP_NORM)
                parameter.add_(sum_, alpha=-LR / groups)

    return TimedStep(step)
