"""The device's part of a round: train on its own rows, clip, and add its noise, if any.

Nothing else leaves the device: no loss, no norm, no number of rows.
"""

from __future__ import annotations

import torch
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent
from torch import Tensor, nn

from adadps.accounting.ledger import Ledger, RunFacts
from adadps.data.examples import Examples
from adadps.data.row_kind import require_examples
from adadps.data.sparse_rows import lay_out_by_feature
from adadps.engine.local import LocalEngine, Part, of_updates
from adadps.engine.losses import Loss
from adadps.engine.noise.randomness import Randomness, secure
from adadps.engine.passes.validation import objective
from adadps.engine.waist import clip_weights
from adadps.methods.side.source import Uniform
from adadps.tensors.sums import Params, RowSparse, Sum, dense
from adadps.training.federated.task import Task
from adadps.types import Accountant, Relation, Unit

OWN_RUN = "answers of this device"


def local_update(
    task: Task,
    model: nn.Module,
    loss: Loss,
    data: Examples,
    *,
    scale: Params | None = None,
    randomness: Randomness | None = None,
) -> dict[str, Part]:
    """What this device answers, from the weights that ``model`` has: clip(w_0 - w_T, C) + noise.

    ``scale`` is D = 1/A for every parameter, as `FederatedRun.scale` has it. Without noise, a table
    of words keeps only the rows of the device's own words. An update that is not finite is answered
    as zero, noised like any other: whether training has failed is private as well.
    """
    randomness = randomness or secure()
    held = objective(model, loss, require_examples(data), randomness=randomness)
    lay_out_by_feature(held.tables_by_feature())
    params = held.params()
    factors = Uniform().init(params).scale if scale is None else scale
    engine = LocalEngine(held.engine, task.steps, factors)
    rows = _some(data, task.most, randomness).to(next(iter(params.values())).device)
    with held.isolation():
        found = of_updates([engine.update(params, rows)])
    clipped = found.weighted_sum(clip_weights(found.norms(), task.clip_norm))
    return {
        name: _ready(total, params[name].dtype, task.noise * task.clip_norm, randomness)
        if task.noise
        else _ready(total, params[name].dtype)
        for name, total in clipped.items()
    }


def empty_update(
    task: Task, model: nn.Module, *, randomness: Randomness | None = None
) -> dict[str, Part]:
    """What a device answers whose rows could not be used: zero, with its noise.

    Where devices add noise, a missing share shows in the sum. Whether someone's rows
    are fit for training is a fact about them, so the answer must not depend on it.
    """
    randomness = randomness or secure()
    return {
        name: _ready(torch.zeros_like(value), value.dtype, task.noise * task.clip_norm, randomness)
        if task.noise
        else torch.zeros_like(value)
        for name, value in model.named_parameters()
        if value.requires_grad
    }


def pay_on_device(ledger: Ledger, task: Task) -> None:
    """Charge one answer on a ledger of the device's own, before it is drawn, or refuse it.

    For devices that do not take the server's word: whatever it asks for, and however often, what it
    can learn stays within the ledger's budget. An answer is one Gaussian of multiplier
    ``task.noise``, no matter who else was asked; an answer without noise fits no budget. Its
    epsilon compares this user's rows with none ("zero out"), not with other rows.
    """
    event = GaussianDpEvent(task.noise) if task.noise else NonPrivateDpEvent()
    ledger.open(OWN_RUN, Relation.ZERO_OUT, Accountant.RDP, RunFacts(unit=Unit.USER.value))
    ledger.authorise(event, run=OWN_RUN)


def _some(data: Examples, most: int, randomness: Randomness) -> Examples:
    """All rows, or a fresh uniform choice of ``most``, in their order."""
    if len(data) <= most:
        return data
    chosen = randomness.generator.choice(len(data), most, replace=False, shuffle=False)
    return data.take(torch.from_numpy(chosen).sort().values)


def _ready(
    total: Sum, dtype: torch.dtype, deviation: float = 0.0, randomness: Randomness | None = None
) -> Part:
    """To be sent: noised in float64, then rounded like the weights."""
    if randomness is not None:
        whole: Tensor = randomness.release(dense(total), standard_deviation=deviation)
        return whole.to(dtype)
    if isinstance(total, RowSparse):
        return RowSparse(total.rows, total.values.to(dtype), total.shape, total.axis)
    return dense(total).to(dtype)
