"""DP-SGD in Opacus with its fastest settings: flat clipping, and noise without its secure mode.

Models are the workload's own where Opacus accepts them. Recurrent layers are replaced by its
`DPLSTM` and `DPGRU`; models that Opacus would get wrong or run slowly, as `opacus_models` says.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from adadps_experiments.bench.contenders.microbatch import dense_features
from adadps_experiments.bench.contenders.opacus_models import model_of
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


class ReducibleLoss(nn.Module):
    """The workload's loss with the ``reduction`` that Opacus switches on and off."""

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self.workload = workload
        self.reduction = "mean"

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss, or one value per example."""
        losses = self.workload.loss(outputs, targets)
        return losses if self.reduction == "none" else losses.mean()


def prepare_hooks(workload: Workload, data: SyntheticData) -> Build:
    """Prepare training that stores per-example gradients (``grad_sample_mode="hooks"``)."""
    return _prepare(workload, data, "hooks")


def prepare_ghost(workload: Workload, data: SyntheticData) -> Build:
    """Prepare training by norms and a second backward pass (``grad_sample_mode="ghost"``)."""
    return _prepare(workload, data, "ghost")


def needs_hooks(workload: Workload) -> int:
    """Estimate the bytes of per-example gradients and their copy, weights, sum and noise."""
    return (2 * workload.batch + 4) * workload.parameters() * BYTES + _dense_rows(workload)


def needs_ghost(workload: Workload) -> int:
    """Estimate the bytes of weights, gradient, sum, noise and a copy."""
    return 6 * workload.parameters() * BYTES + _dense_rows(workload)


def _prepare(workload: Workload, data: SyntheticData, mode: str) -> Build:
    import opacus  # noqa: F401  (its import does not count as memory of a step)

    return lambda: _running(workload, data, mode)


def _running(workload: Workload, data: SyntheticData, mode: str) -> TimedStep:
    from opacus import PrivacyEngine

    bare, rng = model_of(workload), np.random.default_rng(SEED)
    rows = TensorDataset(torch.arange(len(data)))
    made = PrivacyEngine().make_private(
        module=bare,
        optimizer=torch.optim.SGD(bare.parameters(), lr=LR),
        criterion=ReducibleLoss(workload),
        data_loader=DataLoader(rows, batch_size=workload.batch),
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=CLIP_NORM,
        poisson_sampling=False,
        grad_sample_mode=mode,
    )
    model, optimizer = made[:2]
    criterion = made[2] if mode == "ghost" else ReducibleLoss(workload)

    def step() -> None:
        batch = data.draw(rng, workload.batch)
        optimizer.zero_grad()
        criterion(model(dense_features(batch)), batch.targets).backward()
        optimizer.step()

    return TimedStep(step)


def _dense_rows(workload: Workload) -> int:
    width = workload.features if isinstance(workload, SparseLogisticRegression) else 0
    return 3 * workload.batch * width * BYTES
